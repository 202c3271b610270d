"""llguidance's Lark, read far enough to check it, and to find the places that source.py writes anew."""

import json
import re
from dataclasses import dataclass
from typing import Any

from gradus.structured.bounds import (
    MAX_REPEATS,
    check_literal,
    check_options,
    check_regex,
    check_schemas,
    count_repeats,
)
from gradus.structured.library import refusal
from gradus.structured.schema import Kept, kept

MAX_DEFINITIONS = 400  # rules and terminals: the library recurses through them, and 1,300 overflow a stack of 8 MiB
MAX_SUBSTRING = 16_384  # characters under %regex

_LARK = re.compile(
    r"""(?P<comment>(?://|\#)[^\n]*)
      | (?P<string>"(?:\\.|[^"\\\n])*")
      | (?P<regex>/(?:\\.|[^/\\\n])+/)
      | (?P<token><[^<>\s]+>)
      | %(?P<block>json|regex|llguidance)\s*(?=\{)""",
    re.VERBOSE,
)
_ATTRIBUTE = re.compile(r"\b(max_tokens|stop|temperature)\s*=")


@dataclass(frozen=True, slots=True)
class Place:
    """A part of a Lark grammar: a control token's name, or (schema) a JSON schema."""

    start: int
    end: int
    schema: Kept | None = None


def lark_literal(text: str) -> str:
    """Write a text as a string of Lark, which is JSON's, but has no DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def lark_regex(pattern: str) -> str:
    """Write a regular expression between Lark's slashes. Each stays as it is behind a backslash, if it has one."""
    inside = {"/": r"\/", "\n": r"\n", "\x7f": r"\x7f"}
    return "/" + re.sub(r"\\.|[/\n\x7f]", lambda found: inside.get(found[0], found[0]), pattern, flags=re.DOTALL) + "/"


def check_lark(text: str) -> list[Place]:
    """Refuse what disables rollback or has no meaning here. Returns the schemas and the names of control tokens."""
    places, rest = [], []
    position = repeats = 0
    while found := _LARK.search(text, position):
        rest.append(text[position : found.start()])
        position = found.end()
        if found["token"]:
            places.append(Place(found.start(), position))
        elif found["string"]:
            check_literal(found["string"], "a text in the grammar")
        elif found["regex"]:
            check_regex(found["regex"])
            repeats += count_repeats(found["regex"])
        elif found["block"]:
            value, position = _block(text, found["block"], found.end())
            if found["block"] == "json":
                places.append(Place(found.end(), position, kept(value, text[found.end() : position])))
    _check_plain(" ".join([*rest, text[position:]]), repeats)
    check_schemas([place.schema.schema for place in places if place.schema is not None])
    return places


def _check_plain(plain: str, repeats: int) -> None:
    """Check a grammar without its strings, regular expressions, names of tokens and comments."""
    if attribute := _ATTRIBUTE.search(plain):
        raise refusal(f"the grammar uses {attribute[1]}=, which is not supported (lazy and suffix= are)")
    if (definitions := plain.count(":")) > MAX_DEFINITIONS:
        raise refusal(f"the grammar has {definitions} rules and terminals; at most {MAX_DEFINITIONS} are allowed")
    if (repeats := repeats + len(re.findall(r"[?*+{~]", plain))) > MAX_REPEATS:
        raise refusal(f"the grammar repeats {repeats} parts (? * + {{}}); at most {MAX_REPEATS} are allowed")


def _block(text: str, name: str, start: int) -> tuple[dict[str, Any], int]:
    """Read the JSON object behind %json, %regex or %llguidance, and check it. Returns it, and where it ends."""
    try:
        value, end = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        raise refusal(f"what follows %{name} is not JSON ({error})") from None
    if name == "json":
        check_options(value, "a schema under %json", allowed=True)
    elif name == "regex":
        if sum(len(str(each)) for each in value.values()) > MAX_SUBSTRING:
            raise refusal(f"a substring under %regex has at most {MAX_SUBSTRING} characters")
    elif value.get("allow_invalid_utf8"):
        raise refusal("the grammar's option allow_invalid_utf8 is not supported: answers are text")
    return value, end
