"""Plain or escaped forms of characters that the terminal's encoding lacks.

Under LC_ALL=C, PYTHONIOENCODING=latin-1 and the like, a stream refuses such a character, and the program ends in the
middle of a line. The streams of our commands accept every character instead.
"""

import codecs
import sys

PLAIN = {
    "✓": "ok", "✗": "x", "·": "-", "→": "->", "×": "x", "–": "-", "—": "-", "…": "...", "‘": "'", "’": "'", "“": '"',
    "”": '"', "≤": "<=", "≥": ">=", "≈": "~", "±": "+-", "−": "-", "µ": "u", "°": " deg ", "√": "sqrt", "⌈": "ceil(",
    "⌉": ")", "⁻": "^-", "¹": "1", "²": "^2", "³": "^3", "ⁿ": "^n", "ˣ": "^x", "ᵀ": "^T", "Σ": "sum", "Δ": "delta",
    "α": "alpha", "│": "|", "─": "-", "└": "+", "┬": "+", "▁": "_", "▂": "_", "▃": "-", "▄": "-", "▅": "=", "▆": "=",
    "▇": "#", "█": "#", "○": "o", "●": "*",
    "▶": ">", "◀": "<",
}  # fmt: skip
"""The marks that commands, charts and the code of lessons use. Other characters, as in a model's text, are escaped."""

HANDLER = "gradus.plain"


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(PLAIN.get(each) or each.encode("ascii", "backslashreplace").decode() for each in lacking), error.end


codecs.register_error(HANDLER, _replace)


def plain(text: str, encoding: str | None) -> str:
    """Replace each character of `text` that this encoding lacks."""
    return text.encode(encoding or "utf-8", HANDLER).decode(encoding or "utf-8")


def accept_every_character() -> None:
    """Make stdout and stderr replace characters that they cannot encode."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a program may have replaced the stream
            stream.reconfigure(errors=HANDLER)
