"""The text that quality is measured on: its documents, and the windows of it that models read.

Each window is read separately, from its first token to its last. The first tokens are only context, because predictions
with almost nothing before them say little about a model. Windows do not overlap, so no position counts twice. No torch
here.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from gradus.bench.record.pages import BLOCK, pages
from gradus.errors import ConfigError
from gradus.loading import Tokenizer

WINDOW = 512
"""Most tokens per window; a document's last one has the remainder."""
CONTEXT = 64
"""Tokens at the beginning of a window that are not scored."""
DIVIDER = "\f"
"""The form feed that separates documents. Blank lines only separate paragraphs."""
SHARE = 4
"""One document in this many is for quantizers to read; no model is judged on it."""


@dataclass(frozen=True, slots=True)
class Text:
    """name: of the file, or what reports call it. own: whether it is the repository's."""

    name: str
    documents: tuple[str, ...]
    own: bool = False

    @property
    def digest(self) -> str:
        """Equal digests mean the same text."""
        return hashlib.sha256(DIVIDER.join(self.documents).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Window:
    """document: its number in the text. token_ids: CONTEXT + 1 to WINDOW of them."""

    document: int
    token_ids: tuple[int, ...]

    @property
    def targets(self) -> tuple[int, ...]:
        """The tokens whose prediction counts."""
        return self.token_ids[CONTEXT:]


def read(file: Path) -> Text:
    """Read plain UTF-8 text, its documents separated by form feeds. Raises ConfigError for any other file."""
    try:
        content = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}") from error
    return Text(file.name, tuple(part for part in content.split(DIVIDER) if part.strip()))


def own(repository: Path) -> Text:
    """The README, the lessons and the documentation, one document per page.

    They are English and code that few models can have been trained on, under the repository's license. Tables made from
    results are left out, because their numbers change with every measurement.
    """
    documents = (BLOCK.sub("", page.read_text(encoding="utf-8")) for page in pages(repository))
    return Text("the lessons and the documentation", tuple(documents), own=True)


def divided(text: Text) -> tuple[Text, str | None]:
    """Split a text: the part that models are judged on, and the part for quantizers; None if it has too few documents.

    The judged documents keep their numbers.
    """
    judged = ("" if number % SHARE == SHARE - 1 else document for number, document in enumerate(text.documents))
    return replace(text, documents=tuple(judged)), "\n".join(text.documents[SHARE - 1 :: SHARE]) or None


def windows(text: Text, tokenizer: Tokenizer, context_length: int) -> list[Window]:
    """Every window with a scored token, document by document, at most `context_length` long.

    Each begins with the beginning-of-sequence token if the model's texts do. Raises ConfigError if no document is long
    enough.
    """
    begin = _beginning(tokenizer)
    step = min(WINDOW, context_length) - len(begin)
    found = []
    for number, document in enumerate(text.documents):
        token_ids = tokenizer.encode(document, special_tokens=False)
        for start in range(0, len(token_ids), step):
            window = Window(number, (*begin, *token_ids[start : start + step]))
            if window.targets:
                found.append(window)
    if not found:
        raise ConfigError(
            f"{text.name}: no document has more than {CONTEXT} tokens, and the first {CONTEXT} are only context"
        )
    return found


def _beginning(tokenizer: Tokenizer) -> tuple[int, ...]:
    first = tokenizer.encode("")[:1]
    return tuple(first) if first == [tokenizer.bos_token_id] else ()


def first_of_each(found: Sequence[Window], most: int) -> list[Window]:
    """The first window of the first `most` documents."""
    others = [later for before, later in pairwise(found) if before.document != later.document]
    return [found[0], *others][:most]
