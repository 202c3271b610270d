"""The experts that each row of a step takes, as the course's own mixtures remember them."""

from dataclasses import dataclass, field
from typing import Any

from gradus.engine.engine import Engine


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
        """What the step before adds to its frame: each row's experts, in the order of the batch. ran: it had a plan."""
        if self.mixture is None or not ran or self.mixture.seen is None:
            return {"experts": None}
        count, chosen = self.mixture.experts.count, self.mixture.seen.sort(dim=1).values.tolist()
        return {"experts": {"layer": self.layer, "count": count, "rows": chosen}}
