"""A smaller model guesses for a larger one. It runs in an engine of its own: p06's, whose prefix cache is its memory.

Every step asks it about the whole text so far. It computes only what is new, because the rest is in its prefix tree:
with pages of one position a hit ends exactly where the text is new. Rejected drafts need no rollback here. They are a
branch of the tree that no text follows, and are evicted some day.
"""

from collections.abc import Sequence as Ordered
from dataclasses import replace

from gradus.config.options import EngineOptions
from gradus.engine.request import ModelLimits, Request, SchedulingParams
from gradus.engine.sequence import Sequence
from gradus.errors import ConfigError
from gradus.models import Model
from phases.p06_chunked_prefill.engine import build


class ModelDrafter:
    """Samples its guesses as the target samples: the same temperature, and the same noise at the same position.

    Where both models' distributions agree, they draw the same token, at any temperature.
    """

    def __init__(self, model: Model, target: ModelLimits, max_sequences: int) -> None:
        """target: the limits of the model that it guesses for. Raises ConfigError if the two have different
        vocabularies."""
        config = model.config
        if config.vocab_size != target.vocab_size:
            raise ConfigError(
                f"the draft model has logits for {config.vocab_size} tokens and the target for {target.vocab_size}: "
                "here both need as many"
            )
        self.context = min(config.context_length, target.context_length)
        limits = ModelLimits(config.vocab_size, self.context)
        self.engine = build(model, EngineOptions(limits, max_sequences, page_size=1))

    def propose(self, asked: Ordered[tuple[Sequence, int]]) -> list[list[int]]:
        """One step of the small model per draft, for all sequences together. Beyond its context it has no guess."""
        for number, (sequence, count) in enumerate(asked):
            room = self.context - len(sequence.tokens)
            if room > 0:
                self.engine.submit(the_same_so_far(sequence, str(number), min(count, room)))
        drafts: list[list[int]] = [[] for _ in asked]
        while self.engine.has_work:
            for output in self.engine.step():
                drafts[int(output.request_id)] += output.tokens
        return drafts


def the_same_so_far(sequence: Sequence, name: str, count: int) -> Request:
    """A request that has the sequence's tokens as its prompt, samples like it, and ends `count` tokens later."""
    request = sequence.request
    until_stop = max(0, request.params.min_tokens - sequence.generated)
    return replace(
        request,
        id=name,
        prompt=tuple(sequence.tokens),
        params=replace(request.params, n=1, logprobs=None, min_tokens=until_stop),
        max_tokens=count,
        seed=request.seed_of(sequence.index),
        scheduling=SchedulingParams(cache_salt=request.scheduling.cache_salt),  # tenants stay apart here, too
    )
