"""A checkpoint in parts: joined, it is the model that was cut, with fewer tokens."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("gguf", reason="files of llama.cpp are written with its package")

from gradus.attention.whole import WholeSequence
from gradus.bench.contenders.carried import PART, Cut, pack, unpack
from gradus.bench.contenders.gguf_files import OwnTensors, Type, write
from gradus.errors import CheckpointError, ConfigError
from gradus.loading import load_model, open_checkpoint
from gradus.models.shapes import SHAPES

STUDY = b"what is asked"
USED = (3, 200, 17, 64)
PART_BYTES = 60_000


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A file of a tiny model with its own head, whose matrices are Q8_0."""
    shape = open_checkpoint("random:tiny-qwen2")
    config = replace(SHAPES["tiny-qwen2"], tie_embeddings=False, head_dim=16, attention_scale=0.25)
    model = load_model(replace(shape, config=config), dtype=torch.float32, device="cpu")
    path = tmp_path_factory.mktemp("file") / "tiny.gguf"
    write(path, config, OwnTensors(model), Type.Q8_0)
    return open_checkpoint(str(path))


@pytest.fixture
def parts(checkpoint, tmp_path):
    return pack(checkpoint, Cut.of(USED, checkpoint.config.vocab_size), STUDY, tmp_path / "parts", PART_BYTES)


def logits(checkpoint, ids):
    model = load_model(checkpoint, dtype=torch.bfloat16, device="cpu")
    with torch.inference_mode():
        return model.logits(model(torch.tensor(ids), torch.arange(len(ids)), WholeSequence(model.config)))


def test_joined_parts_compute_the_same_logits_for_the_tokens_that_are_left(checkpoint, parts, tmp_path):
    assert len(parts) > 1 and all(part.stat().st_size <= PART_BYTES for part in parts)
    joined, study = unpack(parts[0].parent, tmp_path / "joined")
    assert (joined.name, study) == (checkpoint.name, STUDY)
    cut = Cut.of(USED, checkpoint.config.vocab_size)
    new = cut.renumbering()
    assert joined.config.vocab_size == len(cut.kept) < checkpoint.config.vocab_size
    found = logits(joined, [new[token] for token in USED])
    assert torch.equal(found, logits(checkpoint, USED)[:, torch.tensor(cut.kept)])


def test_a_cut_keeps_what_is_used_in_order_and_fills_whole_rows():
    cut = Cut.of(USED, 400)
    assert len(cut.kept) == 128 and {*USED} <= {*cut.kept} and [*cut.kept] == sorted(set(cut.kept))
    assert [cut.kept[cut.renumbering()[token]] for token in USED] == [*USED]
    assert Cut.of(range(5), 100).kept == tuple(range(100))  # no more than there are


def test_a_missing_part_is_one_line_that_names_the_folder_of_the_parts(parts, tmp_path):
    carried = parts[0].parent
    parts[-1].unlink()
    with pytest.raises(CheckpointError, match=rf"^{carried}: .*carry all of them"):
        unpack(carried, tmp_path / "joined")
    with pytest.raises(CheckpointError, match=rf"^{tmp_path}: has no carried.part\*"):
        unpack(tmp_path, tmp_path / "joined")
    assert parts[1].name == PART.format(1)


def test_parts_of_an_earlier_study_are_not_joined_to_a_smaller_one(checkpoint, parts, tmp_path):
    cut = Cut.of(USED, checkpoint.config.vocab_size)
    whole = pack(checkpoint, cut, b"another", parts[0].parent, 1 << 30)
    assert len(whole) == 1 < len(parts)
    assert unpack(parts[0].parent, tmp_path / "joined")[1] == b"another"


def test_only_a_file_of_blocks_is_carried(tmp_path):
    random = open_checkpoint("random:tiny-qwen2")
    with pytest.raises(ConfigError, match=r"only a \.gguf file's own bytes are carried"):
        pack(random, Cut.of(USED, 400), STUDY, tmp_path, PART_BYTES)
