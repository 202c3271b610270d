"""A model as the stages of a decode step, and the arrays that hold its steps' data."""

import sys
from collections.abc import Sequence
from copy import copy
from typing import Any, cast
from weakref import finalize, proxy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gradus.kernels.cpu.activations import MOST_ROWS, make_rows
from gradus.kernels.cpu.attention.block import make_block
from gradus.kernels.cpu.attention.row import HEADS, LAYER, SPAN, make_scratch
from gradus.kernels.cpu.attention.spans import contexts, most_spans
from gradus.kernels.cpu.decode_step import (
    ADD_NORMALIZED,
    ATTEND,
    BESIDE,
    DIVIDE,
    DOWN,
    EXPERTS_DOWN,
    EXPERTS_UP,
    GATE,
    HEAD,
    MIX,
    NORMALIZE_HEADS,
    OUTPUT,
    QKV,
    ROUTE,
    SHAPE,
    STAGE,
    UP,
    WANTED,
    Step,
    Worker,
    run,
)  # fmt: skip
from gradus.kernels.cpu.elementary import ACTIVATIONS
from gradus.kernels.cpu.experts.choice import MIXTURE, make_room
from gradus.kernels.cpu.experts.prompt import PROMPT_ROWS, MixedPrompts, lend
from gradus.kernels.cpu.gguf.product import Widened
from gradus.kernels.cpu.int4.panel import Panels
from gradus.kernels.cpu.matrix import KINDS, Matrices, Unsupported
from gradus.kernels.cpu.outer import SQUARE
from gradus.kernels.cpu.team import WORDS, Team
from gradus.kernels.cpu.vectors import LANES
from gradus.models import Model
from gradus.models.experts import Mixture, Router
from gradus.models.heads import Heads
from gradus.models.layers import Activation, Clamped, Gated, Linear, RMSNorm
from gradus.models.parts import EmbeddedParts, LayerParts, Undescribed, parts_of
from gradus.models.precision import widens_prompts
from gradus.models.rope import RotaryTable
from gradus.quantization.gguf import GGUFLinear
from gradus.quantization.int4 import Int4Linear
from gradus.quantization.linear import PIECE

ROUNDS = 2  # fewest chunks per thread and stage: equal and long, because long streams of weights are read fastest
CHUNK_BYTES = 1 << 20  # most bytes of a chunk's weights, because threads wait for the last chunk at a stage's end
f32 = np.float32
Rows = NDArray[np.int64]
"""A number for each row."""

KNOWN_PARTS = (nn.LayerNorm, RMSNorm, Heads, RotaryTable, Activation, Gated, Clamped, Mixture, Router)
"""Classes that the stages compute, not their subclasses, which may differ. `Matrices` checks the matrices."""


def known_layers(model: Model) -> list[LayerParts]:
    """Return each layer's parts. Raises Unsupported for a model, a layer or a part of any other class."""
    try:
        layers = parts_of(model)
    except Undescribed as error:
        raise Unsupported(error.kind) from error
    parts = [
        part
        for layer in layers
        for part in (*layer, *(layer.embedded or ()), *_head_norms(layer), *_of_experts(layer.experts))
    ]
    for part in (model.norm, *parts):
        known = part is None or isinstance(part, Linear | Tensor | EmbeddedParts)
        if not known and type(part) not in KNOWN_PARTS:
            raise Unsupported(f"{type(part).__module__}.{type(part).__qualname__}")
    return layers


def _head_norms(layer: LayerParts) -> tuple[RMSNorm | None, RMSNorm | None]:
    return layer.heads.q_norm, layer.heads.k_norm


def _of_experts(mixture: Mixture | None) -> list[Any]:
    if mixture is None:
        return []
    router = mixture.router
    return [mixture.norm, mixture.out_norm, mixture.activation, mixture.up, mixture.down, router, *router.children()]


class Stages:
    """The stages of a model's decode step, one STAGE each; behind them one for each of its extra linears, and those of
    each layer's experts for a prompt.

    count: the number of stages in the step itself. mixtures: MIXTURE of each layer. prompts: by layer with experts, the
    first of its stages for a prompt. Raises Unsupported for a part without a kernel.
    """

    def __init__(self, model: Model, extra_linears: Sequence[Linear], threads: int) -> None:
        self.layers = known_layers(model)
        self.extra_linears, self.threads = extra_linears, threads
        self.matrices = Matrices()
        self.rows: list[tuple[Any, ...]] = []
        self.mixtures = np.zeros(len(self.layers), MIXTURE)
        self.prompts: dict[int, int] = {}
        for index, layer in enumerate(self.layers):
            self._add_layer(index, layer)
        self._add_product(HEAD, 0, model.head, norm=model.norm)
        self.count = len(self.rows)
        for linear in extra_linears:
            self._add_product(BESIDE, 0, linear)
        for index, layer in enumerate(self.layers):
            if layer.experts is not None:
                self.prompts[index] = len(self.rows)
                self._add_experts(index, layer.experts, given=True)
                self._add(MIX, index, given=True, columns=threads)

    def _add_layer(self, index: int, layer: LayerParts) -> None:
        embedded, scale = layer.embedded, 1.0 if layer.scale is None else layer.scale.item()
        q_norm, k_norm = _head_norms(layer)
        self._add_product(QKV, index, layer.qkv, layer.attention_norm)
        if layer.heads.across_heads and q_norm is not None:
            self._add(NORMALIZE_HEADS, index, q_norm, key_norm=self._weight(k_norm))
        self._add(ATTEND, index)
        self._add_to_stream(OUTPUT, index, layer.output, layer.attention_out_norm)
        if layer.experts is not None:
            self._add_mixture(index, layer, layer.experts, 1.0 if embedded else scale)
        elif layer.up is not None and layer.down is not None:
            self._add_product(UP, index, layer.up, layer.mlp_norm, layer.activation)
            self._add_to_stream(DOWN, index, layer.down, layer.mlp_out_norm, 1.0 if embedded else scale)
        if embedded:
            self._add_product(GATE, index, embedded.gate, then=embedded.activation)
            self._add_to_stream(DOWN, index, embedded.out, embedded.norm, scale)

    def _add_mixture(self, index: int, layer: LayerParts, mixture: Mixture, scale: float) -> None:
        """Add the stages of experts, and of the dense MLP that reads the same stream, if there is one."""
        norm = layer.mlp_norm if mixture.norm is None else mixture.norm
        router, count = mixture.router, mixture.experts.count
        reads = norm if router.norm is None else router.norm
        self._add_product(ROUTE, index, router.product, reads, beside=layer.shared_gate)
        self._add_experts(index, mixture, norm)
        waits = layer.dense_out_norm is not None or layer.mlp_out_norm is not None
        if layer.up is not None and layer.down is not None:
            gate = 0 if layer.shared_gate is None else count + 1
            self._add_product(UP, index, layer.up, layer.mlp_norm, layer.activation, gate=gate)
            self._add_product(DOWN, index, layer.down, onto=not waits)
        self._add(MIX, index, columns=self.threads, scale=scale)
        self._describe(index, layer, mixture, adds=waits and layer.up is not None)

    def _add_experts(self, index: int, mixture: Mixture, norm: nn.Module | None = None, given: bool = False) -> None:
        count = mixture.experts.count
        self._add(DIVIDE, index, given=given)
        self._add_product(EXPERTS_UP, index, mixture.up, norm, mixture.activation, stacked=count, given=given)
        self._add_product(EXPERTS_DOWN, index, mixture.down, stacked=count, given=given)

    def _describe(self, index: int, layer: LayerParts, mixture: Mixture, adds: bool) -> None:
        """Fill in the layer's MIXTURE."""
        experts, router, mine = mixture.experts, mixture.router, self.mixtures[index]
        for name in ("count", "chosen", "width", "sigmoid", "normalized", "scale", "groups", "chosen_groups"):
            mine[name] = getattr(experts, name)
        for name, values in (("correction", router.correction), ("factors", router.factors)):
            mine[name] = 0 if values is None else self.matrices.address(values)
        mine["fewest"], mine["adds"] = ROUNDS * self.threads, adds
        norms = {"out_norm": mixture.out_norm, "dense_norm": layer.dense_out_norm, "sum_norm": layer.mlp_out_norm}
        for name, norm in norms.items():
            if norm is not None:
                if not isinstance(norm, RMSNorm) or mine["eps"] not in (0, np.float32(norm.eps)):
                    raise Unsupported("norms behind experts that differ in more than their weights")
                mine[name], mine["eps"] = self._weight(norm), norm.eps

    def _add_to_stream(self, kind: int, layer: int, linear: Linear, norm: nn.Module | None, scale: float = 1.0) -> None:
        if norm is None:
            self._add_product(kind, layer, linear, onto=True, scale=scale)
        else:
            self._add_product(kind, layer, linear)
            self._add(ADD_NORMALIZED, layer, norm, scale=scale)

    def _add_product(
        self,
        kind: int,
        layer: int,
        linear: Linear,
        norm: nn.Module | None = None,
        then: Activation | None = None,
        beside: Linear | None = None,
        stacked: int = 1,
        **fields: float,
    ) -> None:
        """Add a stage that multiplies a matrix, with another one beside it, or one of `stacked` matrices."""
        linears = [linear] if beside is None else [linear, beside]
        matrix, parts = self.matrices.add(*linears)
        halves = 1 + isinstance(then, Gated)
        columns = sum(sum(each.out_features) for each in linears) // (halves * stacked)
        size = sum(each.nbytes for each in linear.parameters())
        chunk = (
            self._chunk(columns, size) if stacked == 1 else _columns_of(columns, -(-size // (stacked * CHUNK_BYTES)))
        )
        fields |= {"matrix": matrix, "parts": parts, "alike": self.matrices.alike(matrix, parts)}
        fields |= {"columns": columns, "halves": halves, "chunk": chunk}
        self._add(kind, layer, norm, **fields, activation=0 if then is None else ACTIVATIONS[then.name])

    def _chunk(self, columns: int, matrix_bytes: int) -> int:
        """Columns of a chunk, a multiple of 16. A stage has equal chunks, one per thread and round."""
        rounds = max(ROUNDS, -(-matrix_bytes // (self.threads * CHUNK_BYTES)))
        return _columns_of(columns, rounds * self.threads)

    def _add(self, kind: int, layer: int, norm: nn.Module | None = None, **fields: float) -> None:
        """Add a stage: one chunk, unless `fields` of STAGE say otherwise."""
        fields |= {"kind": kind, "layer": layer, "norm": self._weight(norm)}
        if isinstance(norm, RMSNorm | nn.LayerNorm):
            fields["eps"] = norm.eps
        if isinstance(norm, nn.LayerNorm):
            fields["norm_bias"] = self.matrices.address(norm.bias.float())
        fields = {"columns": 1, "chunk": 1, "scale": 1.0} | fields
        assert STAGE.names is not None
        self.rows.append(tuple(fields.get(name, 0) for name in STAGE.names))

    def _weight(self, norm: nn.Module | None) -> int:
        """The address of a norm's weights in float32; 0: none."""
        return self.matrices.address(norm.weight.float()) if isinstance(norm, RMSNorm | nn.LayerNorm) else 0


def _columns_of(columns: int, chunks: int) -> int:
    """Columns of each of about `chunks` chunks: a multiple of 16."""
    return -(-columns // (chunks * 16)) * 16


class Work:
    """Everything that the threads of a step hold: buffers to write to, and addresses of weights and pages."""

    def __init__(self, step: Step, workers: Sequence[Worker]) -> None:
        self.step, self.workers = step, workers
        self.opened = (0, 0)
        words = np.zeros(WORDS + 8, np.int64)  # with room to start on a cache line
        self.words = words[-(words.ctypes.data // 8) % 8 :][:WORDS]
        self.address = self.words.ctypes.data

    def __call__(self, thread: int) -> None:
        first, stages = (0, 0) if thread else self.opened  # only the caller, thread 0, opens a step
        run(self.address, self.step, self.workers[thread], first, stages)


class DecodeModel:
    """Runs steps of up to MOST_ROWS rows on a model's weights and an engine's pages.

    cache: the keys and values that each layer attends to, [rows, Hkv, Dh] float32 or bfloat16, and their group.
    tables: int64 [groups, slots, longest]. threads: that share a step, the caller included. extra_linears: what
    `multiply` takes, which the same threads share. Raises Unsupported.
    """

    def __init__(
        self,
        model: Model,
        cache: Sequence[tuple[Tensor, Tensor, int]],
        tables: Tensor,
        page_size: int,
        windows: Sequence[int | None],
        threads: int,
        extra_linears: Sequence[Linear] = (),
    ) -> None:
        self.model, self.threads = model, threads
        inputs = input_products(model)
        stages = Stages(model, [*extra_linears, *inputs.values()], threads)
        self.kept = stages.matrices, cache, tables
        self.kind = KINDS[stages.matrices.rows[0][0]]  # of the first matrix; in a mix others may differ
        whole = all(layer.heads.head_dim % SQUARE == 0 for layer in stages.layers)
        together = SQUARE if whole else MOST_ROWS + 1  # rows of a sequence, from which they attend as one block
        groups = contexts(tables.numpy(), windows, threads, together)
        self.step = _make_step(model, stages, cache, page_size, groups, tables.shape[2] * page_size)
        self.shape = self.step.shape[0]
        self.count, self.width = stages.count, model.config.hidden_size
        self.tables_of_angles, self._reached = _tables(stages.layers), 0
        self.work = Work(self.step, [_make_worker(model, self.step) for _ in range(threads)])
        _add_panels(model)
        self.logits, self.tokens = torch.from_numpy(self.step.logits), torch.from_numpy(self.step.tokens)
        self.given, self.made = torch.from_numpy(self.step.given), torch.from_numpy(self.step.made)
        self.mixtures = [layer.experts for layer in stages.layers]
        self.mixed_prompts = MixedPrompts(self.step, stages.prompts, proxy(self))
        self.embedder = model
        for number, (path, linear) in enumerate(inputs.items(), len(extra_linears)):
            self.embedder = with_part(self.embedder, path, KernelLinear(linear, proxy(self), number))
        self.team = Team(threads, self.work, self.work.words)
        finalize(self, self.team.close)  # at exit at the latest: compiled code would not notice that the process ends

    def run(
        self,
        tokens: Rows,
        positions: Rows,
        slots: Rows,
        before: Rows | int = 0,
        wanted: Rows | None = None,
        *,
        greedy: bool = False,
    ) -> Tensor:
        """Run one decode step: one new token per row. tokens, positions, slots: int64 [R].

        A slot may have several rows, at successive positions in successive rows; `before` counts the rows of the same
        slot right before each. Keys and values go to the pages in the tables.
        wanted: the rows that get logits; None: all. Returns their logits, float32 [wanted, V], valid
        until the next call. If `greedy`, writes no logits and returns each row's most likely token, int64 [wanted]: the
        first among equals, -1 if its logit is not finite.
        """
        rows = len(slots)
        count = rows if wanted is None else len(wanted)
        given = torch.from_numpy(tokens), torch.from_numpy(positions)
        self.step.x[:rows] = self.embedder.embed(*given).float().numpy()
        mine = self.step.rows
        mine[0, :rows], mine[1, :rows], mine[2, :rows] = slots, positions, before
        mine[WANTED, :count] = np.arange(count) if wanted is None else wanted
        self.shape["rows"], self.shape["wanted"], self.shape["greedy"] = rows, count, greedy
        if (length := int(positions.max()) + 1) > self._reached:
            self._reach(length)
        self.work.opened = 0, self.count if count else self.count - 1  # the head comes last
        self.team.run()
        return self.tokens[:count].clone() if greedy else self.logits[:count]

    def _reach(self, length: int) -> None:
        """Have the angles of at least this many positions."""
        for table in self.tables_of_angles:
            table.reach(length)
        self._reached = min((table.filled for table in self.tables_of_angles), default=sys.maxsize)

    def hidden(self, rows: Rows | slice = slice(None)) -> Tensor:
        """The last step's hidden states of these rows, [rows, D], after the final norm, as the model's head reads
        them."""
        states = torch.from_numpy(self.step.x[: self.shape["rows"], : self.width][rows])
        return cast(Tensor, self.model.norm(states.to(self.model.dtype)))

    def lend_experts(self) -> None:
        """Have the model's own forward multiply its experts in these kernels, as long as this object lives."""
        lend(self.mixed_prompts, self.mixtures, self)

    def run_stages(self, first: int, stages: int, rows: int) -> None:
        """Run stages that are not the step's."""
        self.shape["rows"], self.shape["greedy"] = rows, False
        self.work.opened = first, stages
        self.team.run()

    def multiply(self, number: int, x: Tensor) -> Tensor:
        """x times the matrix `number` of the extra linears, [R, K] → float32 [R, N], of up to MOST_ROWS rows."""
        index, (rows, width) = self.count + number, x.shape
        self.given[:rows, :width] = x
        self.run_stages(index, 1, rows)
        return self.made[:rows, : self.step.stages["columns"][index]].clone()


class KernelLinear(Linear):
    """A matrix that the kernels multiply with few rows, in float32, and torch with more. number: of the extra linears
    that `decode` has."""

    def __init__(self, linear: Linear, decode: DecodeModel, number: int) -> None:
        super().__init__(linear.matrix_id, linear.in_features, linear.out_features, False, torch.float32, "meta")
        self.linear, self.decode, self.number = linear, decode, number

    def allocate(self, dtype: torch.dtype, device: torch.device | str) -> None:
        """Allocate nothing: the weights are those of `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        if not 0 < len(rows) <= MOST_ROWS:
            return cast(Tensor, self.linear(x))
        return self.decode.multiply(self.number, rows).view(*x.shape[:-1], -1)


def input_products(model: Model) -> dict[str, Linear]:
    """The matrices of `Model.embed`, by path. Torch, on a step's one thread, takes up to 7 times as long for them."""
    parts = model.named_modules()
    return {path: part for path, part in parts if isinstance(part, Linear) and part.matrix_id.role == "embed_in"}


def with_part(module: nn.Module, path: str, part: nn.Module) -> Any:
    """A copy of a module with another part at this path. It shares all others; the module stays as it is."""
    name, _, rest = path.partition(".")
    copied = copy(module)
    copied._modules = dict(module._modules)
    setattr(copied, name, with_part(getattr(module, name), rest, part) if rest else part)
    return copied


def _add_panels(model: Model) -> None:
    """Let kernels widen int4 and GGUF matrices for torch's products, and compile them."""
    if not any(isinstance(part, Int4Linear | GGUFLinear) for part in model.modules()):
        return
    narrow = model.dtype == torch.bfloat16 and not widens_prompts(model.config)
    room = torch.empty(PIECE, dtype=torch.bfloat16 if narrow else torch.float32)
    for part in model.modules():
        if isinstance(part, Int4Linear):
            part.use_lanes()  # those that torch alone multiplies are as they were loaded
            part.panels = Panels(part, room)
            next(iter(part.panels))
        elif isinstance(part, GGUFLinear):
            part.widen = Widened(part, room)
            part.widen(0, 1)


def _make_step(
    model: Model,
    stages: Stages,
    cache: Sequence[tuple[Tensor, Tensor, int]],
    page_size: int,
    groups: NDArray[np.void],
    context: int,
) -> Step:
    config, rows, layers = model.config, np.array(stages.rows, STAGE), stages.layers
    head_dim = max(layer.heads.head_dim for layer in layers)
    most = most_spans(MOST_ROWS, context, stages.threads)
    chunks = -(-rows["columns"] // rows["chunk"])

    def buffer(width: int) -> NDArray[np.float32]:
        return np.zeros((MOST_ROWS, width), f32)

    return Step(
        shape=np.array([(0, 0, config.hidden_size, config.final_softcap or 0.0, 0)], SHAPE),
        heads=_heads(model, layers, cache, page_size),
        stages=rows,
        chunks=chunks,
        rows=np.zeros((WANTED + 1, MOST_ROWS), np.int64),
        matrices=stages.matrices.records,
        layers=_layers(layers, cache, stages.matrices),
        contexts=groups,
        spans=np.zeros((len(groups), most), SPAN),
        span_starts=np.zeros((len(groups), MOST_ROWS + 1), np.int64),
        x=buffer(config.input_width),
        qkv=buffer(max(sum(layer.qkv.out_features) for layer in layers)),
        partials=np.empty((most, config.num_heads, head_dim + 2), f32),  # most are never written
        added=buffer(config.hidden_size),
        features=buffer(rows["columns"][np.isin(rows["kind"], (UP, GATE))].max(initial=0)),
        logits=buffer(config.vocab_size),
        winners=np.zeros((chunks[stages.count - 1], MOST_ROWS), np.int64),
        tokens=np.zeros(MOST_ROWS, np.int64),
        given=buffer(max((each.in_features for each in stages.extra_linears), default=0)),
        made=buffer(max((sum(each.out_features) for each in stages.extra_linears), default=0)),
        mixtures=stages.mixtures,
        room=make_room(stages.mixtures, config.hidden_size, PROMPT_ROWS),
    )


def _heads(
    model: Model, layers: Sequence[LayerParts], cache: Sequence[tuple[Tensor, Tensor, int]], page_size: int
) -> NDArray[np.void]:
    rows = []
    for layer, (keys, _, _) in zip(layers, cache, strict=True):
        if keys.dtype not in (torch.float32, torch.bfloat16):
            raise Unsupported(f"a cache in {keys.dtype}")
        eps = {norm.eps for norm in _head_norms(layer) if norm is not None} or {0.0}
        if len(eps) > 1:
            raise Unsupported("queries and keys that differ in their norms' eps")
        heads, config = layer.heads, model.config
        sizes = heads.num_heads, heads.num_kv_heads, heads.head_dim, page_size, keys.dtype == torch.bfloat16
        value_eps = -1.0 if heads.value_eps is None else heads.value_eps
        rows.append((*sizes, config.attention_scale, config.attention_softcap or 0.0, *eps, value_eps))
    return np.array(rows, HEADS)


def _tables(layers: Sequence[LayerParts]) -> set[RotaryTable]:
    return {layer.rope for layer in layers if layer.rope is not None}


def _layers(
    layers: Sequence[LayerParts], cache: Sequence[tuple[Tensor, Tensor, int]], matrices: Matrices
) -> NDArray[np.void]:
    ropes = _tables(layers)
    for rope in ropes:
        if rope.table.dtype != torch.float32:  # the kernels then have a copy, as long as the context
            rope.reach(len(rope.table))
    rotations = {rope: (matrices.address(rope.table.float()), _query_scales(rope, matrices)) for rope in ropes}
    rows = []
    for layer, (keys, values, group) in zip(layers, cache, strict=True):
        rotation = (0, 0) if layer.rope is None else rotations[layer.rope]
        norms = (None, None) if layer.heads.across_heads else _head_norms(layer)  # those have a stage
        addresses = [0 if norm is None else matrices.address(norm.weight.float()) for norm in norms]
        sinks = 0 if layer.heads.sinks is None else matrices.address(layer.heads.sinks.float())
        rows.append((keys.data_ptr(), values.data_ptr(), layer.heads.stores, *rotation, *addresses, sinks, group))
    return np.array(rows, LAYER)


def _query_scales(rope: RotaryTable, matrices: Matrices) -> int:
    return 0 if rope.query_scales is None else matrices.address(rope.query_scales)


def _make_worker(model: Model, step: Step) -> Worker:
    stages, heads = step.stages, step.heads
    (head,) = stages[stages["kind"] == HEAD]
    products = stages[np.isin(stages["kind"], (OUTPUT, UP, DOWN, GATE, EXPERTS_UP, EXPERTS_DOWN))]
    columns = max(*(products["columns"] * products["halves"]), head["chunk"])
    head_dim = heads["head_dim"].max()
    return Worker(
        make_rows(step.matrices["width"].max()),
        make_scratch(model.config.num_heads, head_dim),
        make_block((heads["heads"] // heads["kv_heads"]).max(), head_dim),
        np.full(2, -1, np.int64),
        np.zeros((MOST_ROWS, _unaligned(columns)), f32),
    )


def _unaligned(columns: int) -> int:
    """Widen rows to an odd number of cache lines: many rows whose lines all fall into a few sets of the first cache
    would push each other out while a product is written, four columns at a time."""
    return (-(-columns // LANES) | 1) * LANES
