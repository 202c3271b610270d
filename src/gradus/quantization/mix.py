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
from functools import cache
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
from gradus.quantization.gguf import FORMATS
from gradus.quantization.int4 import GROUPS, group_for
from gradus.quantization.parts import SideBySide
from gradus.quantization.schemes import AS_STORED, ORDERED, SCHEMES, STORED

log = logging.getLogger(__name__)

NONE = "none"
HEAD = "lm_head"
TABLE = MatrixId("head", None)  # of an embedding in fewer bits: it has as many rows as the head
PATHS: dict[Role, tuple[str, ...]] = {
    "qkv": ("layers.{}.qkv.weight",),
    "attn_out": ("layers.{}.output.weight",),
    "gate_up": ("layers.{}.gate_up.weight", "layers.{}.up.weight"),
    "down": ("layers.{}.down.weight",),
    "head": ("head.weight",),
    "embed_in": ("inputs.product.weight",),
    "embed_gate": ("layers.{}.embedded.gate.weight",),
    "embed_out": ("layers.{}.embedded.out.weight",),
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
        return next((scheme for pattern, scheme in self.rules if fnmatchcase(name, pattern)), NONE)

    def check(self, config: ModelConfig) -> None:
        """Raises ConfigError for a pattern that no matrix of the model has."""
        names = [*self._every_name(config), *(table_name(config, path) for path in _table_paths(config))]
        for pattern, _ in self.rules:
            if not any(fnmatchcase(name, pattern) for name in names):
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
        experts: tuple[Role, ...] = ("experts_up", "experts_down") if config.experts_at(layer) else ()
        for role in ("qkv", "attn_out", *dense, *experts, *around):
            yield MatrixId(role, layer)
    if around:
        yield MatrixId("embed_in", None)
    yield MatrixId("head", None)


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
        if matrix_id.role not in PATHS:
            return self.otherwise(matrix_id, in_features, out_features, bias, dtype, device)
        names = names_of(matrix_id, self.config, self.mix.layout)
        schemes = [self.mix.scheme(name) for name in names]
        try:
            makers = [_maker(scheme, in_features, self.otherwise) for scheme in schemes]
            if len(set(schemes)) == 1 and not (_apart(schemes[0], device) and len(schemes) > 1):
                return makers[0](matrix_id, in_features, out_features, bias, dtype, device)
            return SideBySide(matrix_id, in_features, out_features, bias, dtype, device, makers=makers)
        except ConfigError as error:
            raise ConfigError(f"{names[0]}: {error}") from error

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


def _maker(scheme: str, width: int, otherwise: LinearFactory) -> LinearFactory:
    if scheme == "int4":
        _say_group(width)
    return otherwise if scheme == NONE else STORED[scheme]


@cache
def _say_group(width: int) -> None:
    group = group_for(width, None)
    if group != GROUPS[0]:
        log.warning("int4: groups of %d, since %d does not divide rows of %d weights", group, GROUPS[0], width)
