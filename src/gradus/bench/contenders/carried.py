"""A GGUF checkpoint made small enough to carry: a vocabulary cut to the tokens that a study uses, quantized matrices in
the file's own bytes, all of it in parts of a limited size.

For machines that reach no registry, and take little at a time. A matrix travels as the blocks that the file has, so
nothing is rounded. There it is widened to bfloat16, and `open_checkpoint` reads the folder. Tokens have new numbers
(`Cut`); without the other rows, a probability is among the tokens that are left.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from gradus.errors import CheckpointError, ConfigError
from gradus.loading import Checkpoint, open_checkpoint
from gradus.models.families.records import write_config
from gradus.quantization.gguf import FORMATS

JOINED, PART, PARTS = "carried.safetensors", "carried.part{:03d}", "carried.part*"
STUDY = "study"
ROWS = 128
"""Vocabularies are padded to a multiple, with tokens that no text here has."""
TABLES = ("model.embed_tokens.weight", "lm_head.weight")


@dataclass(frozen=True)
class Cut:
    """kept: the old number of each new token, ascending."""

    kept: tuple[int, ...]

    @classmethod
    def of(cls, used: Iterable[int], vocab_size: int) -> "Cut":
        taken = set(used)
        spare = (token for token in range(vocab_size) if token not in taken)
        return cls(tuple(sorted([*taken, *islice(spare, -len(taken) % ROWS)])))

    def renumbering(self) -> dict[int, int]:
        """Each old number's new one."""
        return {old: new for new, old in enumerate(self.kept)}


def pack(checkpoint: Checkpoint, cut: Cut, study: bytes, folder: Path, part_bytes: int) -> list[Path]:
    """Write a checkpoint and what is to be asked of it, in parts.

    Raises ConfigError for a checkpoint that is no GGUF file of Q and K formats.
    """
    from gradus.loading.gguf.model import GGUFTensors
    from gradus.loading.gguf.packed import KEPT

    source = checkpoint.tensors
    if not isinstance(source, GGUFTensors):
        raise ConfigError(f"{checkpoint.name}: only a .gguf file's own bytes are carried: name one")
    rows, new = torch.tensor(cut.kept), cut.renumbering()
    tensors, formats = {STUDY: torch.frombuffer(bytearray(study), dtype=torch.uint8)}, {}
    for name in source.names():
        kind = source.packing(name)
        if kind is None:
            value = source.read(name).half() if name in TABLES else source.read(name)
        else:
            formats[name], value = KEPT[kind], source.blocks(name)
        tensors[name] = (value[rows] if name in TABLES else value).clone().contiguous()
    config = replace(
        checkpoint.config,
        vocab_size=len(cut.kept),
        bos_token_id=None,
        eos_token_ids=tuple(new[token] for token in checkpoint.config.eos_token_ids if token in new),
    )
    about = {"name": checkpoint.name, "config": write_config(config), "formats": formats}
    folder.mkdir(parents=True, exist_ok=True)
    for earlier in folder.glob(PARTS):  # of another study, in more parts
        earlier.unlink()
    whole = folder / JOINED
    save_file(tensors, whole, metadata={"about": json.dumps(about)})
    parts = split(whole, part_bytes)
    whole.unlink()
    return parts


def split(file: Path, part_bytes: int) -> list[Path]:
    """Cut a file into parts next to it."""
    parts: list[Path] = []
    with file.open("rb") as whole:
        while piece := whole.read(part_bytes):
            parts.append(file.with_name(PART.format(len(parts))))
            parts[-1].write_bytes(piece)
    return parts


def unpack(source: Path, folder: Path) -> tuple[Checkpoint, bytes]:
    """Join the parts in `source`, and write the model to `folder`, in bfloat16. Returns it, under the name that it was
    packed from, and the study.

    Raises CheckpointError if parts are missing.
    """
    parts = sorted(source.glob(PARTS))
    if not parts:
        raise CheckpointError(f"{source}: has no {PARTS}: name the folder that the parts were carried to")
    folder.mkdir(parents=True, exist_ok=True)
    joined = folder / JOINED
    with joined.open("wb") as whole:
        for part in parts:
            whole.write(part.read_bytes())
    try:
        with safe_open(joined, "pt") as opened:
            about = json.loads(opened.metadata()["about"])
        tensors = load_file(joined)
    except SafetensorError as error:
        raise CheckpointError(
            f"{source}: the parts do not join to a whole file ({error}): carry all of them"
        ) from error
    study, formats = tensors.pop(STUDY), about["formats"]
    wide = {name: widened(value, formats.get(name)).bfloat16() for name, value in tensors.items()}
    save_file(wide, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(about["config"], indent=1))
    joined.unlink()
    return replace(open_checkpoint(str(folder)), name=about["name"]), study.numpy().tobytes()


def widened(value: Tensor, name: str | None) -> Tensor:
    """A matrix as floats [rows, columns]. name: its blocks' format; None if it has none."""
    if name is None:
        return value
    form = FORMATS[name]
    return form.unpack(value.reshape(-1, form.size)).view(len(value), -1)
