"""Resizes a draft model to as many vocabulary rows as the model that it drafts for.

The models of a family share a tokenizer and differ in padding: Qwen2.5's small ones have rows for 151,936 tokens, the
large ones for 152,064, and both name 151,665. So the tokenizers decide whether a draft fits, and the draft is loaded in
the model's size. Kernels, graphs and the memory plan then see one vocabulary.

Rows that the model lacks are cut: the draft proposes no token that the model cannot sample. Rows that the draft lacks
repeat its last one. Their logits then tie with those of a lower id, so they are never the likeliest; the logits of a
row of zeros could be.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradus.errors import ConfigError
from gradus.loading import Checkpoint, Tokenizer
from gradus.loading.quantized.packed import Packed
from gradus.models.create import model_class
from gradus.models.weights import Prepared, TensorSource, canonical_name
from gradus.quantization.schemes import ORDERED


def fitted(draft: Checkpoint, model: Checkpoint) -> Checkpoint:
    """Resize the draft to the model's vocabulary. Raises ConfigError for a draft with a different tokenizer."""
    _check_tokens(draft, model)
    rows = model.config.vocab_size
    if draft.config.vocab_size == rows:
        return draft
    config = replace(draft.config, vocab_size=rows, bos_token_id=None, eos_token_ids=())  # the model's are used
    if draft.tensors is None:
        return replace(draft, config=config)
    kind = model_class(config.family)
    tables = {str(kind.weights[f"{part}.weight"]) for part in ("embedding", "head")}
    names = {name for name in draft.tensors.names() if canonical_name(kind, name) in tables}
    return replace(draft, config=config, tensors=_Resized(draft.tensors, frozenset(names), rows))


def _check_tokens(draft: Checkpoint, model: Checkpoint) -> None:
    ours, theirs = model.tokenizer, draft.tokenizer
    if ours is None or theirs is None:
        if draft.config.vocab_size != model.config.vocab_size:
            raise ConfigError(
                f"{draft.name} has a vocabulary of {draft.config.vocab_size} tokens and {model.name} one of "
                f"{model.config.vocab_size}, and without both tokenizers nothing says that they speak the same ones: "
                "choose a draft with its tokenizer"
            )
        return
    pairs = zip(_tokens(theirs), _tokens(ours), strict=False)  # more may follow in one, where the other has padding
    other = next(((token, *pair) for token, pair in enumerate(pairs) if pair[0] != pair[1]), None)
    if other is not None:
        raise ConfigError(
            f"{draft.name} speaks other tokens than {model.name} (token {other[0]} is {other[1]!r} there, {other[2]!r} "
            "here): choose a draft with the same tokenizer"
        )


def _tokens(tokenizer: Tokenizer) -> Iterable[bytes]:
    return map(tokenizer.token_bytes, range(tokenizer.vocab_size))


@dataclass(frozen=True)
class _Resized:
    """Wraps a TensorSource: the tensors named in `resized` get `rows` rows."""

    source: TensorSource
    resized: frozenset[str]
    rows: int

    def names(self) -> Iterable[str]:
        return self.source.names()

    def where(self, name: str) -> str:
        return self.source.where(name)

    def shape(self, name: str) -> tuple[int, ...]:
        shape = self.source.shape(name)
        return (self.rows, *shape[1:]) if name in self.resized else shape

    def read(self, name: str) -> Tensor | Prepared:
        value = self.source.read(name)
        if name not in self.resized:
            return value
        if isinstance(value, Tensor):
            return self._rows(value)
        assert isinstance(value, Packed)
        if value.scheme == "fp8-block":
            raise ConfigError(
                f"{self.where(name)}: {name!r} is in blocks of rows, which fit a model of its own size only"
            )
        count = len(value.parts) - int(value.scheme.endswith(ORDERED))  # an order has columns, not rows
        parts = *(self._rows(part) for part in value.parts[:count]), *value.parts[count:]
        return Packed(value.scheme, parts)

    def _rows(self, value: Tensor) -> Tensor:
        missing = self.rows - len(value)
        return torch.cat([value, value[-1:].expand(missing, *value.shape[1:])]) if missing > 0 else value[: self.rows]
