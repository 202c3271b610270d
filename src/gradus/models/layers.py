"""The parts that models are built from (linear layers, embeddings, norms), and the base class of models.

Nothing here knows requests, caches, phases or batches: rows of tokens go in, rows of tokens come out. Weights are
allocated but not initialized; `gradus.models.weights` fills them from a checkpoint, `randomize` with noise.
"""

from collections.abc import Callable, Mapping
from copy import copy
from typing import ClassVar, Literal, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradus.models.attention import Attention
from gradus.models.config import CLAMP, CLAMPED, STEEPNESS, ModelConfig
from gradus.models.rope import has_frequencies
from gradus.models.source import Ignored, Source

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


class Activation(nn.Module):
    """The MLP's nonlinearity, by its name in ACTIVATIONS: [N, F] → [N, F]."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.function = name, ACTIVATIONS[name]

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)

    def times(self, x: Tensor, by: Tensor) -> Tensor:
        """The activated x, multiplied by another tensor of its shape, whose rows may lie apart (Gemma 4)."""
        return self.forward(x) * by


class Gated(Activation):
    """[N, 2 F] → [N, F]: the activated first half decides how much of each feature of the second passes."""

    def forward(self, x: Tensor) -> Tensor:
        gate, up = x.chunk(2, dim=-1)
        return self.function(gate) * up


class Clamped(Gated):
    """gpt-oss's gate: silu(1.702 g) / 1.702 times u + 1, both clamped, g from above alone."""

    def __init__(self) -> None:
        super().__init__("silu")
        self.name = CLAMPED

    def forward(self, x: Tensor) -> Tensor:
        gate, up = x.chunk(2, dim=-1)
        gate, up = gate.clamp(max=CLAMP), up.clamp(-CLAMP, CLAMP)
        return gate * torch.sigmoid(STEEPNESS * gate) * (up + 1)


def gated(name: str) -> Gated:
    """The gate by its name."""
    return Clamped() if name == CLAMPED else Gated(name)


Role = Literal[
    "qkv", "attn_out", "gate_up", "down", "head", "embed_in", "embed_gate", "embed_out",
    "router", "shared_gate", "experts_up", "experts_down",
]  # fmt: skip


class MatrixId(NamedTuple):
    """A matrix's place in a model, by which a factory decides how to store, shard and multiply it.

    role: the product that makes queries, keys and values; the one after attention; the MLP's first, gated or not, and
    its second; the output head; with embeddings per layer (Gemma 4) the one that makes every layer's input of a token,
    and a layer's two around it; and with experts the small one that chooses them and the one that gates the MLP which
    all tokens share (both never quantized), and the experts' first and second, stacked. layer: counted from 0, None for
    the head and the inputs.
    """

    role: Role
    layer: int | None


FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


class Linear(nn.Module):
    """y = x Wᵀ + b, for one matrix or several that read the same input.

    out_features is a tuple: (q, k, v) is one fused product whose output is the three side by side, [N, q + k + v].
    One large product is faster than three small ones, and at one row per step it is read from memory in one stream.

    A subclass may store weights in another way (narrower, packed, sharded): override `allocate`, `assign`, which
    receives them, and `forward`. `dtype` is the activations' dtype. The subclass chooses the type of the weights, and
    may return a narrower type than x's. No model file changes, because none assumes that `weight` or the result has x's
    dtype. A subclass with its own `forward` may also have its own kernels: see `gradus.kernels.core.view`.
    """

    accepted: ClassVar[frozenset[torch.dtype]] = FLOATS
    """Types that a checkpoint may store these weights in, and `assign` understands."""

    weight: Tensor  # [sum(out_features), in_features]
    bias: Tensor | None  # [sum(out_features)]

    def __init__(
        self,
        matrix_id: MatrixId,
        in_features: int,
        out_features: tuple[int, ...],
        bias: bool,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        self.matrix_id = matrix_id
        self.in_features, self.out_features, self.has_bias = in_features, out_features, bias
        self.allocate(dtype, device)
        self.bias = parameter((sum(out_features),), dtype, device) if bias else None

    def allocate(self, dtype: torch.dtype, device: torch.device | str) -> None:
        """Memory for the matrix, [sum(out_features), in_features]."""
        self.weight = parameter((sum(self.out_features), self.in_features), dtype, device)

    def assign(self, name: str, start: int, value: Tensor) -> None:
        """Take rows start, start + 1, … of `name` ("weight" or "bias"): of an `accepted` type, on any device."""
        getattr(self, name)[start : start + value.shape[0]].copy_(value)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    # Every product follows a norm, or precedes an activation or a sum. A layer asks for them together, so that one
    # kernel may compute both without a change to the model. (`forward` is called by its name here, because the detour
    # through nn.Module costs a CPU as much as a small operation.)

    def part(self, first: int, end: int) -> "Linear":
        """Rows first to end as a matrix of their own, in the same memory: an expert's."""
        part = copy(self)
        part.out_features = (end - first,)
        part._parameters = {
            name: None if value is None else nn.Parameter(self.rows_of(name, value, first, end), requires_grad=False)
            for name, value in self._parameters.items()
        }
        part._buffers = {
            name: None if value is None else self.rows_of(name, value, first, end)
            for name, value in self._buffers.items()
        }
        vars(part).update(part._parameters, **part._buffers)
        return part

    def rows_of(self, name: str, value: Tensor, first: int, end: int) -> Tensor:
        """Return the part of one of its tensors that belongs to rows first to end: a view."""
        return value[first:end]

    def after(self, norm: "RMSNorm | nn.LayerNorm | None", x: Tensor, then: Activation | None = None) -> Tensor:
        """Normalize the rows, multiply them, and apply the activation."""
        out = self.forward(x if norm is None else norm.forward(x))
        return out if then is None else then.forward(out)

    def onto(self, stream: Tensor, x: Tensor) -> Tensor:
        """Return stream + the product of x. It may overwrite `stream`, so the caller must use only the result."""
        return stream + self.forward(x)


class LinearFactory(Protocol):
    """Makes every matrix of a model. `Linear` itself is one; quantization and parallelism have others."""

    def __call__(
        self,
        matrix_id: MatrixId,
        in_features: int,
        out_features: tuple[int, ...],
        bias: bool,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> Linear: ...


class Embedding(nn.Module):
    """One row per token: [N] ids → [N, D] in `dtype`.

    shared: the output head, if embeddings are tied. Its matrix [V, D] is the table to look up here, so where the head
    keeps it in floating point, both hold the same tensor and it costs memory once. The same holds for a head with a
    `lookup`, which widens the rows of some tokens. Any other head (integers with a scale per row) cannot be read by
    row; the table is then a separate copy.
    table: a matrix with a `lookup` that is this table and no head: see `packed_table`.
    """

    def __init__(
        self,
        rows: int,
        width: int,
        dtype: torch.dtype,
        device: torch.device | str,
        shared: Linear | None = None,
        table: Linear | None = None,
    ) -> None:
        super().__init__()
        self.dtype = self.table_dtype = dtype
        self.table = table
        self.lookup: Callable[[Tensor], Tensor] | None = getattr(shared if table is None else table, "lookup", None)
        weight = getattr(shared, "weight", None)
        if isinstance(weight, nn.Parameter) and weight.shape == (rows, width) and weight.is_floating_point():
            self.weight, self.table_dtype = weight, weight.dtype
        elif self.lookup is None:
            self.weight = parameter((rows, width), dtype, device)

    def forward(self, ids: Tensor) -> Tensor:
        return (F.embedding(ids, self.weight) if self.lookup is None else self.lookup(ids)).to(self.dtype)

    def rounded(self, factor: float) -> float:
        """A factor of rows in the table's type, in which Gemma was trained with it: sqrt(1152) is 34 in bfloat16, and
        not 33.94."""
        return torch.tensor(factor, dtype=self.table_dtype).item()

    def floats(self) -> Tensor:
        """The whole table, [V, D]: a copy in `dtype` where rows are widened as they are looked up."""
        if self.lookup is None:
            return self.weight
        found = self.lookup.__self__  # type: ignore[attr-defined]
        return cast(Tensor, found.dequantized().to(self.dtype))


EMBEDDING = "embedding.weight"  # the path of the tokens' table in the families' tables of weights


def packed_table(
    linear: LinearFactory,
    rows: int,
    width: int,
    dtype: torch.dtype,
    device: torch.device | str,
    path: str = EMBEDDING,
) -> Linear | None:
    """The factory's matrix for an embedding that is no head, if it keeps one in fewer bits; None: floats.

    path: the embedding's in the family's table of weights.
    """
    make = getattr(linear, "table", None)
    return None if make is None else cast("Linear | None", make(rows, width, dtype, device, path))


class RMSNorm(nn.Module):
    """x / rms(x) * weight, over the last dimension (Zhang and Sennrich 2019): LayerNorm without mean and bias.

    Rows of a narrower type are normalized in float32 if the weight is float32 (Gemma).
    """

    def __init__(self, width: int, eps: float, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        self.eps = eps
        self.weight = parameter((width,), dtype, device)
        self.root_width, self.floor = torch.tensor(width**0.5), torch.tensor((width * eps) ** 0.5)  # for the CPU's form

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != torch.float32 and self.weight.dtype == torch.float32:
            return self.forward(x.float()).to(x.dtype)
        if not x.is_cpu or x.dtype != torch.float32:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)  # one kernel on a GPU
        # A CPU runs it as many small ones, whose number dominates at one row per step. Here is the same in fewer:
        # 1 / sqrt(mean(x²) + eps) = sqrt(D) / sqrt(|x|² + D eps), and hypot(a, b) is sqrt(a² + b²).
        # It takes about half the time, twice per layer, which is a few percent of a small model's decode step.
        length = torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), self.floor)
        return x * self.weight * (self.root_width / length)

    def onto(self, stream: Tensor, x: Tensor, scale: Tensor | None = None) -> Tensor:
        """Return stream + the normalized x, for layers whose output is normalized (Gemma 3): see `Linear.onto`.

        scale: [1], by which the sum is multiplied (Gemma 4).
        """
        total = stream + self(x)
        return total if scale is None else total * scale


class EmbeddingTables(NamedTuple):
    """The tables that `Model.embed` adds up: a token's row is tokens[id] * scale, plus positions[position] where
    positions are learned. tokens: [V, D]; positions: [L, D]. Rows are first cast to the activations' type."""

    tokens: Tensor
    scale: float = 1.0
    positions: Tensor | None = None


def parameter(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str) -> nn.Parameter:
    """Memory for weights: not initialized, and without gradients, since nothing is trained here."""
    return nn.Parameter(torch.empty(shape, dtype=dtype, device=device), requires_grad=False)


class Model(nn.Module):
    """A decoder in three parts: embed, layers, logits; `forward` is the first two and the final norm.

    All are flat: N tokens of any number of sequences, each with a position, without batch dimension or mask. Only
    `attention` knows which tokens see which, and where keys and values are kept.
    """

    config: ModelConfig
    embedding: Embedding
    layers: nn.ModuleList
    norm: nn.Module
    head: Linear
    dtype: torch.dtype  # of activations, and so of keys and values
    device: torch.device

    weights: Mapping[str, Source]  # our parameter → the checkpoint's tensors, `{}` being the layer
    renamed: ClassVar[tuple[tuple[str, str], ...]] = ()  # other beginnings of names → those in `weights`
    ignored: tuple[Ignored, ...] = (
        Ignored(r"\.rotary_emb\.inv_freq$", "the rotary frequencies that rope_theta gives", has_frequencies),
    )

    @property
    def token_tables(self) -> tuple[str, ...]:
        """The names of all embeddings that have a row per token."""
        return ("embedding",)

    def embed(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        """[N], [N] → [N, D + L P]: the first layer's input, and behind it each layer's own where P is not 0."""
        raise NotImplementedError

    def embedding_tables(self) -> EmbeddingTables:
        """The tables of `embed`, for kernels that embed tokens themselves."""
        return EmbeddingTables(self.embedding.floats())

    def run_layers(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """[N, D + L P] → [N, D] through `self.layers`: one stage of a pipeline."""
        raise NotImplementedError

    def forward(self, token_ids: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """token_ids, positions: [N] int64. Returns the normed hidden states [N, D]."""
        x = self.embed(token_ids, positions)
        x = self.run_layers(x, positions, attention)
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, D] → [R, V] float32, for the wanted rows only, because the head is the largest matrix."""
        logits, cap = self.head(hidden).float(), self.config.final_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)
