"""The text that quality is measured on: its documents, and the windows of it that models read.

A window is read alone, from its first token to its last. The first tokens are only context: what a model predicts with
next to nothing before it says little of the model. Windows do not overlap, so no position counts twice. No torch here.
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
"""Most tokens of a window; the last one of a document has what is left."""
CONTEXT = 64
"""How many tokens at the beginning of a window are not scored."""
DIVIDER = "\f"
"""What divides a file into documents: a form feed. Blank lines only divide paragraphs."""
SHARE = 4
"""Of so many documents the last is for quantizers to look at, and no model is judged on it."""


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
    """Plain UTF-8, in documents divided by form feeds. Raises ConfigError for a file that is not that."""
    try:
        content = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}") from error
    return Text(file.name, tuple(part for part in content.split(DIVIDER) if part.strip()))


def own(repository: Path) -> Text:
    """The README, the lessons and the documentation, a document each.

    English and code that few models can have been trained on, and whose license is the repository's. The tables that
    are made from results are left out: they are numbers, and others after each measurement.
    """
    documents = (BLOCK.sub("", page.read_text(encoding="utf-8")) for page in pages(repository))
    return Text("the lessons and the documentation", tuple(documents), own=True)


def divided(text: Text) -> tuple[Text, str | None]:
    """What models are judged on, and what a quantizer may look at before; None where there are too few documents.

    The documents that are judged keep their numbers.
    """
    judged = ("" if number % SHARE == SHARE - 1 else document for number, document in enumerate(text.documents))
    return replace(text, documents=tuple(judged)), "\n".join(text.documents[SHARE - 1 :: SHARE]) or None


def windows(text: Text, tokenizer: Tokenizer, context_length: int) -> list[Window]:
    """Every window with a token that counts, document by document, at most `context_length` long.

    Each one begins with the beginning-of-sequence token, where the model's texts do. Raises ConfigError where no
    document is long enough.
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
