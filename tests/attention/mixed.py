"""Models whose layers differ in their heads, and layers that read another's keys and values: pages and formula."""

import random
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gradus.attention.batch import Batch
from gradus.attention.paged import PagedAttention
from gradus.attention.storage import PagedStorage
from gradus.cache import TableChange
from gradus.models.config import LayerSizes, ModelConfig, Rope

SLIDING, FULL = 6, None


def mixed(
    heads: int,
    sliding: tuple[int, int],
    full: tuple[int, int],
    windows: Sequence[int | None],
    sources: Sequence[int] = (),
    **changed: object,
) -> ModelConfig:
    """Make a tiny model. sliding, full: (num_kv_heads, head_dim) of layers with a window, and without."""
    layers = len(windows)
    each = [full if window is None else sliding for window in windows]
    settings = {
        "family": "gemma3", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_layers": layers,
        "num_heads": heads, "num_kv_heads": sliding[0], "head_dim": sliding[1], "context_length": 96, "norm_eps": 1e-6,
        "activation": "gelu_tanh", "tie_embeddings": True, "attention_bias": False, "attention_output_bias": False,
        "mlp_bias": False, "ropes": (Rope(10000.0),) * layers, "windows": tuple(windows), "attention_scale": 0.35,
        "attention_softcap": None, "final_softcap": None, "bos_token_id": None, "eos_token_ids": (),
        "sizes": tuple(LayerSizes(*sizes, 48) for sizes in each), "kv_sources": tuple(sources),
    }  # fmt: skip
    return ModelConfig(**settings | changed)  # type: ignore[arg-type]


MIXED = {
    # as in Gemma 4 12B: full layers are narrower, and two share a strip
    "narrow full layers": mixed(4, (4, 8), (1, 16), [6, FULL, 6, 6, FULL, 6, FULL]),
    # as in Gemma 4 E2B: layers with a window are narrower, and the last three layers have no keys and values
    "wide full layers": mixed(2, (1, 8), (1, 16), [6, 6, FULL, 6, 6, 6, 6, FULL, 6], (0, 1, 2, 3, 4, 5, 4, 2, 5)),
    # 24 values and 16: a strip holds two layers of the one kind, or three of the other
    "neither divides": mixed(6, (3, 8), (1, 16), [6, FULL, 6, 6, FULL, 6, 6, FULL, FULL]),
    "one size": mixed(4, (2, 8), (2, 8), [6, 6, FULL, 6], (0, 1, 2, 1), sizes=()),
    "no windows": mixed(4, (2, 8), (1, 8), [FULL] * 3, sizes=tuple(LayerSizes(n, 8, 48) for n in (2, 1, 1))),
    "capped": mixed(4, (4, 8), (1, 16), [6, FULL, 6, 6, FULL, 6, FULL], attention_softcap=5.0),
    # as in gpt-oss: every other layer has a window, and eight query heads share a key head
    "sinks": mixed(16, (2, 8), (2, 8), [6, FULL, 6, FULL], sizes=(), attention_sinks=True),
}


class MixedPages:
    """Keys and values of some slots on pages in random order, and all that attention should see.

    attend: (layer, q, k, v, sinks) → what a backend computes; the torch backend's by default.
    """

    def __init__(
        self,
        config: ModelConfig,
        storage: PagedStorage,
        attention: PagedAttention,
        attend: Callable[..., Tensor] | None = None,
    ) -> None:
        self.config, self.storage, self.attention = config, storage, attention
        self.attend = attend or attention.attend
        self.generator = torch.Generator().manual_seed(0)
        count = storage.keys.shape[1] - 1
        self.free = random.Random(0).sample(range(1, count + 1), count)
        self.tables: dict[int, list[list[int]]] = {}
        self.history: dict[int, list[list[Tensor]]] = {}  # slot → by layer: q, and k and v of layers that have them

    def step(self, *spans: tuple[int, int], wiped: tuple[int, ...] = ()) -> list[Tensor]:
        """Run (slot, count) spans; returns [rows, Hq, Dh] of each layer."""
        starts = [self.history[slot][0][0].shape[0] if slot in self.history else 0 for slot, _ in spans]
        changes = [self.grow(slot, start + n) for (slot, n), start in zip(spans, starts, strict=True)]
        new = [self._new(slot, count) for slot, count in spans]
        batch = batch_of(spans, starts, changes)
        batch.wiped = wiped
        self.attention.prepare(batch)
        found = []
        for layer in range(self.config.num_layers):
            q, k, v = (torch.cat(each) if each else None for each in self._by_kind(new, layer))
            found.append(self.attend(layer, q, k, v, sinks_of(self.config, layer)))
        return found

    def _by_kind(self, new: list[list[list[Tensor]]], layer: int) -> list[list[Tensor]]:
        parts = [list(each) for each in zip(*(span[layer] for span in new), strict=True)]
        return parts if len(parts) == 3 else [*parts, [], []]

    def _new(self, slot: int, count: int) -> list[list[Tensor]]:
        """Make new rows of a slot, and add them to its history."""
        new = []
        for layer in range(self.config.num_layers):
            sizes = self.config.layer(layer)
            heads = [sizes.num_heads, sizes.num_kv_heads, sizes.num_kv_heads]
            heads = heads if self.config.stores_kv(layer) else heads[:1]
            shapes = [(count, each, sizes.head_dim) for each in heads]
            new.append([torch.randn(s, generator=self.generator).to(self.storage.dtype) for s in shapes])
        old = self.history.get(slot, [[part[:0] for part in layer] for layer in new])
        self.history[slot] = [
            [torch.cat(pair) for pair in zip(*parts, strict=True)] for parts in zip(old, new, strict=True)
        ]
        return new

    def grow(self, slot: int, end: int) -> TableChange | None:
        tables = self.tables.setdefault(slot, [[] for _ in self.storage.groups])
        had = len(tables[0])
        for table in tables:
            table += [self.free.pop() for _ in range(-(-end // self.storage.page_size) - had)]
        return TableChange(had, tuple(tuple(table[had:]) for table in tables)) if len(tables[0]) > had else None

    def give_back(self, slot: int) -> list[tuple[int, int]]:
        """Give back the pages that no later query of a slot sees, as the cache manager does: (group, page) each."""
        size, length, gone = self.storage.page_size, self.history[slot][0][0].shape[0], []
        for number, group in enumerate(self.storage.groups):
            first = 0 if group.window is None else max(0, length - group.window + 1) // size
            table = self.tables[slot][number]
            gone += [(number, page) for page in table[:first] if page]
            table[:first] = [0] * first
        self.free += [page for _, page in gone]
        self.attention.update_tables([(slot, TableChange(0, tuple(map(tuple, self.tables[slot]))))])
        return gone

    def right(self, *spans: tuple[int, int], kept: Callable[[Tensor], Tensor] = lambda x: x) -> list[Tensor]:
        """Return the right results of the last step. kept: rounds keys and values as the cache does."""
        found = []
        for layer in range(self.config.num_layers):
            source = self.config.kv_source(layer)
            each = [(self.history[slot][layer][0][-n:], *self.history[slot][source][1:]) for slot, n in spans]
            sinks = sinks_of(self.config, layer)
            found.append(torch.cat([formula(self.config, layer, q, kept(k), kept(v), sinks) for q, k, v in each]))
        return found


def sinks_of(config: ModelConfig, layer: int) -> Tensor | None:
    """A layer's sinks, some greater than any score and some below all: float32 [Hq]."""
    draw = torch.Generator().manual_seed(layer)
    return 3 * torch.randn(config.num_heads, generator=draw) if config.attention_sinks else None


def formula(config: ModelConfig, layer: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> Tensor:
    """Attend in float64 with the last rows of a sequence, [n, Hq, Dh], over all of it."""
    group, n, m = config.num_heads // k.shape[1], len(q), len(k)
    k, v = (each.double().repeat_interleave(group, 1) for each in (k, v))
    scores = torch.einsum("nhd,mhd->hnm", q.double(), k) * config.attention_scale
    if config.attention_softcap is not None:
        scores = config.attention_softcap * torch.tanh(scores / config.attention_softcap)
    behind = torch.arange(m - n, m)[:, None] - torch.arange(m)[None]
    window = config.windows[layer] or m
    scores = scores.masked_fill((behind < 0) | (behind >= window), float("-inf"))
    if sinks is not None:
        scores = torch.cat((scores, sinks.double()[:, None, None].expand(-1, n, 1)), -1)
    return torch.einsum("hnm,mhd->nhd", scores.softmax(-1)[..., :m], v)


def batch_of(spans: Sequence[tuple[int, int]], starts: Sequence[int], changes: Sequence[TableChange | None]) -> Batch:
    counts = [count for _, count in spans]
    positions = torch.cat([torch.arange(start, start + n) for start, n in zip(starts, counts, strict=True)])
    return Batch(
        token_ids=torch.zeros_like(positions),
        positions=positions,
        owners=torch.tensor([slot for slot, count in spans for _ in range(count)]),
        slots=[slot for slot, _ in spans],
        query_start=[sum(counts[:i]) for i in range(len(counts))],
        counts=counts,
        starts=list(starts),
        lengths=[start + n for start, n in zip(starts, counts, strict=True)],
        tables=list(changes),
        logits_rows=torch.tensor([], dtype=torch.int64),
        row_spans=[],
    )


def near(found: Sequence[Tensor], right: Sequence[Tensor], tolerance: float = 1e-5) -> bool:
    return all(
        torch.allclose(a.double(), b.double(), atol=tolerance, rtol=0) for a, b in zip(found, right, strict=True)
    )
