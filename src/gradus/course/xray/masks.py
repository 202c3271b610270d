"""The choices of each masked draw, and the drafts of sequences that keep to a grammar, as the sampler shows them."""

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from gradus.engine.engine import Engine
from gradus.engine.plan import REJECTED, UNKNOWN, Span
from gradus.sampling.observer import DrawObserver
from gradus.sampling.sampler import Rows, Sampler

MOST_REMOVED = 3


class MaskWatch(DrawObserver):
    """Notes the draws of an engine's steps. In an engine without masks there are none, and it notes nothing."""

    def __init__(self, engine: Engine) -> None:
        sampler = getattr(engine.runner, "sampler", None)
        self.sampler = sampler if isinstance(sampler, Sampler) else None
        self._begin()
        if self.sampler is not None:
            self.sampler.observer = self

    def leave(self) -> None:
        if self.sampler is not None:
            self.sampler.observer = None

    def _begin(self) -> None:
        self.draws: list[tuple[int, dict[str, Any]]] = []  # each with its slot
        self.drafts: dict[int, dict[str, list[int]]] = {}  # by slot
        self.spans: dict[int, Span] = {}  # by slot

    # -- while a step runs ---------------------------------------------------------------------------------------------

    def drafted(self, slot: int, proposed: Sequence[int], forced: Sequence[int], verified: Sequence[int]) -> None:
        if proposed or forced:
            self.drafts[slot] = {"proposed": list(proposed), "forced": list(forced), "verified": list(verified)}

    def laid_out(self, spans: Iterable[Span]) -> None:
        self.spans = {span.slot: span for span in spans}

    def drew(self, logits: Tensor, rows: Rows, masked: Tensor, legal: Tensor, tokens: Tensor) -> None:
        for row, mask in zip(masked.tolist(), legal.to(logits.device), strict=True):
            drawn = int(tokens[row])
            if drawn > REJECTED:  # else the row followed a wrong draft
                self.draws.append((int(rows.slots[row]), choice(logits[row], mask, drawn)))

    # -- after it ------------------------------------------------------------------------------------------------------

    def take(self, spans: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return what the step before added to its frame, with the sequences' names in place of slots.

        spans: of the plan that the step ran. Those that the runner laid out anew get their tokens, drafts included.
        """
        draws, drafts, laid = self.draws, self.drafts, self.spans
        self._begin()
        names = {span["slot"]: span["id"] for span in spans}
        for span in spans:
            if list(span["tokens"]) == [UNKNOWN] and (found := laid.get(span["slot"])) is not None:
                span |= {"start": found.start, "tokens": list(found.tokens), "logits": found.logits}
        return {
            "masks": [{"id": names[slot], **draw} for slot, draw in draws],
            "drafts": {names[slot]: chosen for slot, chosen in drafts.items()},
        }


def choice(logits: Tensor, legal: Tensor, drawn: int) -> dict[str, Any]:
    """Describe one draw. logits: [V]; legal: bool [V].

    legal: how many tokens could come. probability: what the model gives all of them together. freely: the token that it
    would choose of all. removed: the likeliest tokens that the mask took away, each with its probability.
    """
    probabilities = logits.softmax(-1)
    values, removed = probabilities.masked_fill(legal, -1.0).topk(min(MOST_REMOVED, int((~legal).sum())))
    return {
        "legal": int(legal.sum()),
        "probability": round(float(probabilities[legal].sum()), 6),
        "drawn": drawn,
        "freely": int(logits.argmax()),
        "removed": [[token, round(p, 6)] for token, p in zip(removed.tolist(), values.tolist(), strict=True)],
    }
