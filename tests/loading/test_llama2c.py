"""llama2.c's format: written here as its export script and read back; its tokenizer against its own algorithm."""

import struct
from itertools import pairwise

import pytest
import torch

from gradus import LLM, SamplingParams
from gradus.calibration.quantize import Recipe, quantize
from gradus.errors import CheckpointError
from gradus.loading import load_model, open_checkpoint
from gradus.loading.progress import Silent
from gradus.models import Rope
from tests.loading.builders import CONFIGS, tensors_of

CONFIG = CONFIGS["llama"] | {"tie_word_embeddings": True, "bos_token_id": 1}
DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, VOCABULARY, CONTEXT = 64, 96, 2, 4, 2, 320, 128
ORDER = (
    "input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "post_attention_layernorm", "mlp.gate_proj", "mlp.down_proj", "mlp.up_proj",
)  # fmt: skip
PIECES = [" ", *"abcdeghinost,.é", "th", "in", "an", " t", " th", " the", "he", "ing", "and", " and", "est", "  "]
TEXTS = ["the thing and the best", "", " a", "an ant in the tin, and then the  nest.", "hehehethethe"]


def interleaved(value, heads):
    """Row i of the first half of a head, then row i of the second, as the export script's permute_reverse leaves it."""
    found = torch.empty_like(value)
    size = len(value) // heads
    for head in range(heads):
        for i in range(size // 2):
            found[head * size + 2 * i] = value[head * size + i]
            found[head * size + 2 * i + 1] = value[head * size + size // 2 + i]
    return found


def vocabulary():
    """(bytes, score) of each token."""
    found = [(b"<unk>", 0.0), (b"\n<s>\n", 0.0), (b"\n</s>\n", 0.0)]
    found += [(chr(byte).encode(), 0.0) for byte in range(256)]
    found += [(piece.encode(), -float(rank)) for rank, piece in enumerate(PIECES)]
    return found + [(f"#{number}#".encode(), -1e9) for number in range(len(found), VOCABULARY)]


def content(pieces=None):
    tensors = tensors_of(CONFIG)
    parts = [struct.pack("<7i", DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, VOCABULARY, CONTEXT)]
    parts.append(tensors["model.embed_tokens.weight"].numpy().tobytes())
    for name in ORDER:
        for layer in range(LAYERS):
            value = tensors[f"model.layers.{layer}.{name}.weight"]
            heads = {"self_attn.q_proj": HEADS, "self_attn.k_proj": KV_HEADS}.get(name)
            parts.append((value if heads is None else interleaved(value, heads)).numpy().tobytes())
    parts.append(tensors["model.norm.weight"].numpy().tobytes())
    parts.append(bytes(2 * 4 * CONTEXT * (DIM // HEADS // 2)))
    pieces = vocabulary() if pieces is None else pieces
    parts.append(struct.pack("<i", max(len(text) for text, _ in pieces)))
    parts += [struct.pack("<fi", score, len(text)) + text for text, score in pieces]
    return b"".join(parts)


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "toy.llama2c"
    found.write_bytes(content())
    return found


def test_configuration_and_tensors_are_those_that_were_written(path):
    checkpoint, expected = open_checkpoint(str(path)), tensors_of(CONFIG)
    config = checkpoint.config
    assert (config.hidden_size, config.intermediate_size, config.num_layers) == (DIM, HIDDEN, LAYERS)
    assert (config.num_heads, config.num_kv_heads, config.vocab_size) == (HEADS, KV_HEADS, VOCABULARY)
    assert (config.context_length, config.tie_embeddings, config.ropes[0]) == (CONTEXT, True, Rope(10000.0))
    assert sorted(checkpoint.tensors.names()) == sorted(expected)
    for name, value in expected.items():
        assert checkpoint.tensors.shape(name) == value.shape and torch.equal(checkpoint.tensors.read(name), value)
    load_model(checkpoint, dtype=torch.float32, device="cpu")


def encoded_as_llama2c_does(text, vocabulary):
    """bpe_encode of its run.c: characters or bytes, then the best merge again and again."""
    ids = {}
    for token, (piece, _) in enumerate(vocabulary):
        if token >= 259 or token < 3:
            ids[piece] = token
    tokens = []
    for character in f" {text}" if text else "":
        piece = character.encode()
        tokens += [ids[piece]] if piece in ids else [byte + 3 for byte in piece]

    def merged(left, right):
        return ids.get(vocabulary[left][0] + vocabulary[right][0]) if left >= 259 and right >= 259 else None

    while True:
        found = [(vocabulary[token][1], -at, token) for at, (left, right) in enumerate(pairwise(tokens))
                 if (token := merged(left, right)) is not None]  # fmt: skip
        if not found:
            return [1, *tokens]
        _, at, token = max(found)
        tokens[-at : -at + 2] = [token]


@pytest.mark.parametrize("text", TEXTS)
def test_text_becomes_the_tokens_that_llama2c_makes_of_it(path, text):
    tokenizer = open_checkpoint(str(path)).tokenizer
    assert tokenizer.encode(text) == encoded_as_llama2c_does(text, vocabulary())
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_bytes_that_no_piece_has_come_back_and_controls_are_named(path):
    tokenizer = open_checkpoint(str(path)).tokenizer
    assert tokenizer.encode("z中", special_tokens=False)[-4:] == [3 + byte for byte in "z中".encode()]
    assert tokenizer.decode(tokenizer.encode("z中 \n")) == "z中 \n"
    assert tokenizer.bos_token_id == 1 and tokenizer.eos_token_ids == (2,)
    assert tokenizer.special_token_ids == {1, 2}


def test_it_generates_and_can_be_quantized_into_a_folder(path, tmp_path):
    settings = {"device": "cpu", "dtype": "float32"}
    greedy = SamplingParams(max_tokens=6, ignore_eos=True)
    (done,) = LLM(str(path), **settings).generate(["the thing"], greedy)
    out = tmp_path / "out"
    quantize(open_checkpoint(str(path)), out, Recipe("int8"), None, device=torch.device("cpu"), progress=Silent())
    llm = LLM(str(out), **settings)
    assert llm.tokenizer.encode(TEXTS[0]) == open_checkpoint(str(path)).tokenizer.encode(TEXTS[0])
    assert len(llm.generate(["the thing"], greedy)[0].token_ids) == len(done.token_ids) == 6


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: data[:20], "has 20 bytes, fewer than a header"),
        (lambda data: data[:1000], "its header calls for .* bytes, it has 1000"),
        (lambda data: data[:-3], "ends inside token 319 of 320"),
        (lambda data: data[:-40], "ends (inside|at) token"),
        (lambda data: struct.pack("<i", -5) + data[4:], "its header is"),
        (lambda data: struct.pack("<i", 1 << 30) + data[4:], "its header is"),
        (lambda data: data[:12] + struct.pack("<i", 0) + data[16:], "its header is"),
        (lambda data: data[:20] + struct.pack("<i", -VOCABULARY) + data[24:], "has an output head of its own"),
    ],
)
def test_a_damaged_file_gets_one_line(tmp_path, damage, words):
    path = tmp_path / "toy.llama2c"
    path.write_bytes(damage(content()))
    with pytest.raises(CheckpointError, match=rf"toy\.llama2c: .*{words}") as error:
        open_checkpoint(str(path))
    assert "\n" not in str(error.value)


def test_a_token_that_is_no_text_is_refused(tmp_path):
    pieces = vocabulary()
    pieces[300] = (b"\xff\xfe", 0.0)
    (tmp_path / "toy.llama2c").write_bytes(content(pieces))
    with pytest.raises(CheckpointError, match="token 300 is not UTF-8"):
        open_checkpoint(str(tmp_path / "toy.llama2c"))


@pytest.mark.weights("stories15m")
def test_stories15m_tells_the_story_that_llama2c_prints():
    """The greedy answer in llama2.c's README."""
    (done,) = LLM("stories15m", device="cpu", dtype="float32").generate(
        ["Once upon a time"], SamplingParams(temperature=0, max_tokens=42)
    )
    assert done.text == (
        ", there was a little girl named Lily. She loved to play outside in the sunshine. One day, she saw a big, red "
        "ball in the sky. It was the sun! She thought"
    )
