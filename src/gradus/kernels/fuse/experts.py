"""A mixture of experts on kernels: no choice is read on the host, so its steps can be captured in a CUDA graph.

One row, or two, take three launches: the router's product, and two of `kernels/experts/pairs.py`, with the norm, the
choice and the residual sum inside. More take one each for the norm, the choice and the sum; many, one more to sort
them by expert.
"""

from torch import Tensor, nn

from gradus.kernels.core.view import Twin, is_known, twin_of
from gradus.kernels.experts.combine import combine
from gradus.kernels.experts.dispatch import dispatch
from gradus.kernels.experts.few import down_few, up_few
from gradus.kernels.experts.grouped import down_product, up_product
from gradus.kernels.experts.launches import FewLaunch, MixtureLaunch, PairLaunch, launch_of
from gradus.kernels.experts.pairs import down_pairs, up_pairs
from gradus.kernels.experts.routing import Routed, route
from gradus.kernels.linear.epilogue import NORM_WITHIN, Norm
from gradus.models.experts import Mixture
from gradus.models.layers import Gated, Linear, RMSNorm


@twin_of(Mixture)
def twin_of_mixture(part: Mixture) -> "FusedMixture | None":
    """None for experts that are kept in another form than their floats."""
    return FusedMixture(part) if is_plain(part) else None


def is_plain(part: Mixture) -> bool:
    """Whether the kernels of floats compute it."""
    plain = type(part.up) is Linear and type(part.down) is Linear
    return plain and is_known(part.norm) and is_known(part.router.norm)


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
        hidden = x.shape[1]
        launch = launch_of(len(x), hidden, self.experts.width, self.experts.count)
        paired = launch is not None and launch.paired
        within = self._within(norm) if paired and hidden <= NORM_WITHIN else None
        rows = x if norm is None or within is not None else norm.forward(x)
        routed = self._routed(x, rows, norm if within is not None else None)
        if launch is not None and paired:
            return self._pairs(rows, routed, within, launch, residual)
        chosen, weights = route(routed)
        mixed = self._many(rows, chosen) if launch is None else self._few(rows, chosen, launch)
        return combine(mixed, weights, residual)

    @staticmethod
    def _within(norm: nn.Module | None) -> Norm | None:
        """The norm, if the kernel of the first product can compute it as well."""
        if not isinstance(norm, RMSNorm) or getattr(norm, "summands", None) is not None:
            return None
        return Norm(norm.weight, None, norm.eps)

    def _routed(self, x: Tensor, rows: Tensor, norm: nn.Module | None) -> Routed:
        """norm: of `rows`, if they are not normalized yet."""
        router = self.router
        logits = router.product.after(norm, rows) if router.norm is None else router.product.after(router.norm, x)
        return Routed(logits.contiguous(), self.experts, router.correction, router.factors)

    def _pairs(
        self, rows: Tensor, routed: Routed, norm: Norm | None, launch: MixtureLaunch, residual: Tensor | None
    ) -> Tensor:
        up, down = launch
        assert isinstance(up, PairLaunch) and isinstance(down, PairLaunch)
        features = up_pairs(rows, self.up.weight, routed, self.activation, up, self.up.bias, norm)
        return down_pairs(features, self.down.weight, routed, down, self.down.bias, residual)

    def _few(self, rows: Tensor, chosen: Tensor, launch: MixtureLaunch) -> Tensor:
        """Each row's chosen experts' results, [N k, D]."""
        (up, down), experts = launch, len(self.experts.own)
        assert isinstance(up, FewLaunch) and isinstance(down, FewLaunch)
        features = up_few(rows, self.up.weight, chosen, experts, self.activation, up, self.up.bias)
        return down_few(features, self.down.weight, chosen, experts, down, self.down.bias)

    def _many(self, rows: Tensor, chosen: Tensor) -> Tensor:
        plan, gate = dispatch(chosen, len(self.experts.own)), self.activation
        gated = isinstance(gate, Gated)
        features = up_product(rows, self.up.weight, plan, gate.name, gated=gated, bias=self.up.bias)
        return down_product(features, self.down.weight, plan, bias=self.down.bias)
