"""The choices of each masked draw, in engines whose sampler masks tokens.

Such a sampler has a method `masked(logits, rows, masks)`, called once per draw. logits: [R, V]; rows: the indices of
masked rows, [M]; masks: bool [V] on the host, for each of these rows. It returns the logits to draw from.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from gradus.engine.engine import Engine


class MaskWatch:
    """Notes each draw by its row. Of an engine whose sampler has no masks it notes nothing."""

    def __init__(self, engine: Engine) -> None:
        runner: Any = engine.runner
        self.sampler: Any = getattr(runner, "sampler", None)
        self.masked: Any = getattr(self.sampler, "masked", None)
        self.draws: dict[int, dict[str, Any]] = {}
        if self.sampler is not None and self.masked is not None:
            self.sampler.masked = self.note

    def leave(self) -> None:
        if self.masked is not None:
            del self.sampler.masked

    def note(self, logits: Tensor, rows: Tensor, masks: Sequence[Tensor]) -> Tensor:
        masked: Tensor = self.masked(logits, rows, masks)
        for row, mask in zip(rows.tolist(), masks, strict=True):
            probability = logits[row].softmax(-1)[mask.to(logits.device)].sum()
            self.draws[row] = {
                "legal": int(mask.sum()),
                "probability": round(float(probability), 6),
                "drawn": int(masked[row].argmax()),
                "freely": int(logits[row].argmax()),
            }
        return masked

    def take(self, spans: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """The draws since the last call, by the name of the sequence. spans: of the plan that made them."""
        draws, self.draws = self.draws, {}
        sampled = [span["id"] for span in spans for _ in range(span["logits"])]
        return {sampled[row]: draw for row, draw in draws.items()}
