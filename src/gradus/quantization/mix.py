"""Which matrix of a model gets which scheme: one for all, with or without the head, or patterns of names from a file.

    "*.mlp.*": int4                       # the first pattern that matches a matrix decides
    "model.layers.0.self_attn.*": none
    "*.self_attn.*": int8
    lm_head: int8

Names are those of the checkpoint, one for each matrix that was stored as one, also where several are fused here
(`model.layers.0.self_attn.q_proj`). `*` stands for anything. What no pattern matches stays as it is.
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
from gradus.models.config import ModelConfig
from gradus.models.create import model_class
from gradus.models.layers import Linear, LinearFactory, Place, Role
from gradus.models.source import tensors_of
from gradus.quantization.int4 import GROUPS, group_for
from gradus.quantization.parts import SideBySide
from gradus.quantization.schemes import AS_STORED, ORDERED, SCHEMES, STORED

log = logging.getLogger(__name__)

NONE = "none"
HEAD = "lm_head"
PATHS: dict[Role, tuple[str, ...]] = {
    "qkv": ("layers.{}.qkv.weight",),
    "attn_out": ("layers.{}.output.weight",),
    "gate_up": ("layers.{}.gate_up.weight", "layers.{}.up.weight"),
    "down": ("layers.{}.down.weight",),
    "head": ("head.weight",),
}
"""Where a role's matrix stands in the tables of the model files; an MLP without a gate calls it `up`."""


@dataclass(frozen=True)
class Mix:
    """label: for people and files; a YAML file's has a digest of its rules, so that two files of one name are told
    apart. rules: (pattern, scheme or NONE), the first match decides. setting: the one that asks for it."""

    label: str
    rules: tuple[tuple[str, str], ...]
    setting: str = field(default="quantize", compare=False)

    @classmethod
    def of(cls, quantize: str, setting: str = "quantize", *, head: bool = False) -> Self:
        """A scheme's name, or a YAML file. head: whether a scheme is the output head's too. Raises ConfigError for
        anything else."""
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
        """Of a matrix, by its name in the checkpoint."""
        return next((scheme for pattern, scheme in self.rules if fnmatchcase(name, pattern)), NONE)

    def check(self, config: ModelConfig) -> None:
        """Raises ConfigError for a pattern that no matrix of the model has."""
        names = [name for place in places(config) for name in names_of(place, config)]
        for pattern, _ in self.rules:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ConfigError(
                    f"{self.setting} {self.label}: pattern {pattern!r} matches no matrix of this {config.family} "
                    f"model, whose names are like {names[0]!r}"
                )


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


def places(config: ModelConfig) -> Iterator[Place]:
    """Of all matrices of a model."""
    for layer in range(config.num_layers):
        for role in ("qkv", "attn_out", "gate_up", "down"):
            yield Place(role, layer)
    yield Place("head", None)


def names_of(place: Place, config: ModelConfig) -> list[str]:
    """The checkpoint's names of what is one matrix here, one above another."""
    table = model_class(config.family).weights
    entry = next(table[path] for path in PATHS[place.role] if path in table)
    return [stored.name.replace("{}", str(place.layer)).removesuffix(".weight") for stored in tensors_of(entry)]


def factory(mix: Mix, config: ModelConfig, otherwise: LinearFactory) -> LinearFactory:
    """Makes every matrix of a model as the mix says. otherwise: makes those that stay as they are."""

    def make(
        place: Place,
        in_features: int,
        out_features: tuple[int, ...],
        bias: bool,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> Linear:
        names = names_of(place, config)
        schemes = [mix.scheme(name) for name in names]
        try:
            makers = [_maker(scheme, in_features, otherwise) for scheme in schemes]
            if len(set(schemes)) == 1 and not schemes[0].endswith(ORDERED):  # each may have an order of its own
                return makers[0](place, in_features, out_features, bias, dtype, device)
            return SideBySide(place, in_features, out_features, bias, dtype, device, makers=makers)
        except ConfigError as error:
            raise ConfigError(f"{names[0]}: {error}") from error

    return make


def _maker(scheme: str, width: int, otherwise: LinearFactory) -> LinearFactory:
    if scheme == "int4":
        _say_group(width)
    return otherwise if scheme == NONE else STORED[scheme]


@cache
def _say_group(width: int) -> None:
    group = group_for(width, None)
    if group != GROUPS[0]:
        log.warning("int4: groups of %d, since %d does not divide rows of %d weights", group, GROUPS[0], width)
