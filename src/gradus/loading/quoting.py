"""Untrusted values inside our one-line messages: short, plain ASCII, on one line."""


def quoted(value: object, most: int = 80) -> str:
    """Format a value printably, in at most `most` characters."""
    shown = ascii(value)
    return shown if len(shown) <= most else f"{shown[: most - 3]}..."
