"""Quantize a checkpoint layer by layer: at most one layer is in memory, in addition to the text's states.

Every layer is a separate file, so an interrupted run resumes where it stopped. `quantize.json` records its settings and
progress, and is removed from a finished checkpoint.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from gradus.calibration.files import fp8_tensors, int4_tensors, int8_tensors, quantization_config
from gradus.calibration.layer import LoneLayer, around_layers, embedded
from gradus.calibration.methods import METHODS, scale_columns
from gradus.calibration.observed import ObservedLinear
from gradus.errors import ConfigError
from gradus.loading import Checkpoint, Progress
from gradus.loading.safetensors import read_header
from gradus.loading.small_files import small_files
from gradus.models.config import ModelConfig
from gradus.models.create import create_model, model_class
from gradus.models.layers import Linear
from gradus.models.source import Stack, Transposed, tensors_of
from gradus.models.weights import CheckedSource, Piece, TensorSource, checked
from gradus.quantization.grid import wide
from gradus.quantization.int4 import GROUPS
from gradus.quantization.mix import floats_alone, matrix_ids, names_of

SCHEMES = ("int4", "int8", "fp8")
STATE = "quantize.json"
HIDDEN = "hidden.safetensors"
DTYPE = torch.bfloat16  # of tensors that stay floats in the file


@dataclass(frozen=True)
class Recipe:
    """scheme: one of SCHEMES. method: one of METHODS; awq and gptq are for int4. group: of int4; None: the largest
    that divides every row. samples, length: the number of pieces of the text, and the tokens of each."""

    scheme: str = "int4"
    method: str = "rtn"
    group: int | None = None
    samples: int = 128
    length: int = 512

    def __post_init__(self) -> None:
        if self.scheme not in SCHEMES:
            raise ConfigError(f"scheme must be {', '.join(SCHEMES)}, got {self.scheme!r}")
        if self.method not in METHODS:
            raise ConfigError(f"method must be {', '.join(METHODS)}, got {self.method!r}")
        if self.method != "rtn" and self.scheme != "int4":
            raise ConfigError(f"method {self.method} is for int4: {self.scheme} is rounded to nearest (rtn)")
        if self.group is not None and (self.scheme != "int4" or self.group not in GROUPS):
            raise ConfigError(f"group is for int4, and one of {', '.join(map(str, GROUPS))}, got {self.group}")
        if self.samples < 1 or self.length < 2:
            raise ConfigError("samples must be 1 or more, and length 2 or more")

    def group_of(self, config: ModelConfig) -> int | None:
        """Choose one group size for all matrices. Raises ConfigError if it does not divide the rows of each."""
        if self.scheme != "int4":
            return None
        layers = [config.layer(layer) for layer in range(config.num_layers)]
        found = {width for each in layers for width in (each.hidden_size, each.intermediate_size, each.q_width)}
        found |= {each.width for each in config.experts if each is not None} | {config.per_layer_width}
        widths = sorted(found - {0})
        fitting = [group for group in GROUPS if all(width % group == 0 for width in widths)]
        if not fitting or (self.group or fitting[0]) not in fitting:
            wanted = f"groups of {self.group}" if self.group else "no group of 128, 64, 32"
            raise ConfigError(f"int4: {wanted} would divide rows of {', '.join(map(str, widths))} weights")
        return self.group or fitting[0]


def quantize(
    checkpoint: Checkpoint,
    out: Path,
    recipe: Recipe,
    text: str | None,
    *,
    device: torch.device,
    progress: Progress,
    prepare: Callable[[LoneLayer], None] = lambda layer: None,
) -> None:
    """Write a quantized checkpoint to the folder `out`. text: the calibration text, for awq and gptq.

    prepare: changes a layer before it is quantized, without changing its result.

    Raises ConfigError, before anything is written, for an impossible recipe, or a folder that holds another run.
    """
    source, group = _checked(checkpoint, recipe)
    config, texts = small_files(checkpoint)
    sequences = _sequences(checkpoint, recipe, text, device)
    run = Run.begin(out, {"model": checkpoint.name, "text": len(text or ""), "group": group, **asdict(recipe)})
    with torch.inference_mode():
        hidden = run.hidden(device)
        if hidden is None and sequences is not None:
            hidden = embedded(around_layers(checkpoint.config, source, device), sequences)
        progress.begin(f"quantizing {checkpoint.name}", checkpoint.config.num_layers)
        progress.advance(run.done)
        for number in range(run.done, checkpoint.config.num_layers):
            layer = LoneLayer.load(checkpoint.config, number, source, device)
            prepare(layer)
            tensors, hidden = _quantized(layer, recipe, group, hidden)
            run.write(number, tensors, hidden)
            progress.advance(1)
    described = quantization_config(recipe.scheme, group, _unquantized(checkpoint.config))
    run.finish(_around(source), config | {"quantization_config": described}, texts)


def _checked(checkpoint: Checkpoint, recipe: Recipe) -> tuple[CheckedSource, int | None]:
    config = checkpoint.config
    if checkpoint.quantized is not None:
        raise ConfigError(f"{checkpoint.name} is quantized already ({checkpoint.quantized.label})")
    if checkpoint.tensors is None:
        raise ConfigError(f"{checkpoint.name}: random weights have no files to write others like")
    sources = [each for source in model_class(config.family).weights.values() for each in tensors_of(source)]
    if any(isinstance(source, Transposed) for source in sources):
        raise ConfigError(f"{checkpoint.name}: no format has quantized {config.family}, whose matrices lie transposed")
    if any(config.experts) and any(isinstance(source, Stack) for source in sources):
        raise ConfigError(
            f"{checkpoint.name}: no format has quantized {config.family}, whose experts lie in one stack: quantize "
            "them at the start (--quantize)"
        )
    if recipe.method != "rtn" and any(config.experts):
        raise ConfigError(
            f"{checkpoint.name}: method {recipe.method} observes what each matrix reads, of which a text shows most "
            "experts little: take method rtn"
        )
    if recipe.method != "rtn" and (config.kv_sources or config.per_layer_width):
        raise ConfigError(
            f"{checkpoint.name}: method {recipe.method} observes one layer at a time, and these layers share keys and "
            "values or have embeddings of their own: take method rtn"
        )
    group = recipe.group_of(config)
    return checked(create_model(config, device="meta", linear=ObservedLinear), checkpoint.tensors), group


def _sequences(checkpoint: Checkpoint, recipe: Recipe, text: str | None, device: torch.device) -> list[Tensor] | None:
    if recipe.method == "rtn":
        return None
    if text is None or checkpoint.tokenizer is None:
        missing = "a text to calibrate by (--calibration FILE)" if text is None else "a tokenizer with the model"
        raise ConfigError(f"method {recipe.method} needs {missing}")
    length = min(recipe.length, checkpoint.config.context_length)
    ids = torch.tensor(checkpoint.tokenizer.encode(text, special_tokens=False), device=device)
    pieces = [piece for piece in ids.split(length)[: recipe.samples] if len(piece) == length]
    if not pieces:
        raise ConfigError(f"the text to calibrate by has {len(ids)} tokens, fewer than one sequence of {length}")
    return pieces


def _quantized(
    layer: LoneLayer, recipe: Recipe, group: int | None, hidden: list[Tensor] | None
) -> tuple[dict[str, Tensor], list[Tensor] | None]:
    """Quantize a layer. Returns its tensors by name, and the text's states after the quantized layer."""
    if hidden is not None:
        layer.observed(hidden)
        if recipe.method == "awq":
            scale_columns(layer, group or 0, DTYPE)
    stored: dict[Linear, list[dict[str, Tensor]]] = {}
    for linear in layer.linears().values():
        pieces = [piece for piece in layer.pieces() if piece.module is linear and piece.parameter == "weight"]
        stored[linear] = _matrices(linear, pieces, recipe, group)
        linear.forget()
    return dict(_tensors(layer, stored)), None if hidden is None else layer.run(hidden)


def _matrices(
    linear: ObservedLinear, pieces: list[Piece], recipe: Recipe, group: int | None
) -> list[dict[str, Tensor]]:
    """Quantize a matrix. Returns the tensors of each of its pieces in the file, by the ends of their names;
    sets the weights to their values."""

    def in_the_file(each: Tensor) -> list[Tensor]:
        parts = zip(pieces, each.split([piece.shape[0] for piece in pieces]), strict=True)
        return [piece.stored.restore(part) for piece, part in parts]

    if group is None:
        make = int8_tensors if recipe.scheme == "int8" else fp8_tensors
        return [make(part) for part in in_the_file(linear.weight)]
    values, grid = METHODS[recipe.method](linear, group, DTYPE)
    linear.weight.copy_(wide(values, grid.per_column(group)))
    parts = zip(*(in_the_file(each) for each in (values, *grid)), strict=True)
    return [int4_tensors(part, type(grid)(*scales), DTYPE) for part, *scales in parts]


def _tensors(layer: LoneLayer, stored: Mapping[Linear, list[dict[str, Tensor]]]) -> Iterator[tuple[str, Tensor]]:
    coming: dict[nn.Module, Iterator[dict[str, Tensor]]] = {linear: iter(parts) for linear, parts in stored.items()}
    for piece in layer.pieces():
        name, module = layer.name(piece), piece.module
        if module in coming and piece.parameter == "weight":
            for end, tensor in next(coming[module]).items():
                yield f"{name.removesuffix('weight')}{end}", tensor.cpu().contiguous()
        else:
            rows = getattr(module, piece.parameter)[piece.start : piece.start + piece.shape[0]]
            yield name, piece.stored.restore(rows).to(DTYPE).cpu().contiguous()


def _unquantized(config: ModelConfig) -> list[str]:
    """The matrices outside of all layers, and routers, by their names in the file."""
    outside = [name for matrix in matrix_ids(config) if matrix.layer is None for name in names_of(matrix, config)]
    return [*outside, *floats_alone(config)]


def _around(source: TensorSource) -> dict[str, Tensor]:
    """Read the tensors outside of all layers, unquantized."""
    found = {name: source.read(name) for name in source.names() if ".layers." not in name}
    return {
        name: value.to(DTYPE) if value.is_floating_point() else value
        for name, value in found.items()
        if isinstance(value, Tensor)
    }


@dataclass
class Run:
    """The state of a run. done: the number of layers written."""

    folder: Path
    settings: dict[str, Any]
    done: int

    @classmethod
    def begin(cls, folder: Path, settings: dict[str, Any]) -> "Run":
        """Begin in an empty folder, or resume an interrupted run with the same settings."""
        state = folder / STATE
        if not state.is_file():
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise ConfigError(f"{folder} is there already, and no run that was cut off: give another folder")
            folder.mkdir(parents=True, exist_ok=True)
            run = cls(folder, settings, 0)
            run._note()
            return run
        found = json.loads(state.read_text(encoding="utf-8"))
        if found["settings"] != settings:
            other = sorted(name for name in settings if settings[name] != found["settings"].get(name))
            raise ConfigError(
                f"{folder} holds {found['done']} layers that were quantized with another {', '.join(other)}: "
                "give another folder, or the same settings to go on"
            )
        return cls(folder, settings, found["done"])

    def hidden(self, device: torch.device) -> list[Tensor] | None:
        """Read the text's states after the last layer written."""
        if not (self.folder / HIDDEN).is_file():
            return None
        stored = load_file(self.folder / HIDDEN)
        return [stored[str(number)].to(device) for number in range(len(stored))]

    def write(self, number: int, tensors: dict[str, Tensor], hidden: list[Tensor] | None) -> None:
        """Write a layer, all of it or nothing."""
        self._save(self._layer_file(number), tensors)
        if hidden is not None:
            self._save(HIDDEN, {str(number): each.cpu().contiguous() for number, each in enumerate(hidden)})
        self.done = number + 1
        self._note()

    def finish(self, around: dict[str, Tensor], config: dict[str, Any], texts: Mapping[str, str]) -> None:
        """Write the tensors outside of all layers, the index and the small files; then remove the run's own files."""
        last = self._layer_file(self.done)
        self._save(last, around)
        files = [*(self._layer_file(number) for number in range(self.done)), last]
        index = {name: file for file in files for name in read_header(self.folder / file)}
        texts = {
            **texts,
            "model.safetensors.index.json": json.dumps({"metadata": {}, "weight_map": index}, indent=1),
            "config.json": json.dumps(config, indent=2),
        }
        for name, text in texts.items():
            (self.folder / name).parent.mkdir(exist_ok=True)
            (self.folder / name).write_text(text, encoding="utf-8")
        for name in (HIDDEN, STATE):
            (self.folder / name).unlink(missing_ok=True)

    def _layer_file(self, number: int) -> str:
        return f"model-{number + 1:05}.safetensors"

    def _save(self, name: str, tensors: dict[str, Tensor]) -> None:
        part = self.folder / f"{name}.part"
        save_file(tensors, part, metadata={"format": "pt"})
        os.replace(part, self.folder / name)

    def _note(self) -> None:
        part = self.folder / f"{STATE}.part"
        part.write_text(json.dumps({"settings": self.settings, "done": self.done}), encoding="utf-8")
        os.replace(part, self.folder / STATE)
