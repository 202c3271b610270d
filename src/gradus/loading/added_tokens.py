"""Tokens that a checkpoint's other files add to tokenizer.json's, read as `transformers` reads them.

    tokenizer_config.json     names (bos_token, eos_token, …), lists of special tokens, added_tokens_decoder: id → token
    special_tokens_map.json   the same names and lists    } files of older checkpoints, which count only where there is
    added_tokens.json         token → id                  } no added_tokens_decoder, and then before the names above

A token that tokenizer.json lacks gets the next free id. A file that gives it another one contradicts the tokenizer, and
every prompt would be wrong, so it is refused.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from gradus.errors import CheckpointError
from gradus.loading.json_file import read_object_if_there
from gradus.loading.quoting import quoted

NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
LISTS = ("extra_special_tokens", "additional_special_tokens")  # today's name and the one before
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True, slots=True)
class Declared:
    """The tokens that the files declare.

    numbered: id → token, from the file `where`. named: name → special token. listed: further special tokens.
    """

    where: str
    numbered: dict[int, AddedToken]
    named: dict[str, AddedToken]
    listed: list[AddedToken]

    def add_to(self, backend: tokenizers.Tokenizer) -> None:
        """Add the tokens that `backend` lacks. Raises CheckpointError if one then has another id than in its file."""
        known = backend.get_added_tokens_decoder()
        wanted = [token for _, token in sorted(self.numbered.items())]
        names = {token.content for token in self.named.values()}
        for token in wanted:
            token.special |= token.content in names
        there = {token.content for token in (*known.values(), *wanted)}
        usual_first = sorted(self.named, key=lambda name: NAMES.index(name) if name in NAMES else len(NAMES))
        for token in (*(self.named[name] for name in usual_first), *self.listed):
            if token.content not in there:
                wanted.append(token)
                there.add(token.content)
        same = {token.content: token for token in known.values()}
        backend.add_tokens([token for token in wanted if same.get(token.content) != token])
        for number, token in self.numbered.items():
            if (found := backend.token_to_id(token.content)) != number:
                raise CheckpointError(
                    f"{self.where}: gives token {quoted(token.content)} the id {number}, but the tokenizer's files put "
                    f"it at {found}: they do not belong together"
                )

    def id_of(self, name: str, backend: tokenizers.Tokenizer) -> int | None:
        return backend.token_to_id(self.named[name].content) if name in self.named else None


def read_declared(folder: Path, settings: dict[str, Any]) -> Declared:
    """Read the files. settings: tokenizer_config.json. Raises CheckpointError naming the file and the key."""
    if "added_tokens_decoder" in settings:
        where = "tokenizer_config.json: added_tokens_decoder"
        numbered = _numbered(settings["added_tokens_decoder"], where)
        return Declared(where, numbered, _named(settings), _listed(settings))
    older = read_object_if_there(folder / "special_tokens_map.json")
    listed = [*_listed(settings), *_listed(older, "special_tokens_map.json")]
    named = _named(settings) | _named(older, "special_tokens_map.json")
    special = {token.content for token in (*named.values(), *listed)}
    where = "added_tokens.json"
    numbers = read_object_if_there(folder / where)
    numbered = {
        _number(number, where): AddedToken(content, special=content in special, normalized=content not in special)
        for content, number in numbers.items()
    }
    return Declared(where, numbered, named, listed)


def _numbered(entries: object, where: str) -> dict[int, AddedToken]:
    if not isinstance(entries, dict):
        raise CheckpointError(f"{where} must be an object, got {quoted(entries)}")
    return {_number(key, where): _token(entry, where, special=False) for key, entry in entries.items()}


def _number(value: object, where: str) -> int:
    number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10 else value
    if type(number) is not int or not 0 <= number < 1 << 31:
        raise CheckpointError(f"{where}: a token's id must be a whole number, got {quoted(value)}")
    return number


def _named(facts: dict[str, Any], where: str = "tokenizer_config.json") -> dict[str, AddedToken]:
    """Read the tokens that have a name: the usual ones, and a model's own, such as image_token."""
    own = [name for name, entry in facts.items() if name.endswith("_token") and isinstance(entry, (str, dict))]
    found = {name: facts[name] for name in dict.fromkeys((*NAMES, *own)) if facts.get(name) is not None}
    for key in LISTS:
        if isinstance(facts.get(key), dict):
            found |= facts[key]
    return {name: _token(entry, f"{where}: {name}", special=True) for name, entry in found.items()}


def _listed(facts: dict[str, Any], where: str = "tokenizer_config.json") -> list[AddedToken]:
    key = next((key for key in LISTS if facts.get(key)), None)
    if key is None or isinstance(facts[key], dict):
        return []
    if not isinstance(facts[key], list):
        raise CheckpointError(f"{where}: {key} must be a list, got {quoted(facts[key])}")
    return [_token(entry, f"{where}: {key}", special=True) for entry in facts[key]]


def _token(entry: object, where: str, *, special: bool) -> AddedToken:
    """Read a token: its text, or an object with its text and how it is matched. special: whether it always is."""
    content = entry.get("content") if isinstance(entry, dict) else entry
    if not isinstance(content, str) or not content:
        raise CheckpointError(f"{where} must be a text, got {quoted(content)}")
    flags = {name: entry[name] for name in FLAGS if name in entry} if isinstance(entry, dict) else {}
    if not all(isinstance(value, bool) for value in flags.values()):
        raise CheckpointError(f"{where}: the flags of token {quoted(content)} must be true or false")
    return AddedToken(content, **flags | ({"special": True} if special else {}))
