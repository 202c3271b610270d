"""A model whose layers run on this project's kernels: the same weights, the same forward, fewer launches.

The model files define the computation in parts that can be fused: a norm before a product, an activation after it, a
sum with the residual stream, everything between the qkv product and attention. `fused` makes a view of a model
(`core/view.py`) in which this file's twins replace those parts.

A layer then takes nine launches where torch takes more than twenty: four products, two norms, the activation, one from
qkv to the pages, and attention. With one row, or a few, the activation vanishes into a product, and so do a small
model's norms; in a step of decodes the way to the pages vanishes into attention, where heads are narrow.
Nothing here waits for the GPU or allocates by what it finds there, so a step may be captured in a CUDA graph; one view
serves steps that are run and steps that are captured, inside `early_launches` and outside.

A matrix with a `forward`, `after` or `onto` of its own (sharded, say) keeps them unless it names a twin, as quantized
ones do in `quantized.py`; the parts around it are fused all the same. Heads and rotary tables are one kernel with
attention, so those with a `forward` of their own are refused.
"""

from typing import Protocol, cast

from torch import Tensor, nn

from gradus.errors import ConfigError
from gradus.kernels.core.overlap import early_launches
from gradus.kernels.core.view import Twin, is_known, twin_of, view
from gradus.kernels.fuse import experts, quantized  # these name twins, too
from gradus.kernels.linear.dispatch import choose_fused, fused_linear, linear
from gradus.kernels.linear.epilogue import NORM_WITHIN, Norm
from gradus.kernels.linear.launch_tables import FusedLaunch
from gradus.kernels.linear.launches import GemvLaunch
from gradus.kernels.rows.activation import activation, gated_activation
from gradus.kernels.rows.norm import add_layer_norm, add_normalized, add_rms_norm
from gradus.kernels.rows.passage import Passage
from gradus.kernels.rows.rope_store import rope_store, turned_queries
from gradus.models.attention import Attention
from gradus.models.experts import Mixture
from gradus.models.heads import Heads
from gradus.models.layers import Activation, Clamped, Gated, Linear, Model, RMSNorm
from gradus.models.rope import RotaryTable, Rotation

ALIGNED_ROWS = 8  # 16-bit values in 16 bytes


def fused(model: Model) -> Model:
    """The view, for a model on a CUDA GPU. Its attention backend must be a `PagesAttention`.

    Raises ConfigError for heads, or a rotary table, that compute in a way of their own, and for experts without a
    kernel: what torch does for them cannot be captured in a CUDA graph.
    """
    seen = cast(Model, view(model))
    for part in seen.modules():
        if isinstance(part, Heads | RotaryTable) and not isinstance(part, Twin):
            name = type(part).__name__
            raise ConfigError(f"the kernels do not know what {name} computes: leave them out (--switch-off kernels)")
        if isinstance(part, Mixture) and not isinstance(part, Twin):
            raise ConfigError(experts.without_kernel(part))
    quantized.hand_gates_over(seen)
    return seen


class PagesAttention(Attention, Protocol):
    """`attend` in two halves, for a model whose kernels store keys and values themselves; or both halves in one launch.

    fuses_rope: whether this step takes the one launch. Then each sequence has a single new token.
    """

    fuses_rope: bool

    def destination(self, layer: int) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor] | None]:
        """The layer's keys and values, [pages, page_size, Hkv, Dh] each, and the rows that are this step's.

        Rows are int64 [N], page * page_size + position % page_size of every token of the flat batch. Last come the
        scales of keys and values, [pages, Hkv, page_size] each, where those are e4m3.
        """

    def attend_stored(self, layer: int, q: Tensor, sinks: Tensor | None = None) -> Tensor:
        """q: [N, Hq, Dh], rotated, whose keys and values are stored by now. Returns [N, Hq, Dh]."""

    def store_and_attend(self, layer: int, qkv: Tensor, passage: Passage, sinks: Tensor | None = None) -> Tensor:
        """Take the qkv product [N, (Hq + 2 Hkv) Dh] in a step that `fuses_rope`; return attention's [N, Hq, Dh]."""


@twin_of(Linear)
def twin_of_linear(part: Linear) -> "FusedLinear":
    return FusedHead(part) if part.matrix_id.role == "head" else FusedLinear(part)


class FusedLinear(Twin, Linear):
    """Few rows through kernels of ours, with norm, activation and sum inside where they pay; many through cuBLAS."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias, counters=self.counters)

    def after(self, norm: RMSNorm | nn.LayerNorm | None, x: Tensor, then: Activation | None = None) -> Tensor:
        if not (is_known(norm) and is_known(then)):
            return super().after(norm, x, then)
        gated = isinstance(then, Gated)
        launch = choose_fused(x.shape[0], *self.weight.shape, gated, x.device) if x.element_size() == 2 else None
        if launch is None:
            return super().after(norm, x, then)
        inside, centered = self._within(norm, launch), isinstance(norm, nn.LayerNorm)
        if norm is not None and inside is None:
            x = norm(x)
        if then is None and inside is None and not centered:
            return self(x)
        return fused_linear(
            x, self.weight, launch, bias=self.bias, norm=inside, activation=then.name if then else None, gated=gated
        )

    def _within(self, norm: RMSNorm | nn.LayerNorm | None, launch: FusedLaunch) -> Norm | None:
        """The norm as the launch computes it; None where there is none, or where a launch of its own is faster."""
        if norm is None or self.in_features > NORM_WITHIN or getattr(norm, "summands", None) is not None:
            return None
        if isinstance(norm, nn.LayerNorm):
            return Norm(norm.weight, norm.bias, norm.eps) if isinstance(launch, GemvLaunch) else None
        return Norm(norm.weight, None, norm.eps)

    def onto(self, stream: Tensor, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias, stream, counters=self.counters)


class FusedHead(FusedLinear):
    """The head's rows of logits begin at multiples of 16 bytes. GPT-2's 50257 do not, and cuBLAS then takes far longer.

    wide: the head's matrix with rows of zeros behind it, [V', D].
    """

    wide: Tensor

    def __init__(self, part: Linear) -> None:
        super().__init__(part)
        self.wide = widened(cast(nn.Parameter, part.weight))

    def forward(self, x: Tensor) -> Tensor:
        """[R, D] → [R, V], rows a little further apart than they are long."""
        with early_launches(False):  # with this many programs, their waits cost more than an early start saves
            return linear(x, self.wide, self.bias, counters=self.counters)[:, : self.weight.shape[0]]


def widened(matrix: nn.Parameter) -> Tensor:
    """View the matrix with rows of zeros behind it, up to a multiple of ALIGNED_ROWS: [N, K] → [N', K].

    A matrix that has no such room is moved once, and stays the same parameter.
    """
    rows, width = matrix.shape
    wide = -(-rows // ALIGNED_ROWS) * ALIGNED_ROWS
    if matrix.untyped_storage().nbytes() < wide * width * matrix.element_size():
        moved = matrix.new_zeros(wide, width)
        moved[:rows] = matrix
        matrix.data = moved[:rows]
    return matrix.detach().as_strided((wide, width), (width, 1))


class Summands(Protocol):
    """Rows that the devices sharing the model have yet to add to the residual stream."""

    def add_rms_norm(self, stream: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Add it, in place, and return the normalized stream."""


@twin_of(RMSNorm)
class FusedRMSNorm(Twin, RMSNorm):
    """Statistics in float32 whatever the weight's type, so Gemma's norm is this one as well.

    summands: to be added to the stream first, where several devices share the model (`gradus.parallel.fused`).
    """

    summands: Summands | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.summands is not None:
            return self.summands.add_rms_norm(x, self.weight, self.eps)
        return add_rms_norm(x, None, self.weight, self.eps)

    def onto(self, stream: Tensor, x: Tensor, scale: Tensor | None = None) -> Tensor:
        add_normalized(stream, x, self.weight, self.eps, scale)
        return stream


@twin_of(nn.LayerNorm)
class FusedLayerNorm(Twin, nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return add_layer_norm(x, None, self.weight, self.bias, self.eps)


@twin_of(Activation)
class FusedActivation(Twin, Activation):
    def forward(self, x: Tensor) -> Tensor:
        return activation(x, self.name)

    def times(self, x: Tensor, by: Tensor) -> Tensor:
        return activation(x, self.name, by)


@twin_of(Gated, Clamped)
class FusedGated(Twin, Gated):
    def forward(self, x: Tensor) -> Tensor:
        return gated_activation(x, self.name)


@twin_of(RotaryTable)
class FusedRotaryTable(Twin, RotaryTable):
    """Looks nothing up: the kernel that rotates reads the table where it lies."""

    def __init__(self, part: RotaryTable) -> None:
        part.reach(len(part.table))
        super().__init__(part)

    def forward(self, positions: Tensor) -> Rotation:
        """The table, the positions and the queries' growth, for `FusedHeads`."""
        return Rotation(self.table, positions, self.query_scales)


@twin_of(Heads)
def twin_of_heads(part: Heads) -> "FusedHeads | None":
    """Their norms are computed within the kernel, so both must be known to it."""
    return FusedHeads(part) if is_known(part.q_norm) and is_known(part.k_norm) else None


class FusedHeads(Twin, Heads):
    """Norms, rotation and the storing of keys and values in one launch, then attention; or attention does it all."""

    def forward(self, qkv: Tensor, rotation: Rotation | None, attention: Attention) -> Tensor:
        pages = cast(PagesAttention, attention)
        table, positions, growth = rotation or (None, None, None)
        norms, eps = None, 0.0
        if self.q_norm is not None:
            norms = self.q_norm.weight, None if self.k_norm is None else self.k_norm.weight
            eps = self.q_norm.eps
        passage = Passage(table, norms, eps, self.across_heads, growth, self.value_eps)
        if not self.stores:
            q = turned_queries(qkv, self.head_dim, passage, positions)
            return pages.attend_stored(self.layer, q, self.sinks).flatten(1)
        if pages.fuses_rope:
            return pages.store_and_attend(self.layer, qkv, passage, self.sinks).flatten(1)
        keys, values, rows, scales = pages.destination(self.layer)
        q = rope_store(qkv, keys, values, rows, passage, positions, scales=scales)
        return pages.attend_stored(self.layer, q, self.sinks).flatten(1)
