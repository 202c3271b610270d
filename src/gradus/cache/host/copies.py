"""The device's part of the host tier: copies of pages out and back while steps run.

**Three orders of work** are under way at once: the steps, the copies out, and the copies back. Each runs in the order
in which it was launched; between them only this holds:

1. *A page is copied out after the step that wrote it.* A page is published once its step has been committed, so its
   numbers are there before the tier hears of it. Nothing writes to it while the index has it.
2. *A page is taken for something new after its copy out has read it.* `fence` makes the steps and copies back that are
   launched afterwards wait for that. A step seldom waits in fact, since pages are copied well before they are evicted.
   Pages that a load takes are copied out at that moment, so only copies back wait, with `steps=False`; the steps wait
   once the load ends without having filled all of them.
3. *A page is filled after the steps that may still write to it.* A load takes pages whose last owner may have a step
   under way, planned before it ended. `open` makes the copies back wait for all steps launched so far. A step may run
   rows again before the next one is launched; the tier calls `open` only once it has (`HostTier.repeats`).
4. *A page is read after it was filled.* A sequence hits it only once `fence` was called with its copy back; and a copy
   out of that page, launched later still, waits for the same copy.
5. *A place is copied back after it was filled, and filled after it was copied back.* `open` makes the copies back wait
   for the newest copy out that fills one of their places; and the tier gives a place to another page only once no copy
   or thread uses it (`Slots`).
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar


class Copy(Protocol):
    """A copy of several pages, launched and perhaps not done."""

    @property
    def done(self) -> bool:
        """Whether it has arrived, so that the host may read what it wrote, or write to what it read."""


C = TypeVar("C", bound=Copy)


class Copies(Protocol[C]):
    """Copies between a device's pages and places of host memory. No call waits for the device.

    page_bytes: of one page, in all layers of its group. at_once: most pages per call.
    """

    at_once: int

    @property
    def page_bytes(self) -> int: ...

    def out(self, pages: Sequence[int], places: Sequence[int]) -> C:
        """Copy pages to these places."""

    def back(self, places: Sequence[int], pages: Sequence[int]) -> C:
        """Copy places to these pages."""

    def open(self, after: C | None) -> None:
        """Let copies back that are launched from now on wait for the steps launched so far, and for the copy out
        `after` to fill its places."""

    def fence(self, copy: C, *, steps: bool = True) -> None:
        """Let all that is launched from now on wait until a copy is through with the device's pages. steps: whether
        steps wait, too."""

    def view(self, place: int) -> memoryview:
        """The bytes of a place."""

    def close(self) -> None:
        """Wait for all copies, and give the host's memory back."""
