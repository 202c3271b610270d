"""Make the two sides of a server from its configuration: the front end's tokenizer, and the engine.

The final engine is made in another process: the front end then opens only the tokenizer, which needs no torch. If one
process makes both, it opens the model's files once. `EngineClient` takes this module's name; another module with the
same two functions can replace it.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradus.config.options import SERVED_SLOWDOWN, SERVED_STEP_TARGETS, SETTINGS
from gradus.engine.core import Core
from gradus.engine.request import ModelLimits
from gradus.errors import ConfigError
from gradus.loading import Progress
from gradus.loading.default_sampling import Recommended
from gradus.server.config import ServerConfig
from gradus.server.engine.messages import ModelInfo
from gradus.structured import grammars_of

if TYPE_CHECKING:
    import torch

    from gradus.config.options import EngineOptions
    from gradus.execution.memory.device_memory import DeviceMemory
    from gradus.execution.memory.plan import MemoryPlan
    from gradus.loading import Checkpoint, Tokenizer
    from gradus.models.config import ModelConfig
    from gradus.models.precision import Precision
    from gradus.text.llm import LLM

_opened: dict[str, "Checkpoint"] = {}  # by the model's name, kept between `open_tokenizer` and `load_engine`


def open_tokenizer(config: ServerConfig, progress: Progress | None = None) -> "Tokenizer | None":
    """Open the model's tokenizer; None if it has none. Downloads a hub's model if it is not in the cache."""
    if config.phase is None:
        from gradus.loading import open_tokenizer as open_alone

        return open_alone(config.model, progress=progress)
    from gradus.loading import open_checkpoint

    checkpoint = _opened[config.model] = open_checkpoint(config.model, progress=progress)
    return checkpoint.tokenizer


@dataclass(frozen=True)
class Prepared:
    """A model and how it would run, before any weight is read. config, options: those of one rank.

    draft: the draft model's checkpoint and precision.
    """

    config: "ModelConfig"
    options: "EngineOptions"
    precision: "Precision"
    draft: "tuple[Checkpoint, Precision] | None"


def prepared(settings: ServerConfig, checkpoint: "Checkpoint", device: "torch.device") -> Prepared:
    """Decide the engine's options and the model's precision. Raises ConfigError for settings that cannot work, or if a
    runner in another process has the memory."""
    from gradus.assembly.checkpoint import keeps_bits, open_draft
    from gradus.assembly.parallel import for_each_rank, place_of, precision_of_ranks
    from gradus.config.options import EngineConfig, resolve_context
    from gradus.loading import as_asked
    from gradus.quantization.precision import resolve

    if settings.remote:
        raise ConfigError("the memory of a model in another process is that process's to plan: leave out --runner")
    config = checkpoint.config
    settings = settings.merge(
        {"memory_fraction": memory_fraction(settings, device.type)} | promises(settings, device.type)
    )
    limits = ModelLimits(config.vocab_size, resolve_context(settings.context_length, config.context_length))
    options = settings.options(limits, device.type)
    keeps = keeps_bits(settings.dtype, options, device)
    checkpoint = as_asked(checkpoint, settings.quantize, keeps_bits=keeps)
    precision = resolve(settings.dtype, settings.quantize, device, config, checkpoint.quantized)
    if isinstance(options, EngineConfig) and options.ranks > 1:  # the plan is per rank
        options, config = for_each_rank(options, config, device), place_of(options, 0).shard(config).config
        precision = precision_of_ranks(precision)
    draft = open_draft(checkpoint, options, device, precision) if isinstance(options, EngineConfig) else None
    return Prepared(config, options, precision, draft)


def planned(settings: ServerConfig, checkpoint: "Checkpoint") -> "tuple[MemoryPlan, dict[str, str] | None]":
    """Plan the memory without reading any weights, and describe the draft model, if there is one."""
    from gradus.models.precision import resolve_device

    device = resolve_device(settings.device)
    ready = prepared(settings, checkpoint, device)
    draft = ready.draft
    named = None if draft is None else {"name": draft[0].name, "dtype": draft[1].name}
    return plan_of(ready, settings.phase, device), named


def plan_of(
    ready: Prepared, phase: str | None, device: "torch.device", memory: "DeviceMemory | None" = None
) -> "MemoryPlan":
    """Plan the memory of a prepared model. memory: the device's; None: it is measured."""
    from gradus.execution.memory.plan import memory_plan

    draft = None if ready.draft is None else (ready.draft[0].config, ready.draft[1])
    return memory_plan(ready.config, ready.options, device, ready.precision, phase=phase, memory=memory, draft=draft)


def load_engine(config: ServerConfig, progress: Progress | None = None) -> tuple[Core, ModelInfo]:
    """Load the engine that the configuration describes."""
    from gradus.loading import open_checkpoint
    from gradus.text.llm import LLM, eos_of  # imports torch

    checkpoint = _opened.pop(config.model, None)  # removed: it would keep the weights' files open
    checkpoint = checkpoint or open_checkpoint(config.model, progress=progress)
    if config.phase is None and checkpoint.tokenizer is not None:
        width = checkpoint.config.vocab_size
        limits = ModelLimits(width, checkpoint.config.context_length, eos_of(checkpoint))
        grammars_of(checkpoint.tokenizer, limits).warm()  # while the weights are read
    llm = LLM(**keywords(config) | {"model": checkpoint}, progress=progress)
    return llm.core, described(llm, config)


def keywords(config: ServerConfig) -> dict[str, Any]:
    """The keywords for `LLM`, with a server's own defaults."""
    from gradus.models.precision import resolve_device

    given = config.keywords()
    if config.share[1] > 1:
        given["memory_fraction"] = memory_fraction(config, resolve_device(config.device).type)
    if not config.remote:
        given |= promises(config, resolve_device(config.device).type)
    return given


def promises(config: ServerConfig, device: str) -> dict[str, float | None]:
    """Return the step target and the slowdown of a server on this kind of device, "cpu" or "cuda": its clients share
    steps, so both have defaults where prompts are cut."""
    given = config.keywords()
    target, slowdown = given["step_target"], given["slowdown"]
    if config.phase is None and "chunked" not in config.switch_off:
        target = SERVED_STEP_TARGETS[device] if target is None else target
        slowdown = SERVED_SLOWDOWN if slowdown is None and target and device == "cuda" else slowdown
    return {"step_target": target, "slowdown": slowdown}


def memory_fraction(config: ServerConfig, device: str) -> float | None:
    """Return a model's part of `memory_fraction`. device: "cpu" or "cuda".

    On a GPU it is a part of the whole memory, and includes the parts that other models hold. On a CPU it is a part of
    the free memory.
    """
    place, places = config.share
    given: float | None = config.keywords()["memory_fraction"]
    if places == 1:
        return given
    whole: float = SETTINGS["memory_fraction"].suits[device] if given is None else given
    return whole * place / places if device == "cuda" else whole / places


def described(llm: "LLM", config: ServerConfig | None = None) -> ModelInfo:
    """Describe an engine for the server's front end. config: gives defaults of sampling; None: the model's alone."""
    from gradus.loading import model_name

    sampling, sources = sampling_of(llm.checkpoint, config or ServerConfig())
    return ModelInfo(
        model=model_name(llm.checkpoint.name),
        engine=llm.engine_name,
        phase=llm.phase,
        device=llm.device_name,
        dtype=llm.dtype,
        limits=llm.limits,
        settings=llm.settings,
        default_sampling=sampling,
        sampling_sources=sources,
        weight_bytes=llm.weight_bytes,
        sessions={str(length): count for length, count in llm.sequences_by_length.items()},
        kept_sessions={str(length): count for length, count in llm.kept_by_length.items()},
    )


def sampling_of(checkpoint: "Checkpoint", config: ServerConfig) -> tuple[dict[str, float], dict[str, str]]:
    """Return the sampling of requests that leave it out, and where each value comes from."""
    found = checkpoint.default_sampling if config.generation_config == "auto" else Recommended()
    sources = dict.fromkeys(found.values, found.source) | dict.fromkeys(config.sampling, "the server's settings")
    return {**found.values, **config.sampling}, sources
