"""What a runner asks of an attention backend, beside what the model asks (`gradus.models.attention`)."""

from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from gradus.attention.batch import Batch
from gradus.models.attention import Attention

if TYPE_CHECKING:
    from gradus.kernels.new_token import Turning


class PagesAttention(Attention, Protocol):
    """`attend` in two halves, for a model that stores its keys and values itself, with a kernel that makes them.

    turns: this step needs no first half. Each sequence has but one new token, and attention stores it itself.
    """

    turns: bool

    def destination(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """The layer's keys and values, [pages + 1, page_size, Hkv, Dh] each, and the rows that are this step's.

        Rows are int64 [N], page * page_size + position % page_size of every token of the flat batch.
        """

    def attend_stored(self, layer: int, q: Tensor, turning: "Turning | None" = None) -> Tensor:
        """q: [N, Hq, Dh], whose keys and values are stored. Returns [N, Hq, Dh].

        Or, with `turning`, the qkv product [N, (Hq + 2 Hkv) Dh] of a step that `turns`.
        """


class AttentionBackend(Attention, Protocol):
    """Stores keys and values, and attends over them: everything that one phase changes and the model never sees."""

    def prepare(self, batch: Batch) -> None:
        """Set one step up: lengths, pages, masks. Called once a step, before the first layer."""
