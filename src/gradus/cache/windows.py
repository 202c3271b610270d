"""The number of pages that a sliding window sees: layers with a window need only the pages at a sequence's end.

Page i of a sequence holds its positions [i * page_size, (i + 1) * page_size), whether its group has a window or not.
"""

from bisect import bisect_right
from collections.abc import Sequence


def first_page(position: int, window: int | None, page_size: int) -> int:
    """The first page that the query at `position`, or any later one, can see. window: including itself; None: all."""
    return 0 if window is None else max(0, position - window + 1) // page_size


def last_seen(page: int, window: int, page_size: int) -> int:
    """The last position whose query sees this page."""
    return (page + 1) * page_size + window - 2


def most_pages(length: int, longest_span: int, window: int | None, page_size: int) -> int:
    """The most pages that one group needs at once, for a sequence of `length` run in spans of at most `longest_span`.

    A span needs the pages that its *first* query sees, and room for all of its own positions: with long spans, a window
    saves little.
    """
    pages = -(-length // page_size)
    if window is None:
        return pages
    seen = window - 1 + longest_span
    return min(pages, (seen - 2) // page_size + 2)  # that many positions, in the worst alignment with pages


def decoding_pages(length: int, windows: Sequence[int | None], page_size: int) -> int:
    """The most pages that a sequence of `length` tokens holds while it decodes.

    windows: of each layer group, None for full attention. A prompt that is being read takes more pages of the groups
    with a window.
    """
    return sum(most_pages(length, 1, window, page_size) for window in windows)


def longest_sequence(
    pages: int, windows: Sequence[int | None], page_size: int, longest_span: int | None, most: int
) -> int:
    """The longest sequence, up to `most` positions, that fits `pages` alone, in spans of at most `longest_span`."""

    def needed(length: int) -> int:
        span = min(length, longest_span or length)
        return sum(most_pages(length, span, window, page_size) for window in windows)

    return bisect_right(range(1, most + 1), pages, key=needed)
