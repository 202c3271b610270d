"""A GGUF model in several files: the first one opens them all, and every other case says what to do."""

import gguf
import pytest
import torch

from gradus.errors import CheckpointError
from gradus.loading import load_model, open_checkpoint, open_tokenizer
from tests.loading.builders import CONFIGS, _write_metadata, as_llama_cpp, tensors_of, write_bpe_tokenizer, write_gguf


def write_parts(folder, count=2, *, name="m-{:05}-of-{:05}.gguf", twice=False, tensors=None):
    """Write parts like llama.cpp's gguf-split: the first one has the metadata."""
    stored = [as_llama_cpp("llama", CONFIGS["llama"], *item) for item in tensors_of(CONFIGS["llama"]).items()]
    paths = []
    for part in range(count):
        writer = gguf.GGUFWriter(folder / name.format(part + 1, count), "llama")
        if part == 0:
            _write_metadata(writer, "llama", CONFIGS["llama"])
            write_bpe_tokenizer(writer)
        writer.add_uint16("split.no", part)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", tensors or len(stored))
        for name_, values in stored[part::count] + (stored[:1] if twice and part else []):
            writer.add_tensor(name_, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        paths.append(folder / name.format(part + 1, count))
    return paths


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_first_part_opens_the_whole_model(tmp_path, count):
    parts = write_parts(tmp_path, count)
    whole = load_model(open_checkpoint(str(write_gguf(tmp_path / "whole.gguf"))), dtype=torch.float32, device="cpu")
    checkpoint = open_checkpoint(str(parts[0]))
    found = load_model(checkpoint, dtype=torch.float32, device="cpu").state_dict()
    assert found.keys() == whole.state_dict().keys()
    assert all(torch.equal(found[name], value) for name, value in whole.state_dict().items())
    assert checkpoint.size_bytes == sum(part.stat().st_size for part in parts)
    assert open_tokenizer(str(parts[0])).encode("the cat") == checkpoint.tokenizer.encode("the cat")


MERGE = r"or merge the parts with `llama-gguf-split --merge FIRST_PART OUTPUT`$"


@pytest.mark.parametrize("opened", [open_checkpoint, open_tokenizer])
def test_another_part_names_the_first_one(tmp_path, opened):
    with pytest.raises(CheckpointError, match=r"^m-00002-of-00003.gguf: is part 2 of 3: open m-00001.*, " + MERGE):
        opened(str(write_parts(tmp_path, 3)[1]))


def test_a_missing_part_is_named(tmp_path):
    first, second, _ = write_parts(tmp_path, 3)
    second.unlink()
    with pytest.raises(CheckpointError, match=r"is part 1 of 3, and m-00002-of-00003.gguf is missing: .*, " + MERGE):
        open_checkpoint(str(first))


def test_parts_of_other_names_are_not_searched_for(tmp_path):
    first, _ = write_parts(tmp_path, name="part-{}-{}.gguf")
    with pytest.raises(CheckpointError, match=r"is part 1 of 2: name it MODEL-00001-of-00002.gguf, .*, " + MERGE):
        open_checkpoint(str(first))


@pytest.mark.parametrize(
    ("options", "words"),
    [({"twice": True}, "is in an earlier part too"), ({"tensors": 99}, "its parts hold 21 tensors")],
)
def test_parts_that_contradict_each_other_are_refused(tmp_path, options, words):
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(str(write_parts(tmp_path, **options)[0]))


@pytest.mark.parametrize("more", [{"split.count": 0}, {"split.count": 2, "split.no": 2}, {"split.count": "two"}])
def test_wrong_numbers_of_parts_are_refused_or_mean_one_file(tmp_path, more):
    path = write_gguf(tmp_path / "m.gguf", more=more)
    if more == {"split.count": 0}:  # as some writers have it
        assert open_checkpoint(str(path)).tensors is not None
        return
    with pytest.raises(CheckpointError, match=r"split.no .* and split.count .* are wrong"):
        open_checkpoint(str(path))
