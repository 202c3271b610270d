"""Serves dummy requests before the first real one, so that the first is served as fast as the thousandth.

Even with every kernel compiled, a first round is slow: the allocators have not taken their memory from the driver yet,
pinned buffers are missing, libraries load their code at the first call, and Python runs cold. A rehearsal serves whole
requests, with a scheduler and a cache of its own, so only the warm state remains.
"""

from gradus.cache.paged import PagedCache
from gradus.config.options import EngineConfig
from gradus.engine.engine import Engine, Runner
from gradus.engine.request import Request, SamplingParams
from gradus.scheduling.drafting import DraftControl
from gradus.scheduling.scheduler import Scheduler

ROUNDS = 2
ANSWER = 4  # tokens of each request: enough for steps of prompts, of prompts and decodes, and of decodes alone


def rehearse(
    runner: Runner, config: EngineConfig, cache: PagedCache, device: str, drafting: DraftControl | None = None
) -> None:
    """Serve crowds of each power of two below `max_sequences`, and of `max_sequences`.

    cache, drafting: new ones, discarded afterwards.
    """
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
