"""One decode step, made twice: by the compiled kernels, and by the model's torch forward over pages of its own.

Compiling takes half a minute, and its result is kept beside the sources. So nothing here calls a kernel's inner
functions, which numba would compile for the call alone: all goes through `DecodeModel`, as the engine does.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from gradus.attention.batch import Batch
from gradus.attention.paged import PagedAttention
from gradus.attention.storage import PagedStorage
from gradus.kernels.cpu.activations import MOST_ROWS
from gradus.kernels.cpu.model import DecodeModel
from gradus.models import SHAPES, Linear, LinearFactory, MatrixId, Model, create_model, randomize
from gradus.quantization.linear import QuantizedLinear
from gradus.quantization.parts import SideBySide

FEW, SOME, MANY = 9, 33, MOST_ROWS + 1
"""Slots that pages are made for: of up to 8 sequences, of up to 32, and of all that a step takes."""

ROOM = 256
"""Positions that a sequence has pages for, unless a test needs more: filling them costs more than a step."""


def made(
    shape: str, linear: LinearFactory = Linear, dtype: torch.dtype = torch.float32, std: float = 0.1, **numbers: int
) -> Model:
    """A model of noise, with room for the contexts of most tests. numbers: of its configuration, where they differ from
    the shape's."""
    config = replace(SHAPES[shape], **({"context_length": ROOM} | numbers))
    model = create_model(config, dtype=dtype, linear=linear)
    randomize(model, seed=5, std=std)
    for name, parameter in model.named_parameters():  # what noise leaves out
        if "bias" in name:
            parameter.copy_(torch.randn(parameter.shape, generator=generator(len(name))) / 8)
    return model


def only(role: str, linear: LinearFactory) -> LinearFactory:
    """A factory that makes the matrices of one role in another way."""

    def make(matrix_id: MatrixId, *arguments) -> Linear:
        return (linear if matrix_id.role == role else Linear)(matrix_id, *arguments)

    return make


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@lru_cache(16)  # of pages, which most tests make alike
def noise(shape: tuple[int, ...], seed: int) -> Tensor:
    """Nobody writes to it: the next test has the same."""
    return torch.randn(shape, generator=generator(seed))


def widened(model: Model) -> Model:
    """Return the model with its stored matrices in float32: equivalent except for int8, which rounds activations."""
    plain = create_model(replace(model.config, tie_embeddings=False))  # integers are no table: that is a copy
    for (_, mine), (_, theirs) in zip(plain.named_modules(), _modules(model), strict=True):
        if isinstance(mine, Linear):
            mine.weight.copy_(dense(theirs))
            if mine.bias is not None:
                mine.bias.copy_(_bias(theirs))
        else:
            for name, value in mine.named_parameters(recurse=False):
                value.copy_(getattr(theirs, name))
    if hasattr(model, "embedding_scale"):
        plain.embedding_scale = model.embedding_scale  # rounded to the table's type
    return plain


def _modules(model: Model):
    """Without the parts of a matrix, which a plain one has not."""
    parts = {
        part for one in model.modules() if isinstance(one, SideBySide) for part in one.modules() if part is not one
    }
    return [(name, one) for name, one in model.named_modules() if one not in parts]


def dense(linear: Linear) -> Tensor:
    """float32 [N, K]."""
    if isinstance(linear, SideBySide):
        return torch.cat([dense(part) for part in linear.parts])
    return linear.dequantized() if isinstance(linear, QuantizedLinear) else linear.weight.float()


def _bias(linear: Linear) -> Tensor:
    return torch.cat([_bias(part) for part in linear.parts]) if isinstance(linear, SideBySide) else linear.bias.float()


class Pages:
    """Pages of a model's keys and values, filled with noise. Two made alike hold the same.

    Each slot's pages lie scattered, backwards, and between those of the others; each layer group has its own.
    """

    def __init__(self, model: Model, page_size: int = 16, dtype: torch.dtype = torch.float32, slots: int = FEW) -> None:
        config = model.config
        longest = -(-config.context_length // page_size)
        groups = len(PagedStorage(config, 1, page_size, dtype, torch.device("cpu")).groups)
        count = groups * slots * longest
        self.storage = PagedStorage(config, count, page_size, dtype, torch.device("cpu"))
        for kept, seed in ((self.storage.keys, 1), (self.storage.values, 2)):
            kept.copy_(noise(tuple(kept.shape), seed))
        self.attention = PagedAttention(config, self.storage, slots=slots)
        order = torch.randperm(count, generator=generator(3)) + 1
        for table, group, mine in zip(self.attention.tables, self.storage.groups, order.chunk(groups), strict=True):
            table.copy_(mine.view(slots, longest) * group.together)

    def decode_model(self, model: Model, threads: int = 2, beside: Sequence[Linear] = ()) -> DecodeModel:
        storage = self.storage
        return DecodeModel(
            model,
            cache=[(*storage.rows(layer), storage.place(layer)[0]) for layer in range(model.config.num_layers)],
            tables=self.attention.tables,
            page_size=storage.page_size,
            windows=[group.window for group in storage.groups],
            threads=threads,
            extra_linears=beside,
        )


class Step:
    """New tokens of some slots. contexts: how many positions each has stored before; counts: how many tokens are new,
    one each by default."""

    def __init__(self, model: Model, contexts: Sequence[int], counts: Sequence[int] | None = None) -> None:
        self.contexts, self.counts = contexts, [1] * len(contexts) if counts is None else counts
        several = len(contexts)
        room = next(slots for slots in (FEW, SOME, MANY) if several < slots)
        self.slots = [(3 + 2 * i) % room for i in range(several)]
        spans = list(zip(contexts, self.counts, strict=True))
        self.positions = torch.tensor([start + more for start, count in spans for more in range(count)])
        self.before = [number for count in self.counts for number in range(count)]
        self.tokens = torch.randint(model.config.vocab_size, (sum(self.counts),), generator=generator(several))

    def each_row(self, values: Sequence[int]) -> list[int]:
        """Repeat each slot's value for its rows."""
        return [value for value, count in zip(values, self.counts, strict=True) for _ in range(count)]

    @property
    def columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Each row's token, position and slot."""
        return self.tokens.numpy(), self.positions.numpy(), np.array(self.each_row(self.slots))

    @torch.inference_mode()
    def in_torch(self, model: Model, pages: Pages) -> Tensor:
        """The model's own forward: logits [R, V]."""
        rows, spans = len(self.tokens), range(len(self.slots))
        batch = Batch(
            token_ids=self.tokens,
            positions=self.positions,
            owners=torch.tensor(self.each_row(self.slots)),
            slots=self.slots,
            query_start=[sum(self.counts[:span]) for span in spans],
            counts=list(self.counts),
            starts=list(self.contexts),
            lengths=[start + count for start, count in zip(self.contexts, self.counts, strict=True)],
            tables=[None] * len(self.slots),
            logits_rows=torch.arange(rows),
            row_spans=self.each_row(spans),
        )
        pages.attention.prepare(batch)
        return model.logits(model(self.tokens, self.positions, pages.attention))

    @torch.inference_mode()
    def compiled(self, decode: DecodeModel) -> Tensor:
        return decode.run(*self.columns, np.array(self.before)).clone()


def poison(decode: DecodeModel) -> None:
    """Fill a step's working memory with values that no result may contain, except the description of its work."""
    division = {"chunks", "rows", "contexts", "spans", "span_starts"}
    description = division | {"shape", "heads", "stages", "matrices", "layers", "mixtures"}
    for name, array in (*decode.step._asdict().items(), *decode.step.room._asdict().items()):
        if name not in description | {"room"}:
            array.fill(np.nan if array.dtype.kind == "f" else np.iinfo(array.dtype).max)
    for worker in decode.work.workers:
        for array in (*worker.rows, *worker.scratch, *worker.block, worker.products):
            array.fill(np.nan if array.dtype.kind == "f" else 77)


def same(found: Tensor, expected: Tensor) -> None:
    """Assert equality to the last bit, and report how many values differ and by how much."""
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-4) -> None:
    """Within `tolerance` of the largest logit, and of the same opinion where that is clear."""
    assert found.shape == expected.shape and found.isfinite().all()
    largest = expected.abs().amax(1, keepdim=True)
    assert ((found - expected).abs() <= tolerance * largest).all(), ((found - expected).abs() / largest).max()
    first, second = expected.topk(2).values.unbind(1)
    clear = first - second > 2 * tolerance * largest.squeeze(1)
    assert torch.equal(found.argmax(1)[clear], expected.argmax(1)[clear])
