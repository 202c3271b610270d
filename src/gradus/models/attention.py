"""The one seam between the model and everything that this project is about: how keys and values are kept and read."""

from typing import Protocol

from torch import Tensor


class Attention(Protocol):
    """All that a model knows of it: hand over this step's queries, keys and values, get the attended values back."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store this step's keys and values of `layer`, then attend causally.

        q: [N, Hq, Dh], k and v: [N, Hkv, Dh], row i being token i of the flat batch.
        Returns [N, Hq, Dh]. Query head h reads key head h // (Hq // Hkv) (grouped-query attention).
        """
