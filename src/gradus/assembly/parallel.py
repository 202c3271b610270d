"""Build an engine whose model is divided among several devices: rank 0's engine, and every other rank's runner."""

import json
import logging
from collections.abc import Iterable
from dataclasses import asdict, astuple, replace
from typing import TYPE_CHECKING, Any

import torch

from gradus.assembly.final import build, runnable
from gradus.assembly.memory import enough_memory
from gradus.cache.groups import layer_groups
from gradus.config.options import EngineConfig
from gradus.device import threads
from gradus.device.transfer import current
from gradus.engine.engine import Engine
from gradus.engine.request import ModelLimits
from gradus.errors import ConfigError
from gradus.execution.memory.device_memory import DeviceMemory
from gradus.execution.memory.plan import memory_plan
from gradus.loading import Checkpoint, Progress
from gradus.models.config import ModelConfig
from gradus.models.layers import Linear
from gradus.models.precision import Precision
from gradus.parallel.model import Part, load_part
from gradus.parallel.place import Place
from gradus.parallel.ranks import Ranks, RankZero
from gradus.structured import grammars_of

if TYPE_CHECKING:
    from gradus.parallel.exchange import Exchange

log = logging.getLogger(__name__)

OTHER_RANK = "gradus.assembly.rank"


def assemble_ranks(
    checkpoint: Checkpoint,
    options: EngineConfig,
    device: torch.device,
    precision: Precision,
    progress: Progress | None,
) -> tuple[Engine, EngineConfig]:
    """Start the other ranks, load this one's part, and compose the engine. Also returns the final options.

    The other ranks open the checkpoint by its name. Raises ConfigError for a model that does not divide evenly, too few
    GPUs, or quantized weights; RankLost if another rank could not load.
    """
    place = place_of(options, 0)
    device = device_of(device, place)
    precision = precision_of_ranks(precision)
    shard = place.shard(checkpoint.config)
    _check_stages(checkpoint.config, place)
    each = runnable(for_each_rank(options, checkpoint.config, device), device)
    grammars = None if checkpoint.tokenizer is None else grammars_of(checkpoint.tokenizer, options.limits)
    ranks = Ranks(place.count, OTHER_RANK, _job(checkpoint, place, precision, device))
    try:
        with enough_memory(each, device):
            ranks.wait_until_opened()
            memory = least_memory(each, [DeviceMemory.of(device), *memories(ranks.reports)])
            plan = memory_plan(shard.config, each, device, precision, memory=memory)
            config = plan.applied(each)
            keeps = grammars is not None
            config = replace(config, limits=replace(config.limits, structured=keeps, lazy=keeps, prompt_logprobs=True))
            ranks.tell(_as_json(config))
            part = load_part(checkpoint, place, ranks.path, precision.activations, device, progress, ranks.check)
            exchange = exchange_of(part, config)
            ranks.on_loss = part.abort if exchange is None else exchange.abort
            choose_exchange(exchange, part)
            zero = RankZero(ranks, part.run, ranks.on_loss, exchange)
            engine = build(part.model, config, grammars=grammars, ranks=zero)
            ranks.check()
    except BaseException as error:
        ranks.close()
        if isinstance(error, RuntimeError):  # an exchange that broke: a rank that has gone is the reason
            ranks.check()
        raise
    return engine, config


def for_each_rank(options: EngineConfig, model: ModelConfig, device: torch.device) -> EngineConfig:
    """Reduce the options to one rank's share: on a CPU, the ranks divide its memory and its cores."""
    count = options.ranks
    if device.type == "cuda":
        if options.pipeline_parallel > 1 and options.kernels:
            log.info("%d ranks run on torch: stages of a pipeline have neither kernels nor CUDA graphs yet", count)
            return replace(options, kernels=False, graphs=False)
        if options.tensor_parallel > 1 and model.qk_norm_across_heads and options.kernels:
            log.info("%d ranks run on torch: kernels do not share a norm of all heads among ranks yet", count)
            return replace(options, kernels=False, graphs=False)
        return options
    if options.kernels:
        log.info("%d ranks run on torch: a CPU's kernels do not exchange yet", count)
    fraction = None if options.memory_fraction is None else options.memory_fraction / count
    own = max(1, (options.threads or threads.use(None)) // count)
    return replace(options, kernels=False, graphs=False, memory_fraction=fraction, threads=threads.use(own))


def least_memory(options: EngineConfig, each: list[DeviceMemory]) -> DeviceMemory:
    """Return the memory of the rank that may take least of its own: all caches have the same pages."""
    return min(each, key=lambda memory: memory.usable(options.memory_fraction or 1.0))


def exchange_of(part: Part, config: EngineConfig) -> "Exchange | None":
    """Make the rank's exchange on a GPU's kernels; None if it runs on torch. All ranks call this together."""
    if not config.kernels:
        return None
    from gradus.parallel.exchange import Exchange  # here: Triton is not everywhere
    from gradus.parallel.symmetric import inboxes_of

    with current(part.model.device):
        return Exchange(part.stage, inboxes_of(part.stage, part.model.config.hidden_size, part.model.dtype))


def choose_exchange(exchange: "Exchange | None", part: Part) -> None:
    """Let the exchange measure which sums go which way. All ranks call this together."""
    if exchange is None:
        return
    from gradus.parallel.choice import choose  # here: Triton is not everywhere

    with torch.inference_mode(), current(part.model.device):
        choose(exchange, part.model.config.hidden_size, part.model.dtype)


def precision_of_ranks(precision: Precision) -> Precision:
    """Keep weights in the activations' type. Raises ConfigError for quantized weights."""
    if precision.scheme is not None:
        raise ConfigError("quantize does not work with tensor_parallel or pipeline_parallel yet: leave one of them out")
    return replace(precision, weights=precision.activations, linear=Linear)


def place_of(options: EngineConfig, rank: int) -> Place:
    """Return the place of a rank."""
    return Place(rank, options.tensor_parallel, options.pipeline_parallel)


def device_of(device: torch.device, place: Place) -> torch.device:
    """Return a rank's device: the CPU, or a GPU of its own. Raises ConfigError if there are too few GPUs."""
    if device.type == "cpu":
        return device
    if (there := torch.cuda.device_count()) < place.count:
        raise ConfigError(f"{place.tensor} x {place.pipeline} ranks need {place.count} GPUs, and {there} are here")
    return torch.device("cuda", place.rank)


def _check_stages(config: ModelConfig, place: Place) -> None:
    """Raise ConfigError if stages differ in their kinds of layers: all stages' caches must have the same pages."""
    kinds = [layer_groups(replace(place, rank=rank).shard(config).config) for rank in range(place.count)]
    if any([group.window for group in other] != [group.window for group in kinds[0]] for other in kinds):
        raise ConfigError(
            f"pipeline_parallel {place.pipeline}: stages differ in how many layers have sliding windows, or in their "
            "sizes, so their caches would differ in pages; take fewer stages"
        )


# -- the other ranks ---------------------------------------------------------------------------------------------------


def _job(checkpoint: Checkpoint, place: Place, precision: Precision, device: torch.device) -> dict[str, Any]:
    """Describe the model for another rank, as JSON."""
    return {
        "model": str(checkpoint.source or checkpoint.name),
        "tensor": place.tensor,
        "pipeline": place.pipeline,
        "dtype": str(precision.activations).removeprefix("torch."),
        "device": device.type,
    }


def _as_json(config: EngineConfig) -> bytes:
    return json.dumps(asdict(replace(config, vocabulary=None)) | {"yielding": []}).encode()


def options_of(message: bytes) -> EngineConfig:
    """Read the options that rank 0 sends once the cache's size is known."""
    options = json.loads(message)
    limits = options["limits"]
    limits = ModelLimits(**limits | {"eos_token_ids": tuple(limits["eos_token_ids"])})
    return EngineConfig(**{**options, "limits": limits, "yielding": frozenset()})


def memory_report(device: torch.device) -> bytes:
    """Report a rank's own memory, on a GPU; on a CPU all ranks have the same."""
    return json.dumps(astuple(DeviceMemory.of(device))).encode() if device.type == "cuda" else b""


def memories(reports: Iterable[bytes]) -> list[DeviceMemory]:
    """Read the reports that say something."""
    return [DeviceMemory(*json.loads(report)) for report in reports if report]
