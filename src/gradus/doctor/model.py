"""Whether a model would load, and what it would cost, from its configuration alone: no weight is read, none is needed.

A model is a shape, a name of the catalogue, a folder, a config.json, a .gguf or .llama2c file, or a hub id in the hub's
cache: nothing is downloaded. Every fault has a line, not only the first.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradus.doctor.finding import FAILED, NOTE, OK, WARNING, Finding
from gradus.errors import CheckpointError, ConfigError
from gradus.execution.memory.footprint import context_bytes, weight_bytes
from gradus.models.config import (
    LinearScaling,
    Llama3Scaling,
    LongRope,
    ModelConfig,
    Scaling,
    Yarn,
    parameter_count,
    parameters_per_token,
)
from gradus.models.families.faults import read_through

if TYPE_CHECKING:
    from gradus.loading.tokenizer import Tokenizer

CONTEXTS = (8192, 32768, 131072)  # tokens
OTHER_PARTS = {
    "vision_config": "images",
    "audio_config": "sound",
}  # keys of the parts of a config.json that are not loaded


@dataclass(frozen=True)
class _Source:
    """A model's files, found by its name.

    raw: its config.json, or the same keys from another format. stored: the size of its weights' files, in words; "" if
    there are none.
    """

    where: str
    raw: dict[str, Any] | None
    config: ModelConfig | None
    faults: list[str]
    tokenizer: "Tokenizer | CheckpointError | None"
    stored: str = ""


def examine_model(name: str) -> list[Finding]:
    """Examine a model by its name. Raises ConfigError or CheckpointError if the name leads to nothing readable."""
    source = _source(name)
    found = [Finding("model", OK, source.where), *_loads(source)]
    if source.config is not None:
        found += [_weights(source.config, source.stored), _context(source.config), _cache(source.config)]
    return [*found, *_text(source.tokenizer)]


# -- from a name to its files ------------------------------------------------------------------------------------------


def _source(name: str) -> _Source:
    from gradus.loading import open_checkpoint
    from gradus.loading.checkpoint import RANDOM, find_here

    if name.startswith(RANDOM):
        shape = open_checkpoint(name)
        return _Source("a shape, with random weights", None, shape.config, [], shape.tokenizer)
    path = find_here(name) or _in_the_hubs_cache(name)
    if path.is_dir():
        return _of_folder(path)
    return _of_folder(path.parent, path) if path.suffix == ".json" else _of_file(path)


def _in_the_hubs_cache(name: str) -> Path:
    from gradus.loading.fetch import hub

    cached = hub.cached(name, "config.json")
    if cached is None:
        raise CheckpointError(
            f"{name}: its config.json is not in the hub's cache; nothing is downloaded here: run `gradus pull {name}`, "
            "or give the path of its config.json"
        )
    return cached.parent


def _of_folder(folder: Path, file: Path | None = None) -> _Source:
    from gradus.loading import folder as hugging_face
    from gradus.loading.json_file import read_object

    raw = hugging_face.read_raw_config(folder) if file is None else read_object(file)
    config, faults = read_through(raw)
    files = sorted(folder.glob("*.safetensors"))
    size = sum(each.stat().st_size for each in files)
    stored = f"{len(files)} files of {_size(size)}" if len(files) > 1 else f"one file of {_size(size)}" if files else ""
    try:
        tokenizer = hugging_face.read_tokenizer(folder)
    except CheckpointError as error:
        return _Source(str(file or folder), raw, config, faults, error, stored)
    return _Source(str(file or folder), raw, config, faults, tokenizer, stored)


def _of_file(path: Path) -> _Source:
    from gradus.loading.checkpoint import LLAMA2C

    if path.suffix == LLAMA2C:
        from gradus.loading.llama2c import Llama2cFile

        stories = Llama2cFile(path)
        config, faults = read_through(stories.config)
        stored = f"one file of {_size(path.stat().st_size)}"
        return _Source(str(path), stories.config, config, faults, stories.tokenizer(), stored)
    if path.suffix != ".gguf":
        raise ConfigError(f"{path}: give its folder, its config.json, or a .gguf file")
    from gradus.loading.gguf.architectures import hugging_face_config
    from gradus.loading.gguf.file import GGUFFile
    from gradus.loading.gguf.tokenizer import read_tokenizer

    file = GGUFFile(path)
    stored, tokenizer = f"one file of {_size(file.size_bytes)}", None
    try:
        tokenizer = read_tokenizer(file)
        raw = hugging_face_config(file)
    except (CheckpointError, ConfigError) as error:
        return _Source(str(path), None, None, [str(error)], tokenizer, stored)
    config, faults = read_through(raw)
    return _Source(str(path), raw, config, faults, tokenizer, stored)


# -- what they say -----------------------------------------------------------------------------------------------------


def _loads(source: _Source) -> Iterator[Finding]:
    """Whether the model would load, as which family, and each reason why not."""
    if source.config is None:
        advice = "`gradus models --families` lists what loads"
        yield Finding("loads", FAILED, f"no: {_many(len(source.faults), 'reason')}", advice)
        yield from (Finding("missing", FAILED, fault) for fault in source.faults)
        return
    raw = source.raw or {}
    spelled = f", by model_type {raw['model_type']}" if "model_type" in raw else ""
    yield Finding("loads", OK, f"yes, as {source.config.family}{spelled}")
    left = [what for key, what in OTHER_PARTS.items() if raw.get(key)]
    if left:
        yield Finding("left out", NOTE, f"the text part alone is loaded: {' and '.join(left)} cannot be given to it")
    scheme = raw.get("quantization_config")
    if isinstance(scheme, dict):
        method = scheme.get("quant_method", "of no name")
        yield Finding("quantized", NOTE, f"{method}: its matrices are checked as they are loaded")


def _weights(config: ModelConfig, stored: str) -> Finding:
    parameters = f"{parameter_count(config) / 1e9:.3g} B parameters"
    if any(config.experts):
        parameters += f", {parameters_per_token(config) / 1e9:.3g} B of them per token"
    sizes = f"{_size(weight_bytes(config))} in bfloat16, {_size(weight_bytes(config, 4))} in float32"
    return Finding("weights", OK, f"{parameters}: {sizes}; {f'here: {stored}' if stored else 'none are here'}")


def _context(config: ModelConfig) -> Finding:
    ropes = [rope for rope in dict.fromkeys(config.ropes) if rope is not None]
    reasons = [_reason(rope.scaling) for rope in ropes if rope.scaling is not None]
    if config.learned_positions:
        reasons.append("the table of positions ends there")
    windows = [window for window in config.windows if window is not None]
    if windows:
        reasons.append(f"{len(windows)} of {config.num_layers} layers see the last {windows[0]} alone")
    still = sum(rope is None for rope in config.ropes)
    if still and not config.learned_positions:
        reasons.append(f"{still} of {config.num_layers} layers have no positions")
    return Finding("context", OK, "; ".join([f"{config.context_length} tokens", *dict.fromkeys(reasons)]))


def _reason(scaling: Scaling) -> str:
    match scaling:
        case Yarn(factor, original):
            return f"YaRN extends the {original} of its training by {factor:g}"
        case LongRope(original_context=original):
            return f"LongRoPE extends the {original} of its training"
        case Llama3Scaling(factor, original_context=original):
            return f"Llama 3's scaling extends the {original} of its training by {factor:g}"
        case LinearScaling(factor):
            return f"positions are divided by {factor:g}"


def _cache(config: ModelConfig) -> Finding:
    lengths = sorted({*(tokens for tokens in CONTEXTS if tokens < config.context_length), config.context_length})
    taken = [f"{_size(context_bytes(config, tokens))} for {tokens} tokens" for tokens in lengths]
    return Finding("cache", OK, f"{', '.join(taken)}, in bfloat16")


def _text(tokenizer: "Tokenizer | CheckpointError | None") -> Iterator[Finding]:
    if isinstance(tokenizer, CheckpointError):
        yield Finding("tokenizer", FAILED, str(tokenizer))
        return
    if tokenizer is None:
        yield Finding("tokenizer", WARNING, "none", "the model works with token ids alone: add its tokenizer.json")
        return
    yield Finding("tokenizer", OK, f"{tokenizer.vocab_size} tokens")
    templates = tokenizer.chat_templates
    if templates.used:
        tools = ", and one of its own for tools" if templates.tool_use is not None else ""
        yield Finding("chat template", OK, f"present{tools}")
    else:
        yield Finding("chat template", NOTE, "none", "it continues texts; a conversation needs a template")


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _size(count: float) -> str:
    """Bytes, as files are sized: 6.15 GB."""
    return f"{count / 1e9:.3g} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"
