"""Compare a configuration's statements about quantized matrices with their tensors.

The tensors decide how a matrix is read. The configuration adds facts that they cannot show: integers are symmetric,
or activations are not rounded. Where both state a fact, they must agree: otherwise one of them is
wrong, and no reader can know which.
"""

from typing import Any

from gradus.loading.quantized.formats import NotReadable
from gradus.quantization.fp8 import BLOCK

SQUARE = ([BLOCK, BLOCK], f"{BLOCK}x{BLOCK}")


class QuantizationConfig:
    """The object `quantization_config` of config.json. Its checks raise NotReadable."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content
        groups = content.get("config_groups")
        self._groups = [each for each in groups.values() if isinstance(each, dict)] if isinstance(groups, dict) else []

    @property
    def method(self) -> str:
        return str(self.content.get("quant_method") or self.content.get("method"))

    # -- AWQ and GPTQ --------------------------------------------------------------------------------------------------

    @property
    def symmetric(self) -> bool:
        """Whether the configuration calls AWQ's or GPTQ's integers symmetric, with the zero point in the middle."""
        return self.content.get("sym") is True or self.content.get("zero_point") is False

    def check_group(self, width: int, groups: int) -> None:
        """Check AWQ's or GPTQ's group size for a matrix with `groups` groups per row of `width`."""
        _check_group(self.content.get("group_size", self.content.get("q_group_size")), width, groups)

    # -- compressed-tensors, and FP8 -----------------------------------------------------------------------------------

    def packed(self, width: int, groups: int, asymmetric: bool) -> bool:
        """Check a 4-bit matrix, with stored zero points if `asymmetric`; return whether it is called symmetric."""
        fitting = self._fitting(num_bits=4, type="int")
        for each in fitting:
            _check_group(each.get("group_size"), width, groups)
        said = [each.get("symmetric", True) is True for each in fitting]
        require(asymmetric or any(said) or not said, "lacks weight_zero_point, though symmetric is false")
        return bool(said) and all(said)

    def blocked(self) -> bool:
        """Return whether the configuration gives FP8 matrices a scale per block."""
        fitting = self._fitting(num_bits=8, type="float")
        whole = self.content.get("weight_block_size")
        for size in (whole, *(each.get("block_structure") for each in fitting)):
            require(size is None or size in SQUARE, f"has blocks of {size!r}: {BLOCK} x {BLOCK} can be read")
        return whole is not None or (bool(fitting) and all(each.get("strategy") == "block" for each in fitting))

    def check_eight_bits(self, kind: str, strategy: str) -> None:
        """Check an 8-bit matrix. kind: int or float; strategy: tensor, channel or block, the unit with one scale."""
        self._fitting(num_bits=8, type=kind, strategy=strategy)
        require(
            not self._weights_alone(kind),
            f"has {'fp8' if kind == 'float' else 'int8'} weights for float activations: 8 bits for both can be read",
        )

    def _weights_alone(self, kind: str) -> bool:
        """Return whether the configuration leaves activations unrounded, which no tensor shows."""
        groups = [each for each in self._groups if _fits(each, {"num_bits": 8, "type": kind})]
        scheme = self.content.get("activation_scheme", "dynamic")
        algorithm = str(self.content.get("quant_algo")).upper()
        return (
            any(each.get("input_activations") is None for each in groups)
            or scheme not in ("dynamic", "static")
            or "_WO" in algorithm
            or "A16" in algorithm
        )

    def _fitting(self, **found: Any) -> list[dict[str, Any]]:
        """Return the `weights` of the groups that agree with `found`; an empty list if the file has no groups."""
        fitting = [_weights(each) for each in self._groups if _fits(each, found)]
        shown = ", ".join(f"{key} {value}" for key, value in found.items())
        require(bool(fitting) or not self._groups, f"has {shown}, which none of config_groups says")
        return fitting


def _fits(group: dict[str, Any], found: dict[str, Any]) -> bool:
    return all(_weights(group).get(key) in (None, value) for key, value in found.items())


def _weights(group: dict[str, Any]) -> dict[str, Any]:
    weights = group.get("weights")
    return weights if isinstance(weights, dict) else {}


def _check_group(size: Any, width: int, groups: int) -> None:
    """Check the number of groups. size: weights per group; None if not given, -1 for a whole row."""
    if type(size) is int:
        expected = -(-width // size) if size > 0 else 1
        require(groups == expected, f"has {groups} groups per row of {width}, but group_size is {size}")


def require(holds: bool, problem: str) -> None:
    if not holds:
        raise NotReadable(problem)
