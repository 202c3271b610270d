"""A tokenizer as llguidance sees it, which differs from ours in two ways.

**Tokens that end an answer are ours, not the library's.** llguidance accepts several, and forgets the one that it
consumed after a finished grammar. Behind a draft of such a token, its rollback would go too far. So it gets one token
of its own for the end, which no text, no grammar and no model can produce. Its bit in a row says exactly "the grammar
accepts here", and `Matcher` turns that into the tokens that end this request.

**Control tokens have secret spellings.** Where a grammar forces a text, llguidance writes it as the tokenizer does; a
text that spells a control token ("<|im_start|>" as the name of a property) would come back as that very token, which
the grammar then refuses. Under a spelling that no text has, it comes back as ordinary characters. Grammars name control
tokens by their usual spelling; source.py puts the token's number in its place.
"""

import json
import random
import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradus.structured.library import llguidance

Row = NDArray[np.int32]
PADDING = 4096  # tokens that a model may have beyond its tokenizer's: most have a few hundred
MAX_ENDS = 64  # sets of tokens that end answers, with two rows each: 40 kB for 152,000 tokens


def row_words(vocab_size: int) -> int:
    """Count the words of a row: a bit per token, and one for the library's end, which it writes in the same place."""
    return -(-(vocab_size + 1) // 32)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The library's index of a tokenizer.

    end: the token by which it reports that a grammar accepts; controls: the control tokens by their usual spelling;
    spellings: the same, by token; words: the width of its own rows; vocab_size: the width of the model's logits, in
    tokens.
    """

    tokenizer: Any
    end: int
    controls: Mapping[str, int]
    words: int
    vocab_size: int
    _rows: OrderedDict[frozenset[int], tuple[Row, Row]] = field(default_factory=OrderedDict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    spellings: Mapping[int, str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "spellings", {token: spelling for spelling, token in self.controls.items()})

    @classmethod
    def of(cls, tokenizer_json: str, vocab_size: int | None = None) -> "Vocabulary":
        """Build the index. This takes about a second for every hundred thousand tokens.

        vocab_size: None, where it is not known yet, leaves room for PADDING tokens.
        """
        content = json.loads(tokenizer_json)
        controls = _rename_controls(content)
        end = _add_end(content)
        vocab_size = end + PADDING if vocab_size is None else vocab_size
        tokens = max(end, vocab_size) + 1
        text = json.dumps(content, ensure_ascii=False)
        tokenizer = llguidance().LLTokenizer(text, n_vocab=tokens, eos_token=[end])
        return cls(tokenizer, end, controls, -(-tokens // 32), vocab_size)

    def fitted(self, vocab_size: int) -> "Vocabulary | None":
        """Return the same index for logits of this width; None if they are wider than its rows."""
        return replace(self, vocab_size=vocab_size) if vocab_size < self.words * 32 else None

    @classmethod
    def missing(cls, vocab_size: int) -> "Vocabulary":
        """Stand in for an index that could not be built: no grammar can be followed with it."""
        return cls(None, vocab_size, {}, row_words(vocab_size), vocab_size)

    def rows_of(self, ends: frozenset[int]) -> tuple[Row, Row]:
        """Return two rows: one of these ends alone, and one of all other tokens of the model.

        Answers with the same ends share them, if these are among the MAX_ENDS used most recently: requests name them.
        int32 [row_words(vocab_size)] each.
        """
        with self._lock:
            rows = self._rows.pop(ends) if ends in self._rows else self._made(ends)
            self._rows[ends] = rows
            if len(self._rows) > MAX_ENDS:
                self._rows.popitem(last=False)
        return rows

    def _made(self, ends: frozenset[int]) -> tuple[Row, Row]:
        bits = np.zeros(row_words(self.vocab_size) * 32, np.uint8)
        bits[list(ends)] = 1
        only = np.packbits(bits, bitorder="little").view(np.int32)
        bits[self.vocab_size :] = 1
        bits[self.end : self.end + 1] = 1
        return only, ~np.packbits(bits, bitorder="little").view(np.int32)

    def any_of(self, row: Row, chosen: random.Random) -> int | None:
        """Choose any token of one of the library's rows, but not its own end."""
        words = row.view(np.uint32).copy()
        words[self.end >> 5] &= np.uint32(~(1 << (self.end & 31)) & 0xFFFFFFFF)
        places = np.flatnonzero(words)
        if not len(places):
            return None
        word = int(chosen.choice(places))
        return chosen.choice([word * 32 + bit for bit in range(32) if int(words[word]) >> bit & 1])


def _rename_controls(content: dict[str, Any]) -> dict[str, int]:
    """Respell what the library takes for control tokens: tokens marked as such, and those in angle brackets."""
    model, secret = content["model"], secrets.token_hex(16)
    controls, entries = {}, model["vocab"]
    for token in content["added_tokens"]:
        spelling, number = token["content"], token["id"]
        if not token["special"] and not (spelling.startswith("<") and spelling.endswith(">")):
            continue
        controls[spelling] = number
        token |= {"content": f"<|{secret}-{number}|>", "special": True, "normalized": False}
        if isinstance(entries, dict) and spelling in entries:
            entries[token["content"]] = entries.pop(spelling)
        elif isinstance(entries, list) and number < len(entries):
            entries[number][0] = token["content"]
        if model.get("unk_token") == spelling:
            model["unk_token"] = token["content"]
    content["post_processor"] = None  # would add control tokens around a text, by their usual spelling
    return controls


def _add_end(content: dict[str, Any]) -> int:
    """Add the library's end token behind all others, and return its id."""
    entries = content["model"]["vocab"]
    used = entries.values() if isinstance(entries, dict) else range(len(entries))
    end = max([*used, *(token["id"] for token in content["added_tokens"])], default=-1) + 1
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    content["added_tokens"].append({"id": end, "content": f"<|{secrets.token_hex(16)}|>", **flags})
    return end
