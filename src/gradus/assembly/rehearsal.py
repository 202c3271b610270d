"""Requests that no client sent, served before the first real one, so that the first is served like the thousandth.

What is left to do after every kernel is compiled still adds up over a first round: memory that the allocators have not
taken from the driver yet, pinned buffers, libraries that load their code at the first call, Python that runs cold. A
rehearsal goes the whole way, with a scheduler and a cache of its own, so nothing of it stays but what is warm.
"""

from gradus.cache.paged import PagedCache
from gradus.config.options import EngineConfig
from gradus.engine.engine import Engine, Runner
from gradus.engine.request import Request, SamplingParams
from gradus.scheduling.drafting import DraftControl
from gradus.scheduling.scheduler import Scheduler

ROUNDS = 2
ANSWER = 4  # tokens of each request: prompts, then prompts beside decodes, then decodes alone


def rehearse(
    runner: Runner, config: EngineConfig, cache: PagedCache, device: str, drafting: DraftControl | None = None
) -> None:
    """Serve crowds of every size up to `max_sequences`. cache, drafting: new, and of no use afterwards."""
    budget, context = config.budget(device), config.limits.context_length
    engine = Engine(
        Scheduler(cache, config.max_sequences, budget, drafting=drafting),
        runner,
        config.limits,
        lag=1 if config.overlap else 0,
    )
    for crowd in sorted({1 << power for power in range(config.max_sequences.bit_length())} | {config.max_sequences}):
        prompt = max(1, min((budget or context) // crowd, context - ANSWER, cache.longest(budget, context) - ANSWER))
        for number in range(ROUNDS * crowd):
            tokens = [number % config.limits.vocab_size] * max(1, prompt - number % 3)
            params = SamplingParams(max_tokens=min(ANSWER, context - len(tokens)), temperature=0.5, seed=number)
            engine.submit(Request.create(f"{crowd}-{number}", tokens, params, config.limits))
        while engine.has_work:
            engine.step()
