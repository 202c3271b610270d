"""Counts the sequences of each length that a paged cache holds at once, for people who size a server. No torch here."""

import math
from collections.abc import Mapping, Sequence

from gradus.cache.windows import decoding_pages

LENGTHS = (2048, 8192, 32_768, 131_072)
"""The usual lengths to show, in tokens."""


def sequences_held(pages: int, windows: Sequence[int | None], page_size: int, length: int) -> int:
    """Count the sequences of `length` tokens that `pages` hold while all of them decode. windows: of each layer
    group."""
    return pages // decoding_pages(length, windows, page_size)


def sequences_by_length(
    pages: int, windows: Sequence[int | None], page_size: int, longest: int, most: float = math.inf
) -> dict[int, int]:
    """Count the sequences of each length to show that fit: as many as the pages hold, and at most `most`.

    longest: tokens of the longest sequence that may run; the last length shown. Returns {} if it is 0.
    """
    if not longest:
        return {}
    lengths = sorted({length for length in LENGTHS if length < longest} | {longest})
    return {length: int(min(most, sequences_held(pages, windows, page_size, length))) for length in lengths}


def sessions_in_words(sequences: Mapping[int, int], most: float = math.inf) -> str:
    """Write `sequences_by_length` as "256 sessions of 2,048 tokens (max_sequences), 127 of 8,192 or 7 of 131,072"."""
    if not sequences:
        return "no sequence"
    parts = list[str]()
    for length, count in sequences.items():
        noun = "" if parts else " session" if count == 1 else " sessions"
        unit, limit = "" if parts else " tokens", " (max_sequences)" if count == most else ""
        parts.append(f"{count:,}{noun} of {length:,}{unit}{limit}")
    return " or ".join([part for part in (", ".join(parts[:-1]), parts[-1]) if part])
