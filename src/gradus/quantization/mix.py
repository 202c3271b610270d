"""The scheme of each matrix: one for all, with or without the head, or patterns of names from a file.

    "*.mlp.*": int4                       # the first pattern that matches a matrix decides
    "model.layers.0.self_attn.*": none
    "*.self_attn.*": int8
    lm_head: int8

Names are the checkpoint's, one for each stored matrix, even if we fuse several
(`model.layers.0.self_attn.q_proj`). `*` matches anything. A matrix that no pattern matches is not quantized.
"""

import hashlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, Self

import torch
import yaml

from gradus.errors import ConfigError
from gradus.models import embedded
from gradus.models.config import ModelConfig
from gradus.models.create import model_class
from gradus.models.layers import EMBEDDING, Linear, LinearFactory, MatrixId, Role
from gradus.models.source import Source, tensors_at, tensors_of
from gradus.quantization.fp8 import Fp8BlockLinear
from gradus.quantization.gguf import FORMATS, GGUFLinear
from gradus.quantization.int4 import GROUPS, group_for
from gradus.quantization.parts import SideBySide
from gradus.quantization.schemes import AS_STORED, MXFP4, ORDERED, SCHEMES, STORED

log = logging.getLogger(__name__)

NONE = "none"
HEAD = "lm_head"
TABLE = MatrixId("head", None)  # of an embedding in fewer bits: it has as many rows as the head
EXPERTS: tuple[Role, ...] = ("experts_up", "experts_down")
FLOATS_ALONE: tuple[Role, ...] = ("router", "shared_gate")
"""Roles of matrices that are never quantized: they are small, and rounding a router would change the choice."""

PATHS: dict[Role, tuple[str, ...]] = {
    "qkv": ("layers.{}.qkv.weight",),
    "attn_out": ("layers.{}.output.weight",),
    "gate_up": ("layers.{}.gate_up.weight", "layers.{}.up.weight"),
    "down": ("layers.{}.down.weight",),
    "head": ("head.weight",),
    "embed_in": ("inputs.product.weight",),
    "embed_gate": ("layers.{}.embedded.gate.weight",),
    "embed_out": ("layers.{}.embedded.out.weight",),
    "router": ("layers.{}.experts.router.product.weight",),
    "shared_gate": ("layers.{}.shared_gate.weight",),
    "experts_up": ("layers.{}.experts.up.weight",),
    "experts_down": ("layers.{}.experts.down.weight",),
}
"""A role's paths in the weight tables of the model files; an MLP without a gate calls its matrix `up`."""


@dataclass(frozen=True)
class Mix:
    """label: for people and files; a YAML file's label includes a digest of its rules, to distinguish files of one
    name.
    rules: (pattern, scheme or NONE), the first match decides. setting: the name of the setting, for messages.
    layout: entries of the model's table in place of its own (see `gradus.models.weights.layout_of`)."""

    label: str
    rules: tuple[tuple[str, str], ...]
    setting: str = field(default="quantize", compare=False)
    layout: Mapping[str, Source] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, quantize: str, setting: str = "quantize", *, head: bool = False) -> Self:
        """Make a mix from a scheme's name or a YAML file. head: whether a scheme applies to the output head too. Raises
        ConfigError for anything else."""
        if quantize in SCHEMES:
            return cls(quantize, (*([] if head else [(HEAD, NONE)]), ("*", quantize)), setting)
        if quantize.endswith((".yaml", ".yml")):
            path = Path(quantize).expanduser()
            rules = tuple(_rules(path, setting))
            digest = hashlib.sha256(yaml.safe_dump(rules).encode()).hexdigest()
            return cls(f"{path.stem}-{digest[:6]}", rules, setting)
        raise ConfigError(
            f"{setting} must be {', '.join(SCHEMES)}, a .yaml file of patterns, or {AS_STORED} (as a .gguf file "
            f"has them), got {quantize!r}"
        )

    @property
    def schemes(self) -> list[str]:
        return [scheme for scheme in dict.fromkeys(scheme for _, scheme in self.rules) if scheme != NONE]

    def scheme(self, name: str) -> str:
        """The scheme of a matrix, by its name in the checkpoint."""
        exact, patterns = self._sorted_rules
        number, found = exact.get(name, (len(self.rules), NONE))
        return next((scheme for at, pattern, scheme in patterns if at < number and fnmatchcase(name, pattern)), found)

    @cached_property
    def _sorted_rules(self) -> tuple[dict[str, tuple[int, str]], list[tuple[int, str, str]]]:
        """The rules of one name each, which a checkpoint with experts has by the ten thousand, and the others; each
        with its place."""
        exact: dict[str, tuple[int, str]] = {}
        patterns = []
        for number, (pattern, scheme) in enumerate(self.rules):
            if any(sign in pattern for sign in "*?["):
                patterns.append((number, pattern, scheme))
            else:
                exact.setdefault(pattern, (number, scheme))
        return exact, patterns

    def check(self, config: ModelConfig) -> None:
        """Raises ConfigError for a pattern that no matrix of the model has, or a router alone."""
        names = [*self._every_name(config), *(table_name(config, path) for path in _table_paths(config))]
        there = set(names)
        for pattern, _ in self.rules:
            if pattern in there:
                continue
            if not any(fnmatchcase(name, pattern) for name in names):
                if any(fnmatchcase(name, pattern) for name in floats_alone(config)):
                    raise ConfigError(
                        f"{self.setting} {self.label}: {pattern!r} is a router or a gate of experts, which stays in "
                        "floats: leave it out"
                    )
                raise ConfigError(
                    f"{self.setting} {self.label}: pattern {pattern!r} matches no matrix of this {config.family} "
                    f"model, whose names are like {names[0]!r}"
                )

    def covers(self, config: ModelConfig) -> bool:
        """Whether every matrix of the model has a scheme."""
        return all(self.scheme(name) != NONE for name in self._every_name(config))

    def _every_name(self, config: ModelConfig) -> list[str]:
        return [name for matrix_id in matrix_ids(config) for name in names_of(matrix_id, config, self.layout)]


def _rules(path: Path, setting: str) -> Iterator[tuple[str, str]]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{setting} {path}: cannot be read: {error.strerror or error}") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{setting} {path}: not valid YAML: {' '.join(str(error).split())[:160]}") from error
    if not isinstance(content, Mapping) or not content:
        raise ConfigError(f"{setting} {path}: must map patterns of matrix names to schemes, as in '*.mlp.*: int4'")
    for pattern, scheme in content.items():
        yield _rule(path, setting, pattern, NONE if scheme is None else scheme)


def _rule(path: Path, setting: str, pattern: Any, scheme: Any) -> tuple[str, str]:
    if not isinstance(pattern, str) or scheme not in (*SCHEMES, NONE):
        raise ConfigError(
            f"{setting} {path}: {pattern!r} must be one of {', '.join(SCHEMES)} or {NONE}, got {scheme!r}"
        )
    return pattern, scheme


def matrix_ids(config: ModelConfig) -> Iterator[MatrixId]:
    """Yield the id of every matrix of a model that may be quantized: routers and gates of shared experts may not."""
    around: tuple[Role, ...] = ("embed_gate", "embed_out") if config.per_layer_width else ()
    for layer in range(config.num_layers):
        dense: tuple[Role, ...] = ("gate_up", "down") if config.layer(layer).intermediate_size else ()
        experts: tuple[Role, ...] = EXPERTS if config.experts_at(layer) is not None else ()
        for role in ("qkv", "attn_out", *dense, *experts, *around):
            yield MatrixId(role, layer)
    if around:
        yield MatrixId("embed_in", None)
    yield MatrixId("head", None)


def floats_alone(config: ModelConfig) -> Iterator[str]:
    """Yield the names of matrices that are never quantized."""
    for layer in range(config.num_layers):
        if config.experts_at(layer) is not None:
            for role in FLOATS_ALONE[: 1 + config.shared_gate]:
                yield from names_of(MatrixId(role, layer), config)


def names_of(matrix_id: MatrixId, config: ModelConfig, layout: Mapping[str, Source] | None = None) -> list[str]:
    """List the checkpoint's tensors that are stacked into this matrix, top to bottom. layout: see `Mix`."""
    table = {**model_class(config.family).weights, **(layout or {})}
    path = next(path for path in PATHS[matrix_id.role] if path in table)
    return [stored.name.removesuffix(".weight") for stored in tensors_at(table, path, matrix_id.layer, config)]


def table_name(config: ModelConfig, path: str = EMBEDDING) -> str:
    """The checkpoint's name of an embedding, whose path in the weight table is given."""
    (stored,) = tensors_of(model_class(config.family).weights[path])
    return stored.name.removesuffix(".weight")


def _table_paths(config: ModelConfig) -> list[str]:
    return [EMBEDDING, *([embedded.TABLE] if config.per_layer_width else [])]


def factory(mix: Mix, config: ModelConfig, otherwise: LinearFactory) -> LinearFactory:
    """Return a factory that makes every matrix by the mix. otherwise: makes the unquantized ones."""
    return _Factory(mix, config, otherwise)


@dataclass(frozen=True)
class _Factory:
    """Makes every matrix of a model by a mix, and its embedding."""

    mix: Mix
    config: ModelConfig
    otherwise: LinearFactory

    def __call__(
        self,
        matrix_id: MatrixId,
        in_features: int,
        out_features: tuple[int, ...],
        bias: bool,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> Linear:
        if matrix_id.role in FLOATS_ALONE:
            return self.otherwise(matrix_id, in_features, out_features, bias, dtype, device)
        names, widths = names_of(matrix_id, self.config, self.mix.layout), out_features
        try:
            schemes = [self.mix.scheme(name) for name in names]
            if matrix_id.role in EXPERTS:
                schemes, widths = self._of_experts(matrix_id, schemes, out_features)
            makers = [self._maker(scheme, in_features, matrix_id, device) for scheme in schemes]
            if len(set(schemes)) == 1 and not (_apart(schemes[0], device) and len(schemes) > 1):
                return makers[0](matrix_id, in_features, out_features, bias, dtype, device)
            shape = matrix_id, in_features, out_features
            apart = SideBySide(*shape, bias, dtype, device, makers=makers, widths=widths)
            for part in apart.parts if len(names) < len(out_features) else ():
                if isinstance(part, GGUFLinear):
                    part.from_file = False  # one tensor holds both halves of each expert: the model's are copies
            return apart
        except ConfigError as error:
            raise ConfigError(f"{names[0]}: {error}") from error

    def _of_experts(
        self, matrix_id: MatrixId, schemes: list[str], out_features: tuple[int, ...]
    ) -> tuple[list[str], tuple[int, ...]]:
        """The schemes of the matrices that a stack consists of, and their rows: gates and features, or the experts one
        by one if each has an order of columns of its own.

        schemes: of the checkpoint's tensors: one for all, one for each half, or one per expert and half.
        """
        each = max(1, len(schemes) // len(out_features))
        halves = [schemes[first : first + each] for first in range(0, len(schemes), each)]
        for half in halves:
            if len(set(half)) > 1:
                raise ConfigError(
                    f"experts of one layer have the schemes {', '.join(sorted(set(half)))}: they need the same one"
                )
        found = [half[0] for half in halves] * (len(out_features) // len(halves))
        if not any(scheme.endswith(ORDERED) for scheme in found):
            return found, out_features
        count = self._experts_of(matrix_id)
        return [scheme for scheme in found for _ in range(count)], tuple(
            rows // count for rows in out_features for _ in range(count)
        )

    def _experts_of(self, matrix_id: MatrixId) -> int:
        experts = None if matrix_id.layer is None else self.config.experts_at(matrix_id.layer)
        return 1 if experts is None or matrix_id.role not in EXPERTS else experts.count

    def _maker(self, scheme: str, width: int, matrix_id: MatrixId, device: torch.device | str) -> LinearFactory:
        if scheme == "int4":
            _say_group(width)
        if scheme == NONE:
            return self.otherwise
        if scheme == MXFP4 and self.mix.layout and torch.device(device).type != "cuda":
            return partial(GGUFLinear, format=MXFP4)  # the file's own bytes
        count = self._experts_of(matrix_id)
        return partial(Fp8BlockLinear, experts=count) if scheme == "fp8-block" and count > 1 else STORED[scheme]

    def table(
        self, rows: int, width: int, dtype: torch.dtype, device: torch.device | str, path: str = EMBEDDING
    ) -> Linear | None:
        """Make an embedding's table, if a file has it in blocks: see `gradus.models.layers.packed_table`."""
        scheme = self.mix.scheme(table_name(self.config, path))
        return STORED[scheme](TABLE, width, (rows,), False, dtype, device) if scheme in FORMATS else None


def _apart(scheme: str, device: torch.device | str) -> bool:
    """Whether matrices with this scheme are never one: each may have an order of columns of its own, and on a CPU
    GGUF's blocks stay where they are in the file."""
    return scheme.endswith(ORDERED) or (scheme in FORMATS and torch.device(device).type != "cuda")


@cache
def _say_group(width: int) -> None:
    group = group_for(width, None)
    if group != GROUPS[0]:
        log.warning("int4: groups of %d, since %d does not divide rows of %d weights", group, GROUPS[0], width)
