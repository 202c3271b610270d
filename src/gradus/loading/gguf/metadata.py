"""A model's metadata in a GGUF file, `<architecture>.<key>`, read strictly.

llama.cpp has keys for all of its architectures, and many of them change what a model computes. A file with such a key
that its reader here does not ask for is refused by name, unless the value changes nothing.
"""

import re
from collections.abc import Mapping
from math import isclose
from typing import Any, NoReturn

from gradus.errors import CheckpointError
from gradus.loading.gguf.file import GGUFFile
from gradus.loading.quoting import quoted
from gradus.models.families.hf.shared import MOST_LAYERS

NUMBERS = (int, float)

CHANGES = re.compile(  # keys that change what a model computes, in some architecture or other
    r"(attention|rope|ssm|kda|wkv|shortconv|altup|posnet|convnext)\..*"
    r"|(expert|moe_|swiglu_|time_|token_shift_).*"
    r"|.*(_scale|softcapping)"
    r"|use_parallel_residual|swin_norm|rescale_every_n_layers|full_attention_interval|interleave_moe_layer_step"
    r"|leading_dense_block_count|nextn_predict_layers|features_length|embedding_length_(out|per_layer_input)"
    r"|decoder_block_count|dense_\d_feat_(in|out)"
)
UNUSED = {  # by the architectures that are read here, whatever the values
    "rope.scaling.finetuned",  # except Granite, which asks for it
    "rope.scaling.original_context_length",  # read where a scaling depends on it
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
    "decoder_block_count",
}
FACTORS = re.compile(r".*(_scale|\.scale|_factor)")  # 1 changes nothing


class Metadata:
    """The pairs of one file's architecture. It remembers the keys that are asked for."""

    def __init__(self, file: GGUFFile, architecture: str) -> None:
        self.file = file
        self.label = file.path.name
        self.prefix = architecture
        self._asked: set[str] = set()

    def integer(self, key: str, default: int | None = None) -> int:
        """A number, perhaps listed for each layer, which are then all the same."""
        value = self.get(key, default)
        if (
            isinstance(value, list)
            and value
            and len(value) == self.get("block_count", None)
            and value.count(value[0]) == len(value)
        ):
            value = value[0]
        if type(value) is not int:
            self.refuse(key, f"must be an integer, got {quoted(value)}")
        return value

    def layers(self) -> int:
        """The number of layers, small enough to list something of each."""
        count = self.integer("block_count")
        if not 1 <= count <= MOST_LAYERS:
            self.refuse("block_count", f"must be between 1 and {MOST_LAYERS}, got {count}")
        return count

    def each(self, key: str, layers: int) -> list[int]:
        """One number per layer, or the same one for all."""
        value = self.get(key, None)
        values = value if isinstance(value, list) else [value] * layers
        if len(values) != layers or not all(type(item) is int for item in values):
            self.refuse(key, f"must be an integer, or one for each of {layers} layers, got {quoted(value)}")
        return values

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if type(value) not in NUMBERS:
            self.refuse(key, f"must be a number, got {quoted(value)}")
        return float(value)

    def get(self, key: str, default: Any) -> Any:
        self._asked.add(key)
        value = self.file.metadata.get(f"{self.prefix}.{key}", default)
        if value is None:
            self.refuse(key, "is missing")
        return value

    def disregard(self, pattern: str) -> None:
        """Count keys as asked for: they belong to parts that this model does not have."""
        start = f"{self.prefix}."
        keys = (name.removeprefix(start) for name in self.file.metadata if name.startswith(start))
        self._asked |= {key for key in keys if re.fullmatch(pattern, key)}

    def has(self, key: str) -> bool:
        return f"{self.prefix}.{key}" in self.file.metadata

    def refuse(self, key: str, problem: str) -> NoReturn:
        raise CheckpointError(f"{self.label}: metadata {self.prefix}.{key} {problem}")

    def rows(self, tensor: str) -> int:
        entry = self.file.tensors.get(tensor)
        if entry is None:
            raise CheckpointError(f"{self.label}: tensor {tensor!r} is missing")
        return entry.shape[0]

    def special_tokens(self) -> dict[str, Any]:
        ids = {name: self.file.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos")}
        return {f"{name}_token_id": token for name, token in ids.items()}

    def refuse_unread(self, usual: Mapping[str, float]) -> None:
        """Refuse the first key that changes the model and was not asked for, by its name and value.

        usual: key → the value that changes nothing. Raises CheckpointError.
        """
        start = f"{self.prefix}."
        for key in sorted(name.removeprefix(start) for name in self.file.metadata if name.startswith(start)):
            value = self.file.metadata[start + key]
            if key in self._asked or key in UNUSED or not CHANGES.fullmatch(key):
                continue
            if not _changes_nothing(key, value, usual.get(key)):
                self.refuse(key, f"= {quoted(value)} changes what the model computes, and is not supported")


def _changes_nothing(key: str, value: Any, usual: float | None) -> bool:
    if isinstance(value, list):
        return all(_changes_nothing(key, item, usual) for item in value)
    if key == "attention.causal":
        return value is True
    if isinstance(value, str) or not value:
        return not value
    neutral = 1.0 if usual is None and FACTORS.fullmatch(key) else usual
    return neutral is not None and isclose(value, neutral, rel_tol=1e-5)
