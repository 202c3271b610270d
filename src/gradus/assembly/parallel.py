"""Builds an engine whose model several devices share: rank 0's engine, and the runner of every other rank."""

import logging
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import torch

from gradus.assembly.final import build, storage_of
from gradus.assembly.memory import enough_memory
from gradus.assembly.on_torch import torch_runner
from gradus.config.options import EngineConfig
from gradus.device import threads
from gradus.device.transfer import current
from gradus.engine.engine import Engine, Runner
from gradus.engine.request import ModelLimits
from gradus.errors import ConfigError
from gradus.execution.memory.plan import memory_plan
from gradus.loading import Checkpoint, Progress, open_checkpoint
from gradus.models.layers import Linear, Model
from gradus.models.precision import DTYPES, Precision
from gradus.parallel.group import Group
from gradus.parallel.model import load_part, shard_of
from gradus.parallel.ranks import Ranks
from gradus.sampling.constraints import Constraints
from gradus.structured import Grammars, grammars_of

log = logging.getLogger(__name__)


def assemble_ranks(
    checkpoint: Checkpoint,
    options: EngineConfig,
    device: torch.device,
    precision: Precision,
    progress: Progress | None,
) -> tuple[Engine, EngineConfig]:
    """Start the other ranks, load this one's part, and compose the engine. Returns also the final options.

    The other ranks open the checkpoint by its name. Raises ConfigError for a model that does not divide, too few GPUs,
    and quantized weights; RankLost if another rank could not load.
    """
    count = options.tensor_parallel
    device = _device(device, 0, count)
    if precision.scheme is not None or checkpoint.quantized is not None:
        raise ConfigError("quantize does not work with tensor_parallel yet: leave one of them out")
    precision = replace(precision, weights=precision.activations, linear=Linear)
    shard = shard_of(checkpoint.config, 0, count)
    each = _for_each_rank(options, device, count)
    config = memory_plan(shard.config, each, device, precision).applied(each)
    grammars = None if checkpoint.tokenizer is None else grammars_of(checkpoint.tokenizer, options.limits)
    config = replace(config, limits=replace(config.limits, structured=grammars is not None))
    ranks = Ranks(count, _job(checkpoint, config, precision, device))
    try:
        with enough_memory(config, device):
            model = load_part(
                checkpoint, Group(ranks.path, 0, count, device), precision.activations, device, progress
            )
            ranks.wait_until_ready()
            engine = build(model, config, grammars=grammars, ranks=ranks)
    except BaseException:
        ranks.close()
        raise
    return engine, config


def _for_each_rank(options: EngineConfig, device: torch.device, count: int) -> EngineConfig:
    """Reduce the options to what a rank gets: on a CPU, the ranks share its memory and its cores."""
    if options.kernels:
        log.info("tensor_parallel runs on torch: Gradus's own kernels and CUDA graphs do not exchange yet")
    chosen = replace(options, kernels=False, graphs=False)
    if device.type == "cuda":
        return chosen
    fraction = None if options.memory_fraction is None else options.memory_fraction / count
    own = max(1, (options.threads or threads.use(None)) // count)
    return replace(chosen, memory_fraction=fraction, threads=threads.use(own))


def _device(device: torch.device, rank: int, count: int) -> torch.device:
    if device.type == "cpu":
        return device
    if (there := torch.cuda.device_count()) < count:
        raise ConfigError(f"tensor_parallel must be at most the number of GPUs, {there}, got {count}")
    return torch.device("cuda", rank)


# -- the other ranks ---------------------------------------------------------------------------------------------------


def _job(checkpoint: Checkpoint, config: EngineConfig, precision: Precision, device: torch.device) -> dict[str, Any]:
    """What another rank must know, as JSON."""
    options = asdict(replace(config, vocabulary=None)) | {"yielding": []}
    dtype = str(precision.activations).removeprefix("torch.")
    return {"model": str(checkpoint.source or checkpoint.name), "options": options, "dtype": dtype, "device": device.type}


def other_rank(job: Mapping[str, Any]) -> Runner:
    """Load a rank's part as `job` says, and build its runner, which runs rank 0's plans."""
    config = _config(job["options"])
    rank, count = job["rank"], job["size"]
    device = _device(torch.device(job["device"]), rank, count)
    if config.threads is not None:
        threads.use(config.threads)
    checkpoint = open_checkpoint(job["model"])
    with current(device):
        model = load_part(checkpoint, Group(job["path"], rank, count, device), DTYPES[job["dtype"]], device)
        grammars = grammars_of(checkpoint.tokenizer, config.limits) if checkpoint.tokenizer is not None else None
        return _runner(model, config, grammars)


def _runner(model: Model, config: EngineConfig, grammars: Grammars | None) -> Runner:
    constraints = None if grammars is None else Constraints(grammars)
    runner, _ = torch_runner(model, storage_of(model, config), config, None, None, constraints)
    return runner


def _config(options: Mapping[str, Any]) -> EngineConfig:
    limits = options["limits"]
    limits = ModelLimits(**limits | {"eos_token_ids": tuple(limits["eos_token_ids"])})
    return EngineConfig(**{**options, "limits": limits, "yielding": frozenset()})
