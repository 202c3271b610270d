"""The protocol of an attention backend: the model's part (`gradus.models.attention`), and the runner's."""

from typing import Protocol

from gradus.attention.batch import Batch
from gradus.models.attention import Attention


class AttentionBackend(Attention, Protocol):
    """Stores keys and values, and attends over them: everything that one phase changes and the model never sees."""

    def prepare(self, batch: Batch) -> None:
        """Set up one step: lengths, pages, masks. Called once per step, before the first layer."""
