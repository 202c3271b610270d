"""A checkpoint whose matrices are quantized already: recognized by its tensors, and read without rounding again.

The tensors under a matrix's name determine its format, and can be trusted; the configuration adds what
they cannot show. A matrix `….q_proj` is then listed as `….q_proj.weight`, like a float one, and read as `Packed`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from gradus.errors import CheckpointError
from gradus.loading.quantized import formats
from gradus.loading.quantized.configuration import QuantizationConfig, require
from gradus.loading.quantized.formats import NotReadable
from gradus.loading.quantized.packed import Packed
from gradus.loading.quoting import quoted
from gradus.quantization import mxfp4
from gradus.quantization.mix import Mix
from gradus.quantization.schemes import MXFP4

Shape = tuple[int, ...]
FP8, INT8 = "F8_E4M3", "I8"
IGNORED = ("input_scale", "output_scale", "activation_scale", "k_scale", "v_scale", "kv_scale")
"""Scales of activations in the file; we compute them at run time instead."""


class TypedTensors(Protocol):
    """A TensorSource that knows how each tensor is stored."""

    def names(self) -> Iterable[str]: ...
    def shape(self, name: str) -> Shape: ...
    def read(self, name: str) -> Tensor: ...
    def where(self, name: str) -> str: ...
    def kind(self, name: str) -> str: ...


@dataclass(frozen=True)
class Found:
    """A quantized matrix. scheme: our name of its format. parts: the names of its tensors. read: makes them Packed.

    end: what its own name has after theirs has ended.
    """

    scheme: str
    parts: tuple[str, ...]
    shape: Shape
    read: Callable[[], Packed]
    end: str = ".weight"


class QuantizedTensors:
    """A TensorSource over another one. config: the `quantization_config` object of config.json."""

    def __init__(self, tensors: TypedTensors, config: dict[str, Any]) -> None:
        self._tensors, self._config = tensors, QuantizationConfig(config)
        self._there = frozenset(tensors.names())
        self._found = {f"{name}{found.end}": found for name in self._prefixes() if (found := self._look(name))}
        if not self._found:
            raise CheckpointError(
                f"config.json: quantization {quoted(self._config.method)}, but no matrix is quantized"
            )
        self._parts = {part for found in self._found.values() for part in found.parts}

    # -- a TensorSource ------------------------------------------------------------------------------------------------

    def names(self) -> Iterable[str]:
        plain = (name for name in self._there if name not in self._parts and name.rpartition(".")[2] not in IGNORED)
        return [*plain, *self._found]

    def shape(self, name: str) -> Shape:
        return self._found[name].shape if name in self._found else self._tensors.shape(name)

    def read(self, name: str) -> Tensor | Packed:
        """Read a tensor, Packed if it is quantized. Raises CheckpointError if its parts contradict each other."""
        if name not in self._found:
            return self._tensors.read(name)
        try:
            return self._found[name].read()
        except NotReadable as error:
            raise CheckpointError(f"{self.where(name)}: {quoted(name)} {error}") from error

    def where(self, name: str) -> str:
        return self._tensors.where(self._found[name].parts[0] if name in self._found else name)

    def mix(self, canonical: Callable[[str], str]) -> Mix:
        """List each matrix's scheme. canonical: maps a tensor's name to the name in the model's tables."""
        rules = ((canonical(name).removesuffix(".weight"), found.scheme) for name, found in self._found.items())
        schemes = sorted({found.scheme for found in self._found.values()})
        return Mix(" ".join([self._config.method, *schemes]), tuple(rules))

    # -- recognizing a matrix by its tensors ---------------------------------------------------------------------------

    def _prefixes(self) -> list[str]:
        ends = (".qweight", ".weight_packed", ".weight", "_blocks")
        return sorted({name.removesuffix(end) for name in self._there for end in ends if name.endswith(end)})

    def _look(self, name: str) -> Found | None:
        try:
            if f"{name}.qweight" in self._there:
                return self._words(name)
            if f"{name}.weight_packed" in self._there:
                return self._pack_quantized(name)
            if f"{name}_blocks" in self._there:
                return self._mxfp4(name)
            kind = self._tensors.kind(f"{name}.weight")
            return self._eight_bits(name, kind) if kind in (FP8, INT8) else None
        except NotReadable as error:
            raise CheckpointError(f"quantized matrix {quoted(name)} {error}") from error

    def _words(self, name: str) -> Found:
        """Recognize AWQ and GPTQ."""
        bits = self._config.content.get("bits", self._config.content.get("w_bit", 4))
        require(bits == 4, f"has {bits} bits: 4 can be read")
        parts = self._need(name, "qweight", "qzeros", "scales")
        return self._awq(parts) if self._config.method == "awq" else self._gptq(name, parts)

    def _awq(self, parts: tuple[str, ...]) -> Found:
        height, words = self._matrix(parts[0])
        groups = self._matrix(parts[2])[0]
        version = str(self._config.content.get("version", "gemm")).lower()
        require(version == "gemm", f"is of AWQ's version {version}: gemm can be read")
        self._config.check_group(height, groups)
        return Found(
            formats.int4_scheme(height, groups, None),
            parts,
            (words * formats.NIBBLES, height),
            lambda: formats.awq(*self._three(parts), self._config.symmetric),
        )

    def _gptq(self, name: str, parts: tuple[str, ...]) -> Found:
        words, rows = self._matrix(parts[0])
        width, groups = words * formats.NIBBLES, self._matrix(parts[2])[0]
        method, said = self._config.method, self._config.content
        require(method in ("gptq", "gptqmodel"), f"is of the method {method!r}: awq and gptq can be read")
        kind = str(said.get("checkpoint_format") or said.get("format") or "gptq")
        require(kind in ("gptq", "gptq_v2"), f"is of GPTQ's format {kind!r}: gptq and gptq_v2 can be read")
        self._config.check_group(width, groups)
        g_idx = self._read_if_there(f"{name}.g_idx")
        return Found(
            formats.int4_scheme(width, groups, g_idx),
            (*parts, *self._there & {f"{name}.g_idx"}),
            (rows, width),
            lambda: formats.gptq(
                *self._three(parts), g_idx, zeros_less_one=kind == "gptq", symmetric=self._config.symmetric
            ),
        )

    def _pack_quantized(self, name: str) -> Found:
        parts = self._need(name, "weight_packed", "weight_scale", "weight_shape")
        height, width = (int(size) for size in self._tensors.read(parts[2]))
        words = self._matrix(parts[0])
        require(
            words == (height, -(-width // formats.NIBBLES)), f"of {(height, width)} has words {words}, not of 4 bits"
        )
        zero_point, g_idx = f"{name}.weight_zero_point", self._read_if_there(f"{name}.weight_g_idx")
        groups = self._matrix(parts[1])[1]
        symmetric = self._config.packed(width, groups, zero_point in self._there)
        more = self._there & {zero_point, f"{name}.weight_g_idx"}
        return Found(
            formats.int4_scheme(width, groups, g_idx),
            (*parts, *more),
            (height, width),
            lambda: formats.packed_int4(*self._two(parts), self._read_if_there(zero_point), g_idx, symmetric),
        )

    def _mxfp4(self, name: str) -> Found:
        """Recognize a stack of experts as gpt-oss has it; in floats it would lie turned, [E, K, N]."""
        parts = f"{name}_blocks", f"{name}_scales"
        require(parts[1] in self._there, f"lacks {quoted(parts[1])}")
        blocks, scales = (self._tensors.shape(part) for part in parts)
        require(
            len(blocks) == 4 and blocks == (*scales, mxfp4.BLOCK // 2),
            f"has blocks of shape {blocks} and scales of shape {scales}: [E, N, K / 32, 16] and [E, N, K / 32] can be "
            "read",
        )
        require(self._config.method == MXFP4, f"is of the method {self._config.method!r}: {MXFP4} can be read")
        experts, rows, groups = scales
        shape = experts, groups * mxfp4.BLOCK, rows
        return Found(MXFP4, parts, shape, lambda: formats.mxfp4(*self._two(parts)), end="")

    def _eight_bits(self, name: str, kind: str) -> Found:
        scale = next((end for end in ("weight_scale", "weight_scale_inv") if f"{name}.{end}" in self._there), None)
        require(scale is not None, f"is stored as {kind} and lacks weight_scale")
        parts = self._need(name, "weight", str(scale))
        shape, scales = self._matrix(parts[0]), self._tensors.shape(parts[1])
        per = formats.scale_per(shape[0], scales)
        if kind == FP8:
            blocked = self._config.blocked()
            scheme = formats.fp8_scheme(shape, scales, blocked)
            self._config.check_eight_bits("float", per if scheme == "fp8" and per else "block")
            return Found(scheme, parts, shape, lambda: formats.fp8(*self._two(parts), blocked))
        require(per is not None, f"has scales of shape {scales}: one or {(shape[0], 1)} can be read")
        self._config.check_eight_bits("int", str(per))
        return Found("int8", parts, shape, lambda: formats.int8(*self._two(parts)))

    def _need(self, name: str, *ends: str) -> tuple[str, ...]:
        parts = tuple(f"{name}.{end}" for end in ends)
        for part in parts:
            require(part in self._there, f"lacks {quoted(part)}")
        return parts

    def _matrix(self, name: str) -> tuple[int, int]:
        """The shape of a tensor; refuse one that is not a matrix."""
        shape = self._tensors.shape(name)
        require(len(shape) == 2, f"has {quoted(name)} of shape {shape}: two sizes are expected")
        return shape[0], shape[1]

    def _two(self, parts: tuple[str, ...]) -> tuple[Tensor, Tensor]:
        return self._tensors.read(parts[0]), self._tensors.read(parts[1])

    def _three(self, parts: tuple[str, ...]) -> tuple[Tensor, Tensor, Tensor]:
        return *self._two(parts), self._tensors.read(parts[2])

    def _read_if_there(self, name: str) -> Tensor | None:
        return self._tensors.read(name) if name in self._there else None
