"""What is shown for a character that the terminal's encoding lacks: its plain form, or its escape.

Under LC_ALL=C, PYTHONIOENCODING=latin-1 and the like, a stream refuses what its encoding lacks, and the program ends in
the middle of a line. A command's streams accept every character instead.
"""

import codecs
import sys

PLAIN = {
    "✓": "ok", "✗": "x", "·": "-", "→": "->", "×": "x", "–": "-", "—": "-", "…": "...", "‘": "'", "’": "'", "“": '"',
    "”": '"', "≤": "<=", "≥": ">=", "≈": "~", "±": "+-", "−": "-", "µ": "u", "°": " deg ", "√": "sqrt", "⌈": "ceil(",
    "⌉": ")", "⁻": "^-", "¹": "1", "²": "^2", "³": "^3", "ⁿ": "^n", "ˣ": "^x", "ᵀ": "^T", "Σ": "sum", "Δ": "delta",
    "α": "alpha", "│": "|", "─": "-", "└": "+", "┬": "+", "▁": "_", "▂": "_", "▃": "-", "▄": "-", "▅": "=", "▆": "=",
    "▇": "#", "█": "#", "○": "o", "●": "*",
}  # fmt: skip
"""The marks that commands, charts and lessons' code use. All else, such as a model's text, is escaped."""

HANDLER = "gradus.plain"


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(PLAIN.get(each) or each.encode("ascii", "backslashreplace").decode() for each in lacking), error.end


codecs.register_error(HANDLER, _replace)


def plain(text: str, encoding: str | None) -> str:
    """`text` as a stream of this encoding can show it."""
    return text.encode(encoding or "utf-8", HANDLER).decode(encoding or "utf-8")


def accept_every_character() -> None:
    """Let what the process prints never fail over a character."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a program may have put something of its own there
            stream.reconfigure(errors=HANDLER)
