"""Decodes on a CPU without a gather: a block table is the pattern of a sparse matrix.

Put all keys of a layer into one matrix, one row per position and head, [rows * Hkv, Dh], and the queries of all
sequences and heads into another, [B * Hq, Dh]. Only a few entries of their product are needed: those where a query
meets a key that it sees. That is a sampled product (SDDMM), with the pattern of the block tables. The weighted sum of
values is a product with a sparse matrix of the same pattern. Torch's CPU kernels for both read rows in place and
compute only the needed entries: no copy of the cache, no padding to the longest, no mask.

At SmolLM2's shape (32 sequences of 64 to 320 positions) this takes about half the time of gathering and attending.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from gradus.attention.decodes import Visible
from gradus.attention.storage import PagedStorage
from gradus.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Pattern:
    """The keys that each query sees in one layer group: E entries in B * Hq lines, one per sequence and query head.

    entries: sparse CSR [B * Hq, rows * Hkv], whose values each layer overwrites. ends: [B * Hq + 1], line i being the
    entries ends[i] to ends[i + 1]; columns: [E], the row of each entry's key and value.
    padded: [B * Hq, L], -inf where a line has no entry, since softmax needs a rectangle. cells: [E], the entries'
    places in it.
    """

    entries: Tensor
    ends: Tensor
    columns: Tensor
    padded: Tensor
    cells: Tensor


class SparseDecodes:
    """Two sparse products and a softmax per layer, only for float32 on a CPU: torch lacks such kernels for other
    types."""

    @staticmethod
    def supports(storage: PagedStorage) -> bool:
        return storage.keys.is_cpu and storage.keys.dtype == torch.float32

    def __init__(self, config: ModelConfig, storage: PagedStorage) -> None:
        self.config = config
        self.storage = storage
        # each layer's keys and values as matrices, [rows * Hkv, Dh]: views
        self.matrices = [[part.flatten(0, 1) for part in storage.rows(layer)] for layer in range(config.num_layers)]
        heads = torch.arange(config.num_heads)
        # each query head's key head, in each layer group
        self.heads = [heads // (config.num_heads // group.num_kv_heads) for group in storage.groups]
        with warnings.catch_warnings():  # torch warns once that CSR tensors are in beta: trigger and silence it here
            warnings.simplefilter("ignore")
            _csr(torch.zeros(2, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), count=1)

    def prepare(self, visible: Sequence[Visible]) -> None:
        self.patterns = [self._pattern(number, group) for number, group in enumerate(visible)]

    def _pattern(self, number: int, visible: Visible) -> Pattern:
        group, heads = self.storage.groups[number], self.heads[number]
        size, width = visible.rows.shape
        lines = size * len(heads)
        columns = visible.rows.unsqueeze(1) * group.num_kv_heads + heads.unsqueeze(1)  # [B, Hq, L]
        cells = visible.seen.unsqueeze(1).expand(columns.shape).flatten().nonzero().squeeze(1)
        columns = columns.flatten().index_select(0, cells)
        ends = torch.zeros(lines + 1, dtype=torch.int64)
        torch.cumsum(visible.seen.sum(1).repeat_interleave(len(heads)), 0, out=ends[1:])
        count = len(self.matrices[group.layers[0]][0])
        return Pattern(_csr(ends, columns, count), ends, columns, torch.full((lines, width), float("-inf")), cells)

    def attend(self, layer: int, q: Tensor, sinks: Tensor | None = None) -> Tensor:
        pattern = self.patterns[self.storage.place(layer)[0]]
        keys, values = self.matrices[layer]
        scores = torch.sparse.sampled_addmm(
            pattern.entries, q.flatten(0, 1), keys.t(), beta=0.0, alpha=self.config.attention_scale
        ).values()
        cap = self.config.attention_softcap
        scores = scores if cap is None else cap * torch.tanh(scores / cap)
        pattern.padded.view(-1).scatter_(0, pattern.cells, scores)
        weights = _softmax(pattern.padded, sinks).view(-1).index_select(0, pattern.cells)
        # a bag is a line of the sparse matrix: the weighted sum of its columns' values
        out = F.embedding_bag(
            pattern.columns, values, pattern.ends, mode="sum", per_sample_weights=weights, include_last_offset=True
        )
        return out.view(q.shape)


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Softmax of [B * Hq, L], with each head's sink as one more score."""
    if sinks is None:
        return scores.softmax(-1)
    ends = sinks.repeat(len(scores) // len(sinks)).unsqueeze(1)
    return torch.cat((scores, ends), 1).softmax(-1)[:, :-1].contiguous()


def _csr(ends: Tensor, columns: Tensor, count: int) -> Tensor:
    """Make a sparse matrix of `count` columns whose entries are zeros."""
    return torch.sparse_csr_tensor(
        ends, columns, torch.zeros(len(columns)), size=(len(ends) - 1, count), check_invariants=False
    )
