"""A precision with a quantization in it: what a model is loaded with."""

from dataclasses import replace

import torch

from gradus.errors import ConfigError
from gradus.models.config import ModelConfig
from gradus.models.precision import Precision, resolve_precision
from gradus.quantization.mix import Mix, factory
from gradus.quantization.schemes import AS_STORED, check_device


def resolve(
    dtype: str, quantize: str | None, device: torch.device, config: ModelConfig, stored: Mix | None = None
) -> Precision:
    """dtype: of activations, and of matrices that stay as they are. quantize: a scheme, a YAML file, AS_STORED, None.

    stored: what a checkpoint's matrices are quantized in already. Raises ConfigError for what is not known, what the
    device cannot do, a pattern that matches nothing, and matrices that are quantized and shall be again.
    """
    precision = resolve_precision(dtype, device, config)
    return quantized(precision, quantize, device, config, stored)


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
    """A precision that is decided, with its matrices as asked for, or as they are stored: see `resolve`.

    setting: the one that asks, for what is said of it. head: whether a scheme is the output head's too.
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
    """A precision that is decided, with its matrices quantized.

    Raises ConfigError for what the device cannot do, and a pattern that matches nothing.
    """
    for scheme in mix.schemes:
        check_device(scheme, device)
    mix.check(config)
    return replace(precision, linear=factory(mix, config, precision.linear), scheme=mix.label)
