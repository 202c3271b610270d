"""A model's precision, including its quantization."""

from dataclasses import replace

import torch

from gradus.errors import ConfigError
from gradus.models.config import ModelConfig
from gradus.models.layers import Linear
from gradus.models.precision import Precision, resolve_precision
from gradus.quantization.gguf import FORMATS
from gradus.quantization.mix import Mix, factory
from gradus.quantization.schemes import AS_STORED, MXFP4, check_device


def resolve(
    dtype: str, quantize: str | None, device: torch.device, config: ModelConfig, stored: Mix | None = None
) -> Precision:
    """Decide the precision. dtype: of activations and unquantized matrices. quantize: a scheme, a YAML file, AS_STORED,
    None.

    stored: the schemes in which a checkpoint is quantized already. Raises ConfigError for an unknown value, a scheme
    that the device does not support, a pattern that matches nothing, or a quantized checkpoint that would be quantized
    again.
    """
    precision = None
    if dtype == "auto" and device.type == "cpu" and stored is not None:
        precision = _without_race(stored, config)
    return quantized(precision or resolve_precision(dtype, device, config), quantize, device, config, stored)


def _without_race(stored: Mix, config: ModelConfig) -> Precision | None:
    """Return the precision of a CPU's unquantized parts, or None where it has to be measured."""
    if stored.covers(config):
        reason = "no matrix is made of floats"
    elif not (FORMATS.keys() - {MXFP4}).isdisjoint(stored.schemes):  # which files of other kinds have, too
        reason = "all numbers of a GGUF file keep their bits"
    else:
        return None
    return Precision(torch.float32, torch.float32, Linear, reason)


def quantized(
    precision: Precision,
    quantize: str | None,
    device: torch.device,
    config: ModelConfig,
    stored: Mix | None = None,
    *,
    setting: str = "quantize",
    head: bool = False,
) -> Precision:
    """Add quantization to a precision, as requested or as stored: see `resolve`.

    setting: the name of the setting, for messages. head: whether a scheme applies to the output head too.
    """
    if quantize is None and stored is None:
        return precision
    if quantize not in (None, AS_STORED) and stored is not None:
        raise ConfigError(
            f"{setting} {quantize}: these weights are quantized already ({stored.label}), and are loaded as they are: "
            f"leave {setting} out, or load the unquantized model"
        )
    return quantized_as(stored or Mix.of(quantize or "", setting, head=head), precision, device, config)


def quantized_as(mix: Mix, precision: Precision, device: torch.device, config: ModelConfig) -> Precision:
    """Add a mix's quantization to a precision.

    Raises ConfigError for a scheme that the device does not support, and for a pattern that matches nothing.
    """
    for scheme in mix.schemes:
        check_device(scheme, device)
    mix.check(config)
    return replace(precision, linear=factory(mix, config, precision.linear), scheme=mix.label)
