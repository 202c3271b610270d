"""Strangers' values inside our one-line messages: plain ASCII on one line, and short."""


def quoted(value: object, most: int = 80) -> str:
    """A printable form of at most `most` characters."""
    shown = ascii(value)
    return shown if len(shown) <= most else f"{shown[: most - 3]}..."
