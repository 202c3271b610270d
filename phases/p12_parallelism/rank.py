"""One rank, from a whole model to answers. Every rank runs this, with the same requests: only its place differs.

So there is no leader. All ranks have a scheduler, and since schedulers know nothing but numbers of tokens, and all
ranks get the same tokens, they all plan the same steps.
"""

from collections.abc import Iterable

import torch

from gradus import phases
from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.engine.request import ModelLimits, Request
from gradus.errors import ConfigError
from gradus.models import Model
from phases.p00_baseline.runner import ModelRunner
from phases.p12_parallelism.exchange import Exchange
from phases.p12_parallelism.model import cut
from phases.p12_parallelism.pipeline import StageRunner, turn
from phases.p12_parallelism.sampler import CutSampler, refuse

MOST_AT_ONCE = 8  # sequences of one micro-batch
CHOICES = "choose p00, p01, p03, p04, p05 or p06"


def engines(
    whole: Model,
    exchange: Exchange,
    phase: str = "p03",
    micro_batches: int = 1,
    context_length: int = 512,
    few_bytes: bool = False,
) -> list[Engine]:
    """Build a phase's engine over this rank's part, once for each micro-batch: each has a scheduler and a cache.

    few_bytes: ranks draw from their own scores, and exchange candidates in place of all scores. Raises ConfigError for
    a phase that could not give the tokens of one process.
    """
    part, config = cut(whole, exchange, gathers=not few_bytes), whole.config
    length = min(context_length, config.context_length)
    limits = ModelLimits(config.vocab_size, length, config.eos_token_ids)
    made = [phases.load(phase).build(part, EngineOptions(limits, MOST_AT_ONCE)) for _ in range(micro_batches)]
    for engine in made:
        if type(engine.runner) is not ModelRunner:
            raise ConfigError(f"{phase} has a runner of its own: {CHOICES}")
        if engine.runner.model is not part:  # p07's: a part's roundings differ from the whole's
            raise ConfigError(f"{phase} makes a model of its own from each part: {CHOICES}")
        if few_bytes:
            engine.runner.sampler = CutSampler(whole.config.vocab_size, whole.device, exchange)
        if exchange.place.stages > 1:
            engine.runner = StageRunner(engine.runner, exchange)
    return made


@torch.inference_mode()
def answers(engines: list[Engine], requests: Iterable[Request]) -> dict[str, list[int]]:
    """Run all requests to their ends, one micro-batch after another. Returns the tokens by the requests' ids.

    Raises ConfigError, before any runs, for a request that needs all scores where ranks do not exchange them.
    """
    tokens: dict[str, list[int]] = {}
    for number, request in enumerate(requests):
        if isinstance(getattr(engines[0].runner, "sampler", None), CutSampler):
            refuse(request.params)
        engines[number % len(engines)].submit(request)
        tokens[request.id] = []
    while any(engine.has_work for engine in engines):
        for engine in engines:
            for output in turn(engine):
                tokens[output.request_id] += output.tokens
    for engine in engines:
        if isinstance(engine.runner, StageRunner):
            engine.runner.settle()
    return tokens
