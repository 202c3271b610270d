"""llama2.c's format, used by the stories15M model: seven integers, float32 weights, then the tokenizer.

    header     dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len: int32
    weights    one kind of tensor after another, each for all layers, as listed in `_tensors`
    tables     cosines and sines of rotary positions, which we skip and compute
    tokenizer  the longest token's length, int32; then for each token its score, float32, its length, int32, and its
    bytes

The head is the embedding. (A negative vocab_size marks a file with a head of its own, which is refused.) Tensors get
their Hugging Face names. Rows of q and k are interleaved for another layout of rotary positions, as in GGUF, and are
reordered. Everything is little-endian, and every length is checked against the file's size before it is used.
"""

import mmap
import struct
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from gradus.errors import CheckpointError
from gradus.loading.gguf.tokenizer import BYTE, CONTROL, NORMAL, UNKNOWN, tokenizer_of
from gradus.loading.quoting import quoted
from gradus.loading.tokenizer import SPACE, Tokenizer

if TYPE_CHECKING:  # the tokenizer is read without torch
    from torch import Tensor

HEADER = struct.Struct("<7i")
TOKEN = struct.Struct("<fi")
FLOAT_BYTES = 4
UNK, BOS, EOS, FIRST_BYTE = 0, 1, 2, 3  # ids of Llama 2's tokens; the 256 bytes come next
MOST = 1 << 24  # largest number allowed in the header

Shape = tuple[int, ...]


class Llama2cFile:
    """An open file: a TensorSource, with `config` in the keys of a config.json. Raises CheckpointError in one line."""

    def __init__(self, path: Path) -> None:
        self._label = path.name
        try:
            with open(path, "rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path.name}: cannot be read: {error}") from error
        if len(self._bytes) < HEADER.size:
            self._refuse(f"has {len(self._bytes)} bytes, fewer than a header")
        self.config = self._read_config()
        self._places: dict[str, tuple[int, Shape]] = {}
        at = HEADER.size
        for name, shape in self._tensors():
            self._places[name] = at, shape
            at += FLOAT_BYTES * prod(shape)
        half = self.config["hidden_size"] // self.config["num_attention_heads"] // 2
        self._tokenizer_at = at + 2 * FLOAT_BYTES * self.config["max_position_embeddings"] * half
        if self._tokenizer_at > len(self._bytes):
            self._refuse(f"its header calls for {self._tokenizer_at} bytes, it has {len(self._bytes)} (truncated?)")

    def names(self) -> Iterable[str]:
        return self._places

    def shape(self, name: str) -> Shape:
        return self._places[name][1]

    def read(self, name: str) -> "Tensor":
        import torch

        from gradus.loading.gguf.model import uninterleave

        at, shape = self._places[name]
        raw = bytearray(self._bytes[at : at + FLOAT_BYTES * prod(shape)])  # writable, and aligned
        value = torch.frombuffer(raw, dtype=torch.float32).reshape(shape)
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
        return value if heads is None else uninterleave(value, self.config[heads])

    def where(self, name: str) -> str:
        return self._label

    def tokenizer(self) -> Tokenizer:
        """Build the tokenizer from pieces and scores, SentencePiece style: the best score merges first."""
        count = self.config["vocab_size"]
        if count < FIRST_BYTE + 256:
            self._refuse(f"its tokenizer has {count} tokens, fewer than the 256 bytes")
        tokens, scores = zip(*self._pieces(count), strict=True)
        names = {UNK: "<unk>", BOS: "<s>", EOS: "</s>"}
        names |= {FIRST_BYTE + byte: f"<0x{byte:02X}>" for byte in range(256)}
        types = {UNK: UNKNOWN, BOS: CONTROL, EOS: CONTROL, **{FIRST_BYTE + byte: BYTE for byte in range(256)}}
        metadata = {
            "model": "llama",
            "tokens": [names.get(token, text) for token, text in enumerate(tokens)],
            "scores": list(scores),
            "token_type": [types.get(token, NORMAL) for token in range(count)],
            "unknown_token_id": UNK,
            "bos_token_id": BOS,
            "eos_token_id": EOS,
        }
        return tokenizer_of({f"tokenizer.ggml.{key}": value for key, value in metadata.items()}, self._label)

    def _read_config(self) -> dict[str, Any]:
        dim, hidden, layers, heads, kv_heads, vocab, context = header = HEADER.unpack_from(self._bytes)
        if vocab < 0:
            self._refuse("has an output head of its own, which is not supported")
        if not all(0 < value <= MOST for value in header) or dim % heads or dim // heads % 2 or heads % kv_heads:
            self._refuse(f"is not of llama2.c: its header is {header}")
        return {
            "model_type": "llama",
            "hidden_size": dim,
            "intermediate_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "vocab_size": vocab,
            "max_position_embeddings": context,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": True,
            "bos_token_id": BOS,
            "eos_token_id": EOS,
        }

    def _tensors(self) -> Iterator[tuple[str, Shape]]:
        """List names and shapes in the order of the file."""
        config = self.config
        dim, hidden = config["hidden_size"], config["intermediate_size"]
        kv_dim = dim // config["num_attention_heads"] * config["num_key_value_heads"]
        layered: dict[str, Shape] = {
            "input_layernorm": (dim,),
            "self_attn.q_proj": (dim, dim),
            "self_attn.k_proj": (kv_dim, dim),
            "self_attn.v_proj": (kv_dim, dim),
            "self_attn.o_proj": (dim, dim),
            "post_attention_layernorm": (dim,),
            "mlp.gate_proj": (hidden, dim),
            "mlp.down_proj": (dim, hidden),
            "mlp.up_proj": (hidden, dim),
        }
        yield "model.embed_tokens.weight", (config["vocab_size"], dim)
        for part, shape in layered.items():
            for layer in range(config["num_hidden_layers"]):
                yield f"model.layers.{layer}.{part}.weight", shape
        yield "model.norm.weight", (dim,)

    def _pieces(self, count: int) -> Iterator[tuple[str, float]]:
        """Read each token's text and score. llama2.c writes SentencePiece's ▁ as a space."""
        data, at = self._bytes, self._tokenizer_at + 4
        for token in range(count):
            if at + TOKEN.size > len(data):
                self._refuse(f"its tokenizer ends at token {token} of {count} (truncated?)")
            score, length = TOKEN.unpack_from(data, at)
            at += TOKEN.size
            if not 0 <= length <= len(data) - at:
                self._refuse(f"its tokenizer ends inside token {token} of {count} (truncated?)")
            try:
                yield data[at : at + length].decode("utf-8").replace(" ", SPACE), score
            except UnicodeDecodeError:
                self._refuse(f"token {token} is not UTF-8: {quoted(data[at : at + length])}")
            at += length

    def _refuse(self, problem: str) -> NoReturn:
        raise CheckpointError(f"{self._label}: {problem}")
