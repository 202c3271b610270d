"""Trained heads on disk: `model.safetensors` and `config.json`, which names their model.

Heads only fit the model that they were trained on. Its family and sizes are compared, and some of its weights: numbers
from all over its embedding and its last norm. The comparison tolerates what rounding to fewer bits may change, so heads
serve a model in any precision. It may not distinguish a fine-tune from its base model; then drafts are accepted less
often, and no token changes.
"""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from gradus.config.options import MOST_DRAFTS
from gradus.errors import CheckpointError, ConfigError
from gradus.loading.json_file import read_object
from gradus.loading.quoting import quoted
from gradus.loading.safetensors import SafetensorsFolder
from gradus.models.config import ModelConfig
from gradus.models.layers import Model
from gradus.speculative.heads import KINDS, EagleHeads, HeadsShape, MedusaHeads, create_heads

CONFIG, TENSORS = "config.json", "model.safetensors"
FORMAT = "gradus-heads-1"
STORED = torch.bfloat16
SAMPLED = 48  # numbers of the embedding in a fingerprint, and the same number of the norm
TOLERANCE = 0.15  # of the fingerprint's own size: 4 bits per weight change about 0.1


@dataclass(frozen=True)
class HeadsConfig:
    """The configuration of trained heads.

    shape: of the heads. family, vocab_size, fingerprint: of their model. trained: on what, and how well they agree; for
    people and for reports.
    """

    shape: HeadsShape
    family: str
    vocab_size: int
    fingerprint: tuple[float, ...]
    trained: dict[str, Any] = field(default_factory=dict)


def fingerprint(model: Model) -> tuple[float, ...]:
    """Sample numbers from all over the embedding, then from the last norm."""
    table, norm = model.embedding.weight, model.norm.weight
    assert isinstance(norm, Tensor)
    cells = torch.linspace(0, table.numel() - 1, SAMPLED, dtype=torch.float64).long()
    rows, columns = (cells // table.shape[1]).to(table.device), (cells * 7919 % table.shape[1]).to(table.device)
    places = torch.linspace(0, len(norm) - 1, SAMPLED, dtype=torch.float64).long().to(norm.device)
    numbers = torch.cat([table[rows, columns].float(), norm[places].float()])
    return tuple(float(f"{number:.4g}") for number in numbers.tolist())


# -- writing -----------------------------------------------------------------------------------------------------------


def write_heads(folder: Path, config: HeadsConfig, heads: MedusaHeads | EagleHeads) -> int:
    """Write each file whole or not at all. Returns the bytes of both."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.detach().to(STORED).cpu().contiguous() for name, value in heads.named_parameters()}
    part = folder / f"{TENSORS}.part"
    save_file(tensors, part, metadata={"format": "pt"})
    os.replace(part, folder / TENSORS)
    text = json.dumps({"format": FORMAT, **asdict(config)}, indent=1) + "\n"
    part = folder / f"{CONFIG}.part"
    part.write_text(text, encoding="utf-8")
    os.replace(part, folder / CONFIG)
    return sum((folder / name).stat().st_size for name in (TENSORS, CONFIG))


# -- reading -----------------------------------------------------------------------------------------------------------


def read_config(folder: Path) -> HeadsConfig:
    """Read the configuration. Raises ConfigError if the folder holds no heads, CheckpointError for an invalid file."""
    missing = [name for name in (CONFIG, TENSORS) if not (folder / name).is_file()]
    if missing:
        raise ConfigError(
            f"speculate: {folder} holds no heads ({' and '.join(missing)} missing): train them with "
            "`gradus train-heads MODEL --out DIR`"
        )
    where, found = f"{folder / CONFIG}", read_object(folder / CONFIG)
    if found.get("format") != FORMAT:
        raise CheckpointError(f"{where}: format must be {FORMAT!r}, got {quoted(found.get('format'))}: train again")
    try:
        shape = HeadsShape(**found["shape"])
        config = HeadsConfig(
            shape=shape,
            family=str(found["family"]),
            vocab_size=int(found["vocab_size"]),
            fingerprint=tuple(float(each) for each in found["fingerprint"]),
            trained=dict(found["trained"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{where}: not a configuration of heads: {type(error).__name__} {error}") from error
    _check_shape(where, config)
    return config


def _check_shape(where: str, config: HeadsConfig) -> None:
    shape = config.shape
    if shape.kind not in KINDS:
        raise CheckpointError(f"{where}: kind must be {' or '.join(KINDS)}, got {quoted(shape.kind)}")
    for name, most in (("drafts", MOST_DRAFTS), ("hidden_size", 1 << 16), ("width", 1 << 18), ("vocabulary", 1 << 24)):
        value = getattr(shape, name)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise CheckpointError(f"{where}: {name} must be a whole number between 1 and {most}, got {quoted(value)}")
    if shape.vocabulary > config.vocab_size:
        raise CheckpointError(f"{where}: vocabulary {shape.vocabulary} is more than the model's {config.vocab_size}")


def read_heads(
    folder: Path, config: HeadsConfig, *, dtype: torch.dtype, device: torch.device
) -> MedusaHeads | EagleHeads:
    """Read the heads. Raises CheckpointError for a missing or unknown tensor, or one of another shape."""
    heads = create_heads(config.shape, dtype=dtype, device=device)
    source, wanted = SafetensorsFolder(folder), dict(heads.named_parameters())
    names = set(source.names())
    if names != wanted.keys():
        odd = sorted(names ^ wanted.keys())
        raise CheckpointError(
            f"{TENSORS}: {'lacks' if odd[0] in wanted else 'has unknown'} tensor {quoted(odd[0])}, as heads of kind "
            f"{config.shape.kind} are"
        )
    for name, parameter in wanted.items():
        found = source.shape(name)
        if found != tuple(parameter.shape):
            raise CheckpointError(
                f"{TENSORS}: tensor {quoted(name)} has shape {found}, {CONFIG} needs {tuple(parameter.shape)}"
            )
        with torch.no_grad():
            parameter.copy_(source.read(name))
    return heads


def heads_bytes(folder: Path, itemsize: int) -> int:
    """Compute the memory that heads take, in bytes. Raises ConfigError if the folder holds none."""
    read_config(folder)
    return (folder / TENSORS).stat().st_size * itemsize // STORED.itemsize


# -- whose they are ----------------------------------------------------------------------------------------------------


def check_sizes(folder: Path, heads: HeadsConfig, model: ModelConfig) -> None:
    """Check family and sizes. Raises ConfigError for heads of another model."""
    ours = (heads.family, heads.shape.hidden_size, heads.vocab_size)
    theirs = (model.family, model.hidden_size, model.vocab_size)
    if ours != theirs:
        said = (f"{family}, hidden size {size}, {words} tokens" for family, size, words in (ours, theirs))
        raise ConfigError("speculate: {} has heads of another model ({}; this one: {})".format(folder, *said))


def check_drafts(heads: HeadsConfig, drafts: int | None) -> None:
    """Check the number of drafts. Raises ConfigError for more drafts than the heads look ahead."""
    if drafts is not None and drafts > heads.shape.drafts:
        most = heads.shape.drafts
        raise ConfigError(
            f"{drafts} drafts are more than these heads look ahead ({most}): set drafts to {most} or less"
        )


def check_weights(folder: Path, heads: HeadsConfig, model: Model) -> None:
    """Check the fingerprint. Raises ConfigError for heads of a model with other weights."""
    ours, theirs = torch.tensor(heads.fingerprint), torch.tensor(fingerprint(model))
    same = len(ours) == len(theirs)
    for mine, other in zip(ours.chunk(2), theirs.chunk(2), strict=True):
        same = same and bool((mine - other).norm() <= TOLERANCE * other.norm())
    if not same:
        raise ConfigError(
            f"speculate: {folder} has heads of a model with other weights than this one: train heads for this one with "
            "`gradus train-heads`"
        )
