"""Choices: the tokens of each masked draw, the drafts of sequences that keep to a grammar, the experts of each row.

The sampler shows the first two, and the course's own mixtures remember the last.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from gradus.engine.engine import Engine
from gradus.engine.plan import REJECTED, UNKNOWN, Span
from gradus.sampling.observer import DrawObserver
from gradus.sampling.sampler import Rows, Sampler

NAMED = 4  # most tokens that a frame names of a mask, and of what it removes


@dataclass(frozen=True, slots=True)
class Choice:
    """The tokens that one masked draw could choose from.

    legal: the number of tokens that the mask leaves. probability: the model's, for all of them together. likeliest: the
    likeliest of them. drawn: the token that was drawn. freely: the likeliest token without a mask. removed: the
    likeliest tokens that the mask removed, each with its probability.
    """

    legal: int
    probability: float
    likeliest: list[int]
    drawn: int
    freely: int
    removed: list[tuple[int, float]]

    @classmethod
    def of(cls, logits: Tensor, legal: Tensor, drawn: int) -> "Choice":
        """Read a draw. logits: the model's own, [V]; legal: bool [V]."""
        probabilities, count = logits.softmax(-1), int(legal.sum())
        likeliest = probabilities.masked_fill(~legal, -1.0).topk(min(NAMED, count)).indices
        values, removed = probabilities.masked_fill(legal, -1.0).topk(min(NAMED, len(legal) - count))
        shares = [round(value, 6) for value in values.tolist()]
        return cls(
            legal=count,
            probability=round(float(probabilities[legal].sum()), 6),
            likeliest=likeliest.tolist(),
            drawn=drawn,
            freely=int(logits.argmax()),
            removed=list(zip(removed.tolist(), shares, strict=True)),
        )


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
        self.draws: list[tuple[int, Choice]] = []  # each with its slot
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
                self.draws.append((int(rows.slots[row]), Choice.of(logits[row], mask, drawn)))

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
            "masks": [{"id": names[slot], **asdict(choice)} for slot, choice in draws],
            "drafts": {names[slot]: chosen for slot, chosen in drafts.items()},
        }


@dataclass(slots=True)
class ExpertWatch:
    """Reads the first mixture of an engine whose mixtures have `seen`, their last choice. Others show nothing.

    layer: the number of the layer it belongs to.
    """

    engine: Engine
    layer: int = field(init=False, default=0)
    mixture: Any = field(init=False, default=None)

    def __post_init__(self) -> None:
        model: Any = getattr(self.engine.runner, "model", None)
        for number, layer in enumerate(getattr(model, "layers", ())):
            found = next((part for part in layer.modules() if hasattr(part, "seen")), None)
            if found is not None:
                self.layer, self.mixture = number, found
                return

    def take(self, ran: bool) -> dict[str, Any]:
        """Return each row's experts, in the order of the batch, for the frame of the last step. ran: it had a plan."""
        if self.mixture is None or not ran or self.mixture.seen is None:
            return {"experts": None}
        count, chosen = self.mixture.experts.count, self.mixture.seen.sort(dim=1).values.tolist()
        return {"experts": {"layer": self.layer, "count": count, "rows": chosen}}
