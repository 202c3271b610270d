"""A name becomes a checkpoint, and a checkpoint a model.

smollm2-135m              a model of the catalogue, once it is pulled
./folder                  safetensors with config.json and tokenizer.json, as Hugging Face saves them
./model.gguf              a file of llama.cpp
./model.llama2c           a file of llama2.c, followed by its tokenizer
org/name                  a folder as above, from the hub
random:llama-3.2-1b       real shapes, random weights, one token per byte
"""

import difflib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradus.device.allocator import give_back_host_memory
from gradus.errors import CheckpointError, ConfigError
from gradus.loading import default_sampling
from gradus.loading.default_sampling import Recommended
from gradus.loading.fetch.catalogue import CATALOGUE, Entry
from gradus.loading.progress import Progress, Silent
from gradus.loading.quoting import quoted
from gradus.loading.tokenizer import Tokenizer
from gradus.models.config import ModelConfig, parameter_count
from gradus.models.families.records import read_config
from gradus.models.shapes import SHAPES

if TYPE_CHECKING:
    import torch

    from gradus.loading.safetensors import SafetensorsFolder
    from gradus.models import LinearFactory, Model, TensorSource
    from gradus.quantization.mix import Mix

RANDOM = "random:"
LLAMA2C = ".llama2c"  # the file name's suffix identifies the format, which has no magic number
RANDOM_SEED = 0
FEW_WEIGHTS = 1 << 24
BYTES_PER_RANDOM_WEIGHT = 2  # as if stored in bfloat16, like the real model of that shape


@dataclass
class Checkpoint:
    """A model that has been found and opened: everything except its weights is in memory.

    source: its folder or file; None for random weights. tensors: None for random weights, and in an
    engine that has read them.
    tokenizer: None if the checkpoint has none; the model then works with token ids alone.
    license: None if unknown. size_bytes: of the weights as stored. quantized: the scheme of each quantized matrix;
    None if no matrix is quantized.
    default_sampling: the values that its files recommend for sampling parameters.
    """

    name: str
    source: Path | None
    config: ModelConfig
    tensors: "TensorSource | None"
    tokenizer: Tokenizer | None
    license: str | None
    size_bytes: int
    quantized: "Mix | None" = None
    default_sampling: Recommended = field(default_factory=Recommended)

    @property
    def vocabulary(self) -> "Callable[[], Sequence[bytes]] | None":
        """Returns the bytes of each of the model's tokens; None without a tokenizer."""
        return None if self.tokenizer is None else partial(self.tokenizer.vocabulary, self.config.vocab_size)


def open_checkpoint(name: str, *, progress: Progress | None = None) -> Checkpoint:
    """Find a model by name and read everything except its weights. A hub id is downloaded if it is not in the cache.

    Raises ConfigError for an unknown name or architecture, CheckpointError for damaged or missing files.
    """
    if (config := _random(name)) is not None:
        return _open_random(name, config)
    with _readable(name):
        path = _find(name, progress)
        checkpoint = _open_folder(name, path, progress) if path.is_dir() else _open_file(name, path)
    give_back_host_memory()  # parsing a vocabulary takes several times the memory that it keeps
    if name in CATALOGUE:
        checkpoint.license = CATALOGUE[name].license.name
    return checkpoint


def open_tokenizer(name: str, *, progress: Progress | None = None) -> Tokenizer | None:
    """Find a model by name as `open_checkpoint` does, but open only its tokenizer: without torch, for a front end whose
    engine is in another process. None if the model has no tokenizer."""
    from gradus.loading import folder

    if _random(name) is not None:
        return Tokenizer.of_bytes()
    with _readable(name):
        path = _find(name, progress)
        tokenizer = folder.read_tokenizer(path, name) if path.is_dir() else _tokenizer_of_file(name, path)
    give_back_host_memory()
    return tokenizer


def as_asked(
    checkpoint: Checkpoint, quantize: str | None, setting: str = "quantize", *, keeps_bits: bool = False
) -> Checkpoint:
    """Choose how to read a GGUF file's matrices, by the setting `quantize` or the draft's: packed, or as floats.

    keeps_bits: whether they stay packed if `quantize` is None. Raises ConfigError if AS_STORED is asked for and no
    matrix can stay packed.
    """
    from gradus.quantization.schemes import AS_STORED

    asked = quantize == AS_STORED
    if checkpoint.quantized is not None or not (asked or (keeps_bits and quantize is None)):
        return checkpoint
    from gradus.loading.gguf.model import GGUFTensors
    from gradus.loading.gguf.packed import KEPT, PackedGGUF

    packed = PackedGGUF(checkpoint.tensors, checkpoint.config) if isinstance(checkpoint.tensors, GGUFTensors) else None
    if packed is None or not packed.mix.rules:
        if not asked:
            return checkpoint
        kinds = ", ".join(kind.name for kind in KEPT)
        raise ConfigError(
            f"{setting} {AS_STORED}: {checkpoint.name} has no matrix that is stored as {kinds}: leave {setting} out, "
            "or name a scheme"
        )
    return replace(checkpoint, tensors=packed, quantized=packed.mix)


def load_model(
    checkpoint: Checkpoint,
    *,
    dtype: "torch.dtype",
    device: "torch.device | str",
    linear: "LinearFactory | None" = None,
    progress: Progress | None = None,
) -> "Model":
    """Load the model with all of its weights. Raises CheckpointError if any is missing or wrong.

    dtype: of activations, norms and embeddings. linear: the factory of matrices; None stores them in `dtype`.
    """
    from gradus.models import Linear, create_model, load_weights, randomize

    progress = progress or Silent()
    tensors = checkpoint.tensors
    if tensors is not None:
        _check_size(checkpoint.config, tensors)
    give_back_host_memory()  # freed by the tokenizer's construction
    progress.begin(f"loading {model_name(checkpoint.name)}", None if tensors is None else checkpoint.size_bytes)
    model = create_model(checkpoint.config, dtype=dtype, device=device, linear=linear or Linear)
    if tensors is None:
        randomize(model, RANDOM_SEED)
    else:
        load_weights(model, tensors, on_tensor=_counting(checkpoint.size_bytes, tensors, progress.advance))
    return model


def model_name(name: str) -> str:
    """Name a model in answers: a path by its last part, without a suffix for its format; other names stay as they are.

    A path would show clients the server's disk, and change when the file moves.
    """
    try:
        path = Path(name).expanduser()
        if name in CATALOGUE or not path.exists():
            return name
    except (OSError, RuntimeError):  # too long for a path; ~user, for a user without a home
        return name
    path = Path(os.path.abspath(path))  # of "." too; a link keeps its own name
    return (path.stem if path.suffix in (".gguf", LLAMA2C) else path.name) or name


# -- by kind of name ---------------------------------------------------------------------------------------------------


def _find(name: str, progress: Progress | None) -> Path:
    """Find a model's folder or file. A hub id is downloaded if it is not in the cache."""
    here = find_here(name)
    if here is not None:
        return here
    from gradus.loading.fetch import hub

    return hub.download(name, progress=progress)


def find_here(name: str) -> Path | None:
    """Find a model's folder or file without the hub; None for a hub id. Raises ConfigError or CheckpointError."""
    if name in CATALOGUE:
        return _pulled(CATALOGUE[name])
    try:
        path = Path(name).expanduser()
    except RuntimeError as error:  # ~user, for a user without a home
        raise ConfigError(f"no model named {quoted(name)}: {error}") from error
    if path.exists():
        return path
    from gradus.loading.fetch import hub

    if not hub.is_hub_id(name):
        raise ConfigError(
            f"no model named {quoted(name)}{_near(name, CATALOGUE)}; a model is {', '.join(CATALOGUE)}, an existing "
            "folder of safetensors, a .gguf file, a hub id (org/name), or random:<shape>"
        )
    return None


def _pulled(entry: Entry) -> Path:
    if not entry.pulled:
        changed = " (what is there has changed since it was verified)" if entry.path.exists() else ""
        raise CheckpointError(
            f"{entry.name} is not pulled yet{changed}: run `gradus pull {entry.name}` "
            f"({entry.size_bytes / 1e6:.0f} MB, {entry.license.name})"
        )
    return entry.path


@contextmanager
def _readable(name: str) -> Iterator[None]:
    """Turn the system's errors into one line that names the model."""
    try:
        yield
    except OSError as error:  # a name that is too long, a folder that may not be entered
        raise CheckpointError(f"{quoted(name)}: cannot be read: {error.strerror or error}") from error


def _random(name: str) -> ModelConfig | None:
    """Return the shape of random weights, if a name asks for them. Raises ConfigError for what can be no name."""
    if not isinstance(name, str) or not name or "\0" in name:
        raise ConfigError(f"model must be a name, a path or a hub id, got {quoted(name)}")
    if not name.startswith(RANDOM):
        return None
    shape = name.removeprefix(RANDOM)
    if shape not in SHAPES:
        raise ConfigError(
            f"no shape named {quoted(shape)}{_near(shape, SHAPES)}; `gradus models` lists the known shapes"
        )
    return SHAPES[shape]


def _open_random(name: str, config: ModelConfig) -> Checkpoint:
    return Checkpoint(
        name=name,
        source=None,
        config=config,
        tensors=None,
        tokenizer=Tokenizer.of_bytes(),
        license=None,
        size_bytes=parameter_count(config) * BYTES_PER_RANDOM_WEIGHT,
    )


def _open_folder(name: str, folder: Path, progress: Progress | None) -> Checkpoint:
    from gradus.loading import folder as hugging_face
    from gradus.loading.safetensors import SafetensorsFolder
    from gradus.models.create import model_class
    from gradus.models.weights import tied_as_stored

    tensors = SafetensorsFolder(folder)
    quantization, config = hugging_face.read_quantization(folder), hugging_face.read_config(folder)
    if (skipped := _skip_other_parts(tensors, config)) and progress is not None:
        progress.note(f"{name}: {skipped}")
    source, quantized = _unpacked(tensors, quantization, config)
    return Checkpoint(
        name=name,
        source=folder,
        config=tied_as_stored(config, model_class(config.family), source),
        tensors=source,
        tokenizer=hugging_face.read_tokenizer(folder, name),
        license=None,
        size_bytes=tensors.size_bytes,
        quantized=quantized,
        default_sampling=default_sampling.of_folder(folder),
    )


def _skip_other_parts(tensors: "SafetensorsFolder", config: ModelConfig) -> str:
    """Leave out what computes no text. Returns a line that says what; empty if there is nothing else."""
    from gradus.models.create import model_class
    from gradus.models.weights import of_other_parts

    names = of_other_parts(model_class(config.family), tensors)
    parts = sorted({name.removeprefix("model.").partition(".")[0] for name in names})
    size = tensors.leave_out(names)
    if not names:
        return ""
    return f"skipped {len(names)} tensors ({size / 1e6:.1f} MB) of {', '.join(parts)}: only text is computed"


def _unpacked(
    tensors: "SafetensorsFolder", quantization: dict[str, Any] | None, config: ModelConfig
) -> "tuple[TensorSource, Mix | None]":
    """Return the tensors by the names that a model uses, and the storage schemes of its matrices."""
    if quantization is None:
        return tensors, None
    from gradus.loading.quantized.tensors import QuantizedTensors
    from gradus.models.create import model_class
    from gradus.models.weights import canonical_name

    found = QuantizedTensors(tensors, quantization)
    return found, found.mix(partial(canonical_name, model_class(config.family)))


def _check_kind(name: str, path: Path) -> None:
    """Refuse files whose names say that they are no checkpoint that is opened here."""
    if path.suffix == ".safetensors":
        raise CheckpointError(f"{name}: give the folder it lies in, with its config.json")
    if path.suffix in (".bin", ".pt", ".pth"):
        raise CheckpointError(
            f"{name}: pickled weights can run code when they are opened, so Gradus never does: convert them to "
            "safetensors where you trust them, with transformers' save_pretrained"
        )


def _tokenizer_of_file(name: str, path: Path) -> Tokenizer | None:
    _check_kind(name, path)
    if path.suffix == LLAMA2C:
        from gradus.loading.llama2c import Llama2cFile

        return Llama2cFile(path).tokenizer()
    from gradus.loading.gguf.file import GGUFFile
    from gradus.loading.gguf.tokenizer import read_tokenizer

    return read_tokenizer(GGUFFile(path))


def _open_file(name: str, path: Path) -> Checkpoint:
    _check_kind(name, path)
    if path.suffix == LLAMA2C:
        return _open_llama2c(name, path)
    from gradus.loading.gguf.architectures import hugging_face_config
    from gradus.loading.gguf.file import GGUFFile
    from gradus.loading.gguf.model import GGUFTensors
    from gradus.loading.gguf.tokenizer import read_tokenizer

    file = GGUFFile(path)
    try:
        config = read_config(hugging_face_config(file))
    except ConfigError as error:
        raise ConfigError(f"{path.name}: {error}") from error
    found, tokenizer = file.metadata.get("general.license"), read_tokenizer(file)
    file.drop_vocabulary()
    return Checkpoint(
        name=name,
        source=path,
        config=config,
        tensors=GGUFTensors(file),
        tokenizer=tokenizer,
        license=found if isinstance(found, str) else None,
        size_bytes=file.size_bytes,
        default_sampling=default_sampling.of_gguf(path, file.metadata, _recommended(path)),
    )


def _open_llama2c(name: str, path: Path) -> Checkpoint:
    from gradus.loading.llama2c import Llama2cFile

    file = Llama2cFile(path)
    return Checkpoint(
        name=name,
        source=path,
        config=read_config(file.config),
        tensors=file,
        tokenizer=file.tokenizer(),
        license=None,
        size_bytes=path.stat().st_size,
        default_sampling=_recommended(path) or Recommended(),
    )


def _recommended(path: Path) -> Recommended | None:
    """Return what the catalogue recommends for a file of its own, or a copy of one; None for any other."""
    found = path.name, path.stat().st_size
    return next((each.sampling for each in CATALOGUE.values() if (each.file_name, each.size_bytes) == found), None)


def _near(name: str, known: "dict[str, Entry] | dict[str, ModelConfig]") -> str:
    close = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    return f" (did you mean {' or '.join(close)}?)" if close else ""


# -- weights -----------------------------------------------------------------------------------------------------------


def _check_size(config: ModelConfig, tensors: "TensorSource") -> None:
    """Check that the files could fill the model before its memory is allocated: a configuration may claim anything."""
    needed, found = parameter_count(config), _values(tensors)
    if needed > 2 * found + FEW_WEIGHTS:  # smaller mismatches get a better message later, about the first wrong tensor
        raise CheckpointError(
            f"the configuration calls for {needed} weights, the files hold {found}: they do not belong together"
        )


def _values(tensors: "TensorSource") -> int:
    return sum(math.prod(tensors.shape(name)) for name in tensors.names())


def _counting(size_bytes: int, tensors: "TensorSource", advance: Callable[[int], None]) -> Callable[[str, int], None]:
    """Return a callback that reports a tensor's share of the files' bytes. Quantized tensors differ in size in
    memory."""
    bytes_per_value = size_bytes / max(_values(tensors), 1)
    return lambda name, _: advance(round(math.prod(tensors.shape(name)) * bytes_per_value))
