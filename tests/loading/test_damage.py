"""Files as strangers, broken disks and half downloads leave them: one line that names the file, never anything else."""

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gradus.errors import CheckpointError, ConfigError
from gradus.loading import load_model, open_checkpoint
from tests.loading.builders import write_folder, write_gguf

INDEX = "model.safetensors.index.json"
NORM = "model.norm.weight"


def load(path: Path):
    return load_model(open_checkpoint(str(path)), dtype=torch.float32, device="cpu")


def refused(path: Path) -> str:
    """The one line with which loading ends."""
    with pytest.raises((CheckpointError, ConfigError)) as error:
        load(path)
    message = str(error.value)
    assert message and "\n" not in message and len(message) < 500
    return message


# -- safetensors -------------------------------------------------------------------------------------------------------


def header_of(path: Path) -> tuple[dict, bytes]:
    content = path.read_bytes()
    (size,) = struct.unpack_from("<Q", content)
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def write_header(path: Path, header: dict | list | str, data: bytes) -> None:
    text = header if isinstance(header, str) else json.dumps(header)
    path.write_bytes(struct.pack("<Q", len(text)) + text.encode() + data)


def edited(change: Callable[[dict], None]) -> Callable[[Path], None]:
    """A damage done to the header of an otherwise sound file."""

    def damage(path: Path) -> None:
        header, data = header_of(path)
        change(header)
        write_header(path, header, data)

    return damage


def cut(size: int) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(path.read_bytes()[:size])


def without_last_tensor(header: dict) -> None:
    """The file is consistent still; the model just lacks a tensor."""
    last = max((name for name in header if name != "__metadata__"), key=lambda name: header[name]["data_offsets"])
    del header[last]


def poke(path: Path, value: float) -> None:
    """Overwrite the first value of the final norm."""
    header, data = header_of(path)
    begin = header[NORM]["data_offsets"][0]
    write_header(path, header, data[:begin] + struct.pack("<f", value) + data[begin + 4 :])


SAFETENSORS_DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "empty": (cut(0), "truncated"),
    "no length": (cut(5), "truncated"),
    "no header": (cut(8), "truncated"),
    "half a header": (cut(200), "truncated"),
    "no data": (lambda path: write_header(path, header_of(path)[0], b""), "truncated"),
    "one byte short": (lambda path: path.write_bytes(path.read_bytes()[:-1]), "truncated"),
    "one byte long": (lambda path: path.write_bytes(path.read_bytes() + b"\0"), "more than tensors"),
    "header of 2**63": (
        lambda path: path.write_bytes(struct.pack("<Q", 2**63) + path.read_bytes()[8:]),
        "header of 922",
    ),
    "header of -1": (lambda path: path.write_bytes(b"\xff" * 8 + path.read_bytes()[8:]), "header of 184"),
    "no JSON": (lambda path: write_header(path, "not json", b""), "not valid JSON"),
    "a list": (lambda path: write_header(path, [], b""), "must be a JSON object"),
    "deep JSON": (lambda path: write_header(path, "[" * 100_000, b""), "not valid JSON"),
    "not UTF-8": (lambda path: path.write_bytes(struct.pack("<Q", 4) + b"{\xff\xfe}"), "not valid JSON"),
    "a pickle": (lambda path: path.write_bytes(b"\x80\x04\x95" + bytes(100)), "safetensors"),
    "no tensors": (lambda path: write_header(path, {}, b""), "lacks tensor"),
    "an entry of text": (edited(lambda header: header.update({NORM: "text"})), "must have dtype"),
    "no offsets": (edited(lambda header: header[NORM].pop("data_offsets")), "must have dtype, shape and data_offsets"),
    "unknown type": (edited(lambda header: header[NORM].update(dtype="F31")), "'F31', which does not exist"),
    "a type of a list": (edited(lambda header: header[NORM].update(dtype=[])), "which does not exist"),
    "another width": (edited(lambda header: header[NORM].update(dtype="F16")), "needs 128 bytes"),
    "integers": (
        edited(lambda header: header[NORM].update(dtype="I32")),
        f"tensor '{NORM}' holds torch.int32, expected floating-point",
    ),
    "negative shape": (edited(lambda header: header[NORM].update(shape=[-64])), "shape"),
    "fractional shape": (edited(lambda header: header[NORM].update(shape=[64.0])), "shape"),
    "huge shape": (edited(lambda header: header[NORM].update(shape=[2**62, 2**62])), "needs"),
    "shape of 2**200": (edited(lambda header: header[NORM].update(shape=[2**200])), "shape"),
    "many dimensions": (edited(lambda header: header[NORM].update(shape=[1] * 63 + [64])), "shape of at most 8"),
    "another shape": (
        edited(lambda header: header[NORM].update(shape=[8, 8])),
        f"'{NORM}' has shape (8, 8), the config",
    ),
    "offsets reversed": (edited(lambda header: header[NORM]["data_offsets"].reverse()), "must begin at byte"),
    "three offsets": (edited(lambda header: header[NORM]["data_offsets"].append(0)), "must begin at byte"),
    "boolean offsets": (edited(lambda header: header[NORM].update(data_offsets=[False, True])), "must begin at byte"),
    "overlap": (
        edited(lambda header: header[NORM].update(data_offsets=[o - 4 for o in header[NORM]["data_offsets"]])),
        "must begin at byte",
    ),
    "beyond the end": (edited(lambda header: header[NORM].update(data_offsets=[2**40, 2**40 + 256])), "must begin"),
    "a tensor fewer": (edited(without_last_tensor), "more than tensors"),
    "renamed": (edited(lambda header: header.update({"other": header.pop(NORM)})), f"lacks tensor '{NORM}'"),
    "NaN": (lambda path: poke(path, float("nan")), "NaN"),
    "infinity": (lambda path: poke(path, float("-inf")), "infinity"),
}


@pytest.mark.parametrize("case", SAFETENSORS_DAMAGES)
def test_damaged_safetensors_get_one_line(tmp_path, case):
    damage, words = SAFETENSORS_DAMAGES[case]
    folder = write_folder(tmp_path / "tiny")
    damage(folder / "model.safetensors")
    assert words in refused(folder)


def reindex(change: Callable[[dict], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        index = json.loads((folder / INDEX).read_text())
        change(index["weight_map"])
        (folder / INDEX).write_text(json.dumps(index))

    return damage


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("model-*.safetensors"))


INDEX_DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing shard": (lambda folder: shards(folder)[1].unlink(), "shard model-00002-of-00003.safetensors is missing"),
    "parent folder": (
        reindex(lambda names: names.update({NORM: "../model.safetensors"})),
        "'../model.safetensors' is not",
    ),
    "absolute path": (reindex(lambda names: names.update({NORM: "/etc/passwd"})), "'/etc/passwd' is not the name"),
    "subfolder": (reindex(lambda names: names.update({NORM: "a/b.safetensors"})), "is not the name"),
    "backslash": (reindex(lambda names: names.update({NORM: "..\\b.safetensors"})), "is not the name"),
    "pickled shard": (reindex(lambda names: names.update({NORM: "pytorch_model.bin"})), "is not the name"),
    "a number": (reindex(lambda names: names.update({NORM: 7})), "7 is not the name"),
    "line break": (reindex(lambda names: names.update({NORM: "a\n.safetensors"})), "is not the name"),
    "no names": (reindex(lambda names: names.clear()), "weight_map must be"),
    "wrong shard": (reindex(lambda names: names.update({NORM: shards_name(names, NORM)})), "says is in"),
    "not listed": (reindex(lambda names: names.pop(NORM)), "says is nowhere"),
    "listed, not there": (reindex(lambda names: names.update(ghost=names[NORM])), "lacks tensor 'ghost'"),
    "twice, first": (lambda folder: duplicate(shards(folder)[0]), "says is in"),
    "twice, last": (lambda folder: duplicate(shards(folder)[2]), "is also in"),
    "no object": (lambda folder: (folder / INDEX).write_text("[]"), "must be a JSON object"),
    "cut shard": (lambda folder: cut(300)(shards(folder)[0]), "model-00001-of-00003.safetensors: truncated"),
}


def shards_name(names: dict[str, str], tensor: str) -> str:
    """Some other shard than the tensor's."""
    return next(file for file in names.values() if file != names[tensor])


def duplicate(path: Path) -> None:
    """The final norm a second time: it is in the second shard."""
    header, data = header_of(path)
    assert NORM not in header
    header[NORM] = {"dtype": "F32", "shape": [64], "data_offsets": [len(data), len(data) + 256]}
    write_header(path, header, data + bytes(256))


@pytest.mark.parametrize("case", INDEX_DAMAGES)
def test_a_damaged_index_gets_one_line(tmp_path, case):
    damage, words = INDEX_DAMAGES[case]
    folder = write_folder(tmp_path / "tiny", shards=3)
    damage(folder)
    assert words in refused(folder)


# -- GGUF --------------------------------------------------------------------------------------------------------------


def replaced(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def damage(content: bytes) -> bytes:
        assert old in content
        return content.replace(old, new, 1)

    return damage


def at(offset: int, layout: str, value: int) -> Callable[[bytes], bytes]:
    size = struct.calcsize(layout)
    return lambda content: content[:offset] + struct.pack(layout, value) + content[offset + size :]


def after(marker: str, layout: str, value: float, skip: int = 0) -> Callable[[bytes], bytes]:
    """Overwrite what follows the text `marker`, `skip` bytes further on."""

    def damage(content: bytes) -> bytes:
        start = content.index(marker.encode()) + len(marker) + skip
        return content[:start] + struct.pack(layout, value) + content[start + struct.calcsize(layout) :]

    return damage


TENSOR = "blk.0.attn_norm.weight"  # 1 dimension u32, size u64, type u32, offset u64 follow its name

GGUF_DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda content: b"", "the file is empty"),
    "another format": (lambda content: b"PK\3\4" + content[4:], "not a GGUF file"),
    "version 1": (at(4, "<I", 1), "version 1 is not supported"),
    "big-endian": (at(4, ">I", 3), "version 50331648 is not supported"),
    "no counts": (lambda content: content[:10], "truncated"),
    "half the metadata": (lambda content: content[:600], "ends inside"),
    "half the data": (lambda content: content[: len(content) - 9000], "truncated"),
    "2**63 tensors": (at(8, "<Q", 2**63), "claims 9223372036854775808 tensors"),
    "2**63 pairs": (at(16, "<Q", 2**63), "claims 9223372036854775808 metadata pairs"),
    "a tensor too many": (at(8, "<Q", 30), "gguf"),
    "key of 2**63 bytes": (at(24, "<Q", 2**63), "a metadata key of 9223372036854775808 bytes"),
    "key is not UTF-8": (replaced(b"general.license", b"general.licens\xff"), "is not UTF-8"),
    "key twice": (replaced(b"llama.context_length", b"llama.rope.freq_base"), "occurs twice"),
    "unknown value type": (after("general.architecture", "<I", 77), "has type 77, which does not exist"),
    "unknown architecture": (
        replaced(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0mamba"),
        "'mamba' is not supported",
    ),
    "missing key": (replaced(b"llama.block_count", b"llama.black_count"), "llama.block_count is missing"),
    "key of the wrong type": (after("llama.block_count", "<I", 6), "llama.block_count must be an integer"),
    "no layers": (after("llama.block_count", "<I", 0, skip=4), "num_hidden_layers must be an integer between 1"),
    "too many layers": (after("llama.block_count", "<I", 4000, skip=4), "do not belong together"),
    "a layer too many": (after("llama.block_count", "<I", 1, skip=4), "has no place"),
    "no heads": (
        after("llama.attention.head_count", "<I", 0, skip=4),
        "attention.head_count must be at least 1, got 0",
    ),
    "odd heads": (after("llama.attention.head_count", "<I", 3, skip=4), "heads"),
    "more vocabulary": (
        after("tokenizer.ggml.eos_token_id", "<I", 9999, skip=4),
        "eos_token_id 9999 is not in the vocabulary of 320",
    ),
    "2**60 tokens": (after("tokenizer.ggml.tokens", "<Q", 2**60, skip=8), "claims"),
    "tokens of numbers": (
        replaced(b"tokenizer.ggml.token_type", b"tokenizer.ggml.token_tipe"),
        "token_type must be a list",
    ),
    "unknown words": (replaced(b"\x05\0\0\0\0\0\0\0gpt-2", b"\x05\0\0\0\0\0\0\0gpt-9"), "'gpt-9' is not known"),
    "unknown tokenizer": (after("tokenizer.ggml.model", "<4s", b"bert", skip=12), "tokenizer model 'bert'"),
    "no dimensions": (after(TENSOR, "<I", 0), "has 0 dimensions"),
    "five dimensions": (after(TENSOR, "<I", 5), "has 5 dimensions"),
    "a huge dimension": (after(TENSOR, "<Q", 2**62, skip=4), "(truncated?)"),
    "a dimension of zero": (after(TENSOR, "<Q", 0, skip=4), "multiples"),
    "another shape": (after(TENSOR, "<Q", 32, skip=4), "has shape (32,), the configuration needs (64,)"),
    "unknown tensor type": (after(TENSOR, "<I", 200, skip=12), "has type 200, which does not exist"),
    "unsupported type": (after(TENSOR, "<I", 24, skip=12), "stored as I8, which is not supported"),
    "ragged blocks": (after(TENSOR, "<I", 12, skip=12), "rows of Q4_K are multiples of 256"),
    "offset beyond": (after(TENSOR, "<Q", 2**40, skip=16), "(truncated?)"),
    "offset unaligned": (after(TENSOR, "<Q", 33, skip=16), "not a multiple of 32"),
    "overlap": (after(TENSOR, "<Q", 32, skip=16), "overlap"),
    "tensor twice": (replaced(b"blk.1.attn_norm.weight", b"blk.0.attn_norm.weight"), "occurs twice"),
    "unknown tensor": (replaced(b"blk.1.attn_norm.weight", b"blk.1.attn_nirm.weight"), "lacks tensor"),
    "NaN": (lambda content: content[:-4] + struct.pack("<f", float("nan")), "NaN"),
}


@pytest.fixture(scope="module")
def sound_gguf(tmp_path_factory) -> bytes:
    return write_gguf(tmp_path_factory.mktemp("sound") / "tiny.gguf").read_bytes()


@pytest.mark.parametrize("case", GGUF_DAMAGES)
def test_damaged_gguf_gets_one_line(tmp_path, sound_gguf, case):
    damage, words = GGUF_DAMAGES[case]
    path = tmp_path / "tiny.gguf"
    path.write_bytes(damage(sound_gguf))
    assert words in refused(path)


# -- random damage -----------------------------------------------------------------------------------------------------


def mutate(content: bytes, dice: random.Random, first: int) -> bytes:
    """Change, cut, insert or repeat a few bytes among the `first` ones, where the structure is."""
    changed = bytearray(content)
    for _ in range(dice.randint(1, 3)):
        place = dice.randrange(min(first, len(changed)))
        match dice.randrange(5):
            case 0:
                changed[place] ^= 1 << dice.randrange(8)
            case 1:
                changed[place] = dice.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                changed[place : place + dice.randint(1, 8)] = dice.randbytes(dice.randint(1, 8))
            case 3:
                del changed[place : place + dice.randint(1, 64)]
            case 4:
                changed[place:place] = changed[place : place + dice.randint(1, 32)]
    return bytes(changed)


def shapes(model) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}


def try_loading(path: Path, expected: dict[str, tuple[int, ...]]) -> bool:
    """Whether it loaded: then into the same shapes. Anything raised but the two errors fails the test."""
    try:
        checkpoint = open_checkpoint(str(path))
        if checkpoint.config.context_length > 4096:  # legal, and a table of rotations too large for a quick test
            return True
        found = shapes(load_model(checkpoint, dtype=torch.float32, device="cpu"))
    except (CheckpointError, ConfigError) as error:
        assert "\n" not in str(error) and len(str(error)) < 500
        return False
    assert {name: shape for name, shape in found.items() if "rope" not in name} == {
        name: shape for name, shape in expected.items() if "rope" not in name
    }
    return True


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"])
def test_random_damage_to_a_folder_loads_the_same_shapes_or_is_refused(tmp_path, file):
    folder = write_folder(tmp_path / "tiny")
    expected, sound = shapes(load(folder)), (folder / file).read_bytes()
    dice = random.Random(file)
    outcomes = []
    for _ in range(80):
        (folder / file).write_bytes(mutate(sound, dice, first=4000))
        outcomes.append(try_loading(folder, expected))
    assert False in outcomes  # the damage was not harmless throughout


def test_random_damage_to_a_gguf_file_loads_the_same_shapes_or_is_refused(tmp_path, sound_gguf):
    path = tmp_path / "tiny.gguf"
    path.write_bytes(sound_gguf)
    expected = shapes(load(path))
    end = sound_gguf.index(b"blk.1.ffn_up.weight") + 100
    dice = random.Random("gguf")
    outcomes = []
    for _ in range(250):
        path.write_bytes(mutate(sound_gguf, dice, first=end))
        outcomes.append(try_loading(path, expected))
    assert False in outcomes


def test_a_gguf_file_cut_anywhere_is_refused(tmp_path, sound_gguf):
    path = tmp_path / "tiny.gguf"
    for size in range(0, len(sound_gguf), 4099):
        path.write_bytes(sound_gguf[:size])
        refused(path)


def test_the_sound_files_of_this_module_do_load(tmp_path, sound_gguf):
    path = tmp_path / "tiny.gguf"
    path.write_bytes(sound_gguf)
    assert shapes(load(path)) == shapes(load(write_folder(tmp_path / "tiny")))
