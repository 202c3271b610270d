"""A mixture of experts on kernels: no choice is read on the host, so its steps can be captured in a CUDA graph.

Few rows take six launches: the norm, the router's product, the choice, both products, and the sum. Many take two more,
to sort them by expert. So do experts in fewer bits (`kernels/experts/packed.py`).
"""

from torch import Tensor, nn

from gradus.kernels.core.view import Twin, is_known, twin_of
from gradus.kernels.experts.combine import combine
from gradus.kernels.experts.dispatch import dispatch
from gradus.kernels.experts.few import down_few, up_few
from gradus.kernels.experts.grouped import down_product, up_product
from gradus.kernels.experts.launches import MOST_FEW, MixtureLaunch, launch_of
from gradus.kernels.experts.packed import Rows, packed_down, packed_up
from gradus.kernels.experts.packed_tiles import Form, form_of
from gradus.kernels.experts.routing import Routed, route
from gradus.models.experts import Mixture, Router
from gradus.models.layers import Gated, Linear
from gradus.quantization.linear import QuantizedLinear


@twin_of(Mixture)
def twin_of_mixture(part: Mixture) -> "FusedMixture | None":
    """None for experts, a router or norms before them that no kernel computes: `fused` refuses these."""
    if _unknown(part) is not None:
        return None
    if is_plain(part):
        return FusedMixture(part)
    return PackedMixture(part) if _has_form(part.up) and _has_form(part.down) else None


def _unknown(part: Mixture) -> nn.Module | None:
    """Return the part that may compute in a way of its own, if there is one. A subclass may do so in any method."""
    if type(part) is not Mixture:
        return part
    if type(part.router) is not Router:
        return part.router
    return next((each for each in (part.norm, part.router.norm, part.activation) if not is_known(each)), None)


def is_plain(part: Mixture) -> bool:
    """Whether its experts are kept as floats."""
    return type(part.up) is Linear and type(part.down) is Linear


def _has_form(part: Linear) -> bool:
    """Whether it is one stack: with an order of columns, or a scheme, of its own for each expert or half it is not."""
    return type(part) is Linear or (isinstance(part, QuantizedLinear) and getattr(part, "order", None) is None)


def without_kernel(part: Mixture) -> str:
    """Why a mixture has no twin."""
    where = f"layer {part.up.matrix_id.layer}:"
    if (unknown := _unknown(part)) is not None:
        name = type(unknown).__name__
        return f"{where} the kernels do not know what {name} computes: leave them out (--switch-off kernels graphs)"
    return (
        f"{where} no kernel multiplies by experts whose columns have orders of their own, or whose gates and features "
        "have different schemes: quantize them alike and without act-order"
    )


class FusedMixture(Twin, Mixture):
    def forward(self, x: Tensor, norm: nn.Module | None) -> Tensor:
        total = self._sum(x, norm, None)
        return total if self.out_norm is None else self.out_norm.forward(total)

    def onto(self, stream: Tensor, norm: nn.Module | None) -> Tensor:
        if self.out_norm is None:
            return self._sum(stream, norm, stream)
        return self.out_norm.onto(stream, self._sum(stream, norm, None))

    def _sum(self, x: Tensor, norm: nn.Module | None, residual: Tensor | None) -> Tensor:
        norm = norm if self.norm is None else self.norm
        rows = x if norm is None else norm.forward(x)
        chosen, weights = route(self._routed(x, rows))
        return combine(self.mixed(rows, chosen), weights, residual)

    def mixed(self, rows: Tensor, chosen: Tensor) -> Tensor:
        """The results of each row's chosen experts, [N k, D]; undefined for experts from len(own) on."""
        launch = launch_of(len(rows), rows.shape[1], self.experts.width)
        return self._many(rows, chosen) if launch is None else self._few(rows, chosen, launch)

    def _routed(self, x: Tensor, rows: Tensor) -> Routed:
        router = self.router
        logits = router.product.forward(rows) if router.norm is None else router.product.after(router.norm, x)
        return Routed(logits.contiguous(), self.experts, router.correction, router.factors)

    def _few(self, rows: Tensor, chosen: Tensor, launch: MixtureLaunch) -> Tensor:
        (up, down), experts = launch, len(self.experts.own)
        features = up_few(rows, self.up.weight, chosen, experts, self.activation, up, self.up.bias)
        return down_few(features, self.down.weight, chosen, experts, down, self.down.bias)

    def _many(self, rows: Tensor, chosen: Tensor) -> Tensor:
        plan, gate = dispatch(chosen, len(self.experts.own)), self.activation
        gated = isinstance(gate, Gated)
        features = up_product(rows, self.up.weight, plan, gate.name, gated=gated, bias=self.up.bias)
        return down_product(features, self.down.weight, plan, bias=self.down.bias)


class PackedMixture(FusedMixture):
    """Experts in fewer bits, or some: their router, norms and sum are those of any."""

    def mixed(self, rows: Tensor, chosen: Tensor) -> Tensor:
        if not len(rows):
            return rows
        experts, many = len(self.experts.own), len(rows) > MOST_FEW
        taken = Rows(chosen, experts, dispatch(chosen, experts) if many else None)
        gate, gated = self.activation, isinstance(self.activation, Gated)
        features = packed_up(rows, form_of_part(self.up), taken, gate.name, gated=gated, bias=self.up.bias)
        return packed_down(features, form_of_part(self.down), taken, bias=self.down.bias)


def form_of_part(part: Linear) -> Form:
    """The form of a twin's weights."""
    return form_of(getattr(part, "weights", None) or part.weight)
