"""A model whose layers run on this project's kernels: the same weights, the same forward, fewer launches.

The model files say what is computed, in parts that ask for what belongs together: a norm before a product, an
activation behind it, a sum with the residual stream, everything between the qkv product and attention. `fused` makes a
view of a model in which each of those parts is a twin: an object with the very same state, and another class. So it
costs no memory, and the model that it views stays what it was.

A layer then takes nine launches where torch takes more than twenty: four products, two norms, the activation, one from
qkv to the pages, and attention. With one row the activation vanishes into a product, and so do a small model's norms;
in a step of decodes the way to the pages vanishes into attention, where heads are narrow.
Nothing here waits for the GPU or allocates by what it finds there: a step may be captured in a CUDA graph.

A matrix that is no plain `Linear` (quantized, sharded) keeps its own forward, and what stands around it is fused.
"""

import copy
from typing import cast

from torch import Tensor, nn

from gradus.attention.backend import PagesAttention
from gradus.kernels.activation import activation, gated_activation
from gradus.kernels.gemv import Norm
from gradus.kernels.linear import fused_gemv, linear
from gradus.kernels.new_token import Turning
from gradus.kernels.norm import add_layer_norm, add_normalized, add_rms_norm
from gradus.kernels.rope_store import rope_store
from gradus.models import gemma3
from gradus.models.attention import Attention
from gradus.models.create import shorten_lookups
from gradus.models.heads import Heads
from gradus.models.layers import Activation, Gated, Linear, Model, RMSNorm
from gradus.models.rope import RotaryTable, Rotation

# With one row, every program of a product can normalize the row for itself. Up to this width that takes less time than
# a launch of its own, where launches start early, and beyond it more (measured on an H200).
NORM_WITHIN = 2048
ALIGNED_ROWS = 8  # 16-bit values in 16 bytes


def fused(model: Model, *, pdl: bool = False) -> Model:
    """The view, for a model on a CUDA GPU. Its attention backend must be one that kernels can write to.

    pdl: each launch starts while the one before it drains (see `overlap`). Not the head's: it has so many programs that
    each one's wait costs more than the start saves.
    """
    twin = cast(Model, _twin(model, pdl))
    shorten_lookups(twin)  # first: until then, where Python looks first, the parts are the model's own
    if isinstance(twin.head, FusedLinear):
        twin.head.__class__ = FusedHead
        vars(twin.head).update(pdl=False, wide=widened(cast(nn.Parameter, twin.head.weight)))
    return twin


def widened(matrix: nn.Parameter) -> Tensor:
    """The same memory with rows behind it, zeros, until they are a multiple of ALIGNED_ROWS: [N, K] → [N', K].

    A matrix that has no such room is moved once, and stays the same parameter.
    """
    rows, width = matrix.shape
    wide = -(-rows // ALIGNED_ROWS) * ALIGNED_ROWS
    if matrix.untyped_storage().nbytes() < wide * width * matrix.element_size():
        moved = matrix.new_zeros(wide, width)
        moved[:rows] = matrix
        matrix.data = moved[:rows]
    return matrix.detach().as_strided((wide, width), (width, 1))


def _twin(module: nn.Module, pdl: bool) -> nn.Module:
    """The same parameters and buffers, other classes, and so on downwards."""
    twin = copy.copy(module)
    twin._modules = {name: part and _twin(part, pdl) for name, part in module._modules.items()}
    if type(module) in TWINS:
        twin.__class__ = TWINS[type(module)]
        vars(twin)["pdl"] = pdl
    return twin


class FusedLinear(Linear):
    """Few rows through `gemv` or `skinny`, with norm, activation and sum inside where they pay; many through cuBLAS."""

    pdl: bool

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias, pdl=self.pdl)

    def after(self, norm: RMSNorm | nn.LayerNorm, x: Tensor, then: Activation | None = None) -> Tensor:
        if x.shape[0] > 1 or x.element_size() > 2:
            return super().after(norm, x, then)
        inside = None
        if self.in_features <= NORM_WITHIN:
            inside = Norm(norm.weight, norm.bias if isinstance(norm, nn.LayerNorm) else None, norm.eps)
        elif then is None:
            return self(norm(x))
        return fused_gemv(
            x if inside else norm(x), self.weight, bias=self.bias, norm=inside,
            activation=then.name if then else None, gated=isinstance(then, Gated), pdl=self.pdl,
        )  # fmt: skip

    def onto(self, stream: Tensor, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias, stream, pdl=self.pdl)


class FusedHead(FusedLinear):
    """Its rows of logits begin at multiples of 16 bytes, which GPT-2's 50257 do not: cuBLAS takes far longer."""

    wide: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """[R, D] → [R, V], rows a little further apart than they are long."""
        return linear(x, self.wide, self.bias, pdl=self.pdl)[:, : self.weight.shape[0]]


class FusedRMSNorm(RMSNorm):
    """Statistics in float32 whatever the weight's type, so Gemma's norm is this one as well."""

    pdl: bool

    def forward(self, x: Tensor) -> Tensor:
        return add_rms_norm(x, None, self.weight, self.eps, pdl=self.pdl)

    def onto(self, stream: Tensor, x: Tensor) -> Tensor:
        add_normalized(stream, x, self.weight, self.eps, pdl=self.pdl)
        return stream


class FusedLayerNorm(nn.LayerNorm):
    pdl: bool

    def forward(self, x: Tensor) -> Tensor:
        return add_layer_norm(x, None, self.weight, self.bias, self.eps, pdl=self.pdl)


class FusedActivation(Activation):
    pdl: bool

    def forward(self, x: Tensor) -> Tensor:
        return activation(x, self.name, pdl=self.pdl)


class FusedGated(Gated):
    pdl: bool

    def forward(self, x: Tensor) -> Tensor:
        return gated_activation(x, self.name, pdl=self.pdl)


class FusedRotaryTable(RotaryTable):
    """Looks nothing up: the kernel that rotates reads the table where it lies."""

    def forward(self, positions: Tensor) -> Rotation:
        """The table and the positions, for `FusedHeads`."""
        return self.table, positions


class FusedHeads(Heads):
    """Norms, rotation and the storing of keys and values in one launch, then attention; or attention does it all."""

    pdl: bool

    def forward(self, qkv: Tensor, rotation: Rotation | None, attention: Attention) -> Tensor:
        pages = cast(PagesAttention, attention)
        table, positions = rotation or (None, None)
        norms, eps = None, 0.0
        if self.q_norm is not None and self.k_norm is not None:
            norms, eps = (self.q_norm.weight, self.k_norm.weight), self.q_norm.eps
        if pages.turns:
            return pages.attend_stored(self.layer, qkv, Turning(table, norms, eps)).flatten(1)
        keys, values, rows = pages.destination(self.layer)
        q = rope_store(
            qkv, keys, values, rows, table=table, positions=positions, norms=norms, eps=eps, pdl=self.pdl
        )  # fmt: skip
        return pages.attend_stored(self.layer, q).flatten(1)


TWINS: dict[type[nn.Module], type[nn.Module]] = {
    Linear: FusedLinear,
    RMSNorm: FusedRMSNorm,
    gemma3.Norm: FusedRMSNorm,
    nn.LayerNorm: FusedLayerNorm,
    Activation: FusedActivation,
    Gated: FusedGated,
    RotaryTable: FusedRotaryTable,
    Heads: FusedHeads,
}
