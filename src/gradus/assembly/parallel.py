"""Build an engine whose model is divided among several devices: rank 0's engine, and every other rank's runner."""

import logging
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import torch

from gradus.assembly.final import build
from gradus.assembly.memory import enough_memory
from gradus.cache.groups import layer_groups
from gradus.config.options import EngineConfig
from gradus.device import threads
from gradus.engine.engine import Engine
from gradus.engine.request import ModelLimits
from gradus.errors import ConfigError
from gradus.execution.memory.plan import memory_plan
from gradus.loading import Checkpoint, Progress
from gradus.models.config import ModelConfig
from gradus.models.layers import Linear
from gradus.models.precision import Precision
from gradus.parallel.model import load_part
from gradus.parallel.place import Place
from gradus.parallel.ranks import Ranks, RankZero
from gradus.structured import grammars_of

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
    each = for_each_rank(options, device)
    config = memory_plan(shard.config, each, device, precision).applied(each)
    grammars = None if checkpoint.tokenizer is None else grammars_of(checkpoint.tokenizer, options.limits)
    config = replace(config, limits=replace(config.limits, structured=grammars is not None, prompt_logprobs=True))
    ranks = Ranks(place.count, OTHER_RANK, _job(checkpoint, config, precision, device))
    try:
        with enough_memory(config, device):
            ranks.wait_until_opened()
            model, run = load_part(checkpoint, place, ranks.path, precision.activations, device, progress, ranks.check)
            ranks.wait_until_ready()
            engine = build(model, config, grammars=grammars, ranks=RankZero(ranks, run))
    except BaseException as error:
        ranks.close()
        if isinstance(error, RuntimeError):  # an exchange that broke: a rank that has gone is the reason
            ranks.check()
        raise
    return engine, config


def for_each_rank(options: EngineConfig, device: torch.device) -> EngineConfig:
    """Reduce the options to one rank's share: on a CPU, the ranks divide its memory and its cores."""
    count = options.ranks
    if options.kernels:
        log.info("%d ranks run on torch: Gradus's own kernels and CUDA graphs do not exchange yet", count)
    chosen = replace(options, kernels=False, graphs=False)
    if device.type == "cuda":
        return chosen
    fraction = None if options.memory_fraction is None else options.memory_fraction / count
    own = max(1, (options.threads or threads.use(None)) // count)
    return replace(chosen, memory_fraction=fraction, threads=threads.use(own))


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
    kinds = [layer_groups(replace(place, rank=rank).shard(config).config.windows) for rank in range(place.count)]
    if any([group.window for group in other] != [group.window for group in kinds[0]] for other in kinds):
        raise ConfigError(
            f"pipeline_parallel {place.pipeline}: some stages have sliding windows that others lack; take fewer stages"
        )


# -- the other ranks ---------------------------------------------------------------------------------------------------


def _job(checkpoint: Checkpoint, config: EngineConfig, precision: Precision, device: torch.device) -> dict[str, Any]:
    """Describe the model and options for another rank, as JSON."""
    options = asdict(replace(config, vocabulary=None)) | {"yielding": []}
    dtype = str(precision.activations).removeprefix("torch.")
    return {
        "model": str(checkpoint.source or checkpoint.name),
        "options": options,
        "dtype": dtype,
        "device": device.type,
    }


def options_of(options: Mapping[str, Any]) -> EngineConfig:
    """Read the options of a job."""
    limits = options["limits"]
    limits = ModelLimits(**limits | {"eos_token_ids": tuple(limits["eos_token_ids"])})
    return EngineConfig(**{**options, "limits": limits, "yielding": frozenset()})
