"""Checks a result on its arrival: it is the plan's, and every token exists.

Results go on to a tokenizer, to columns by slot and to clients. No torch here.
"""

import math
from collections.abc import Sequence

import numpy as np

from gradus.engine.logprobs import PAIR
from gradus.engine.plan import UNDRAFTED, Plan, Sampled
from gradus.engine.request import MAX_LOGPROBS
from gradus.execution.remote.messages import LONGEST_REASON, Hello, MessageError

LONGEST_STEP_S = 86_400.0


class ResultCheck:
    """The shape that the result of a plan must have. Keeps nothing else of the plan.

    counts: rows with logits of each span. decodes: how many. width: the most rows of a decode. scores: tokens scored
    in each span that asks for some.
    """

    __slots__ = ("counts", "decodes", "scores", "width")

    def __init__(self, plan: Plan) -> None:
        self.counts = [span.logits for span in plan.spans]
        self.scores = [len(span.scores.targets) for span in plan.spans if span.scores is not None]
        self.decodes, self.width = len(plan.decodes), plan.decodes.width

    def check(self, sampled: Sampled, hello: Hello) -> None:
        """Raises MessageError, in one line, for a result of another plan, and for the first number that is wrong."""
        tokens, width = sampled.tokens, sampled.width
        if list(sampled.counts) != self.counts or not 1 <= width <= self.width:
            raise MessageError("a result has other rows than its plan")
        if len(tokens) != self.decodes * width + sum(self.counts):
            raise MessageError(f"a result has {len(tokens)} tokens, which are not its plan's")
        if len(tokens) and not UNDRAFTED <= tokens.min() <= tokens.max() < hello.vocab_size:
            raise MessageError(f"a sampled token must be below {hello.vocab_size}")
        if not (math.isfinite(sampled.seconds) and 0 <= sampled.seconds <= LONGEST_STEP_S):
            raise MessageError(f"a step's seconds must be between 0 and {LONGEST_STEP_S:g}, got {sampled.seconds}")
        if sampled.faults:
            self._check_faults(sampled)
        if sampled.logprobs:
            _check_logprobs(sampled.logprobs, len(tokens), hello.vocab_size)
        if len(sampled.scores) != len(self.scores):
            raise MessageError("a result scores other prompts than its plan")
        for scores, count in zip(sampled.scores, self.scores, strict=True):
            _check_logprobs(scores, count, hello.vocab_size)

    def _check_faults(self, sampled: Sampled) -> None:
        for row, reason in sampled.faults.items():
            if not 0 <= row < len(sampled.tokens) or len(reason) > LONGEST_REASON:
                raise MessageError("a result's fault has no row, or no reason of a line")


def _check_logprobs(packed: Sequence[bytes], count: int, vocab_size: int) -> None:
    if len(packed) != count or any(
        len(each) % PAIR.size or len(each) > (1 + MAX_LOGPROBS) * PAIR.size for each in packed
    ):
        raise MessageError("a result's log-probabilities are not those of its tokens")
    ids = np.frombuffer(b"".join(packed), "<i4")[::2]
    if len(ids) and not 0 <= ids.min() <= ids.max() < vocab_size:
        raise MessageError(f"a token with a log-probability must be below {vocab_size}")
