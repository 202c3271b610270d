"""What a grammar may cost, and the checks that come before it is compiled.

llguidance counts most of its own work (`parser_limits`). What its counters miss was found by feeding it hostile
grammars (tests/structured/hostile.py): the costs checked here grow with a number or with the length of a list. And some
things that a user may write would take the answer out of the grammar's hands; they are refused by name.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from gradus.structured.library import llguidance, refusal

MAX_PROPERTIES = 450  # of one object: each may come next, and the parser has an item per possibility
MAX_PATTERNS = 8  # that apply to one string: their intersection grows with their product
MAX_PATTERN_PROPERTIES = 24  # of one object: each pair is checked for strings that match both
MAX_MULTIPLE = 10_000  # multipleOf without its decimal point: an automaton with a state per remainder
MAX_SUBSTRING = 16_384  # characters under %regex
PROBED_TOKENS = 96  # that every grammar is walked before it is used
PROBE_SECONDS = 0.12  # of CPU time for them

LOOSE = ("lenient", "coerce_one_of")  # options of llguidance that ignore parts of a schema


def parser_limits() -> Any:
    """Bound the library's work on one grammar: tens of milliseconds to compile it, and to fill a row.

    verbose_errors: an error text would carry the schema, which is its user's.
    """
    return llguidance().LLParserLimits(
        initial_lexer_fuel=200_000,
        step_lexer_fuel=80_000,
        step_max_items=20_000,
        max_items_in_row=4_000,
        max_lexer_states=25_000,
        max_grammar_size=100_000,
        verbose_errors=False,
    )


# -- JSON schemas ------------------------------------------------------------------------------------------------------


def check_schema(schema: Any) -> None:
    """Refuse a schema that would take too long to compile. schema: parsed JSON."""
    if schema is False:
        raise refusal("nothing satisfies the schema `false`")
    for node in _objects(schema):
        _at_most(node, "properties", MAX_PROPERTIES)
        _at_most(node, "patternProperties", MAX_PATTERN_PROPERTIES)
    _Together(schema).check()


def check_options(schema: Any, where: str, allowed: bool) -> None:
    """Refuse llguidance's own key in a schema, or (allowed) those of its options that ignore parts of the schema."""
    options = schema.get("x-guidance") if isinstance(schema, Mapping) else None
    if options is None:
        return
    if not allowed:
        raise refusal(f'{where} has the key "x-guidance": use the field `whitespace`')
    loose = [name for name in LOOSE if isinstance(options, Mapping) and options.get(name)]
    if loose:
        raise refusal(f'{where} has the option "{loose[0]}", which ignores parts of the schema')


def _objects(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every JSON object inside the schema, whatever its place means."""
    pending = [schema]
    while pending:
        node = pending.pop()
        if isinstance(node, Mapping):
            yield node
            pending += node.values()
        elif isinstance(node, list):
            pending += node


def _at_most(node: Mapping[str, Any], keyword: str, limit: int) -> None:
    value = node.get(keyword)
    if isinstance(value, Mapping) and len(value) > limit:
        raise refusal(f"{keyword} has {len(value)} entries; at most {limit} are allowed", limit=str(limit))


def _steps(value: Any) -> int:
    """Return a multipleOf without its decimal point and trailing zeros of a fraction: 0.25 is 25, 100 is 100."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 1
    try:
        _, digits, exponent = Decimal(str(value)).normalize().as_tuple()
    except InvalidOperation:
        return 1  # NaN, which llguidance refuses
    zeros = exponent if isinstance(exponent, int) and exponent > 0 else 0
    if len(digits) + zeros > len(str(MAX_MULTIPLE)):
        return MAX_MULTIPLE + 1
    return int("".join(map(str, digits))) * 10**zeros


class _Together:
    """Adds up what applies to one value at once: its own keywords, those of allOf, of one choice, and of references."""

    def __init__(self, schema: Any) -> None:
        self._root = schema
        self._costs: dict[int, tuple[int, int]] = {}

    def check(self) -> None:
        for node in _objects(self._root):
            patterns, multiple = self._cost(node)
            if patterns > MAX_PATTERNS:
                raise refusal(f"more than {MAX_PATTERNS} patterns or formats apply to one string (by allOf and $ref)")
            if multiple > MAX_MULTIPLE:
                raise refusal(f"multipleOf, or the product of several, has more than {MAX_MULTIPLE} steps")

    def _cost(self, node: Any) -> tuple[int, int]:
        """Count the regular expressions of a string, and multiply the steps of a number."""
        if not isinstance(node, Mapping):
            return 0, 1
        if id(node) in self._costs:
            return self._costs[id(node)]
        self._costs[id(node)] = 0, 1  # a reference back to here adds nothing new
        patterns, multiple = ("pattern" in node) + ("format" in node), _steps(node.get("multipleOf"))
        together = [self._cost(self._resolve(node.get("$ref")))]
        for keyword in ("allOf", "anyOf", "oneOf"):
            children = node.get(keyword)
            costs = [self._cost(child) for child in children] if isinstance(children, list) and children else []
            if keyword == "allOf":
                together += costs
            elif costs:
                together.append((max(cost[0] for cost in costs), max(cost[1] for cost in costs)))
        for more, factor in together:
            patterns, multiple = patterns + more, min(multiple * factor, MAX_MULTIPLE + 1)
        self._costs[id(node)] = patterns, multiple
        return patterns, multiple

    def _resolve(self, reference: Any) -> Any:
        """Follow a reference inside the document (#/$defs/name); others, llguidance refuses or compiles by itself."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        node = self._root
        for part in reference.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            node = node.get(key) if isinstance(node, Mapping) else None
        return node


# -- Lark --------------------------------------------------------------------------------------------------------------

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
    schema: dict[str, Any] | None = None


def check_lark(text: str) -> list[Place]:
    """Refuse what disables rollback or has no meaning here. Returns the schemas and the names of control tokens."""
    places, rest = [], []
    position = 0
    while found := _LARK.search(text, position):
        rest.append(text[position : found.start()])
        position = found.end()
        if found["token"]:
            places.append(Place(found.start(), position))
        elif found["block"]:
            value, position = _block(text, found["block"], found.end())
            places += [Place(found.end(), position, value)] if found["block"] == "json" else []
    plain = " ".join([*rest, text[position:]])
    if attribute := _ATTRIBUTE.search(plain):
        raise refusal(f"the grammar uses {attribute[1]}=, which is not supported (lazy and suffix= are)")
    return places


def _block(text: str, name: str, start: int) -> tuple[dict[str, Any], int]:
    """Read the JSON object behind %json, %regex or %llguidance, and check it. Returns it, and where it ends."""
    try:
        value, end = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        raise refusal(f"what follows %{name} is not JSON ({error})") from None
    if name == "json":
        check_options(value, "a schema under %json", allowed=True)
        check_schema(value)
    elif name == "regex":
        if sum(len(str(each)) for each in value.values()) > MAX_SUBSTRING:
            raise refusal(f"a substring under %regex has at most {MAX_SUBSTRING} characters")
    elif value.get("allow_invalid_utf8"):
        raise refusal("the grammar's option allow_invalid_utf8 is not supported: answers are text")
    return value, end
