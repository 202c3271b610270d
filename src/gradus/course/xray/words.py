"""Numbers, pages and lists in words. No torch here."""

from collections.abc import Sequence as Ordered

from gradus.exercises.solution import listed


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def runs_of(numbers: Ordered[int]) -> str:
    """1 to 3 and 7: neighbors from three on are a range."""
    parts: list[str] = []
    first = 0
    for end in range(1, len(numbers) + 1):
        if end == len(numbers) or numbers[end] != numbers[end - 1] + 1:
            run = numbers[first:end]
            parts += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else list(map(str, run))
            first = end
    return listed(parts)


def pages_named(numbers: Ordered[int]) -> str:
    return f"{'page' if len(numbers) == 1 else 'pages'} {runs_of(numbers)}"


def are(number: int) -> str:
    return "is" if number == 1 else "are"


def was(number: int) -> str:
    return "was" if number == 1 else "were"


def none_or(number: int) -> str:
    """none is, 1 is, 2 are"""
    return f"{number or 'none'} {are(number or 1)}"


def quoted(token: str) -> str:
    """A token's text, with a space at its beginning made visible."""
    shown = f"␣{token[1:]}" if token.startswith(" ") else token.replace("\n", "⏎")
    return f"“{shown if len(shown) <= 24 else shown[:23] + '…'}”"
