"""Small vocabularies for the tests, and rows as lists."""

import re

import numpy as np

from gradus.engine.structured import Structured
from gradus.loading.tokenizer import Tokenizer
from gradus.structured import Grammars, Matcher
from gradus.structured.vocabulary import row_words
from tests.loading import builders

WIDTH = builders.VOCABULARY  # of the logits; the tokenizer has fewer tokens
TOKENIZER = Tokenizer(builders.backend())
EOS = (0, 2)
GRAMMARS = Grammars(TOKENIZER.to_json, WIDTH, EOS)


def matcher(structured: Structured, stop_ids: tuple[int, ...] = ()) -> Matcher:
    return GRAMMARS.matcher(structured, stop_ids)


def encode(text: str) -> list[int]:
    """Encode a text without control tokens, whatever it spells."""
    return [token for part in re.split("(<)", text) if part for token in TOKENIZER.encode(part)]


def text_of(tokens: list[int]) -> str:
    """Decode strictly: an answer is valid UTF-8."""
    return b"".join(TOKENIZER.token_bytes(token) for token in tokens).decode()


def ids(row: np.ndarray) -> list[int]:
    return np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()


def legal(made: Matcher, width: int = WIDTH) -> list[int]:
    row = np.full(row_words(width), -1, np.int32)
    made.fill(row)
    return ids(row)


def legal_behind(made: Matcher, drafts: list[int]) -> list[list[int]]:
    rows = np.full((1 + len(drafts), row_words(WIDTH)), -1, np.int32)
    made.fill_drafts(rows, drafts)
    return [ids(row) for row in rows]
