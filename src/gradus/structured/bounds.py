"""What a grammar may cost, and the checks that come before it is compiled.

llguidance counts most of its own work (`parser_limits`). What its counters miss was found by feeding it hostile
grammars (tests/structured/hostile.py): the costs checked here grow with a number or with the length of a list. And some
things that a user may write would take the answer out of the grammar's hands; they are refused by name.
"""

import json
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from gradus.structured.library import llguidance, refusal

MAX_PROPERTIES = 500  # of one object: each may come next, and the parser has an item per possibility
MAX_PATTERNS = 8  # that apply to one string: their intersection grows with their product
MAX_PATTERN_PROPERTIES = 24  # of one object: each pair is checked for strings that match both
MAX_MULTIPLE = 10_000  # multipleOf without its decimal point: an automaton with a state per remainder
MAX_SUBSTRING = 16_384  # characters under %regex
PROBED_TOKENS = 48  # that every grammar is walked before it is used
PROBE_SECONDS = 0.1  # of CPU time for them

LOOSE = ("lenient", "coerce_one_of")  # options of llguidance that ignore parts of a schema


def parser_limits() -> Any:
    """Bound the library's work on one grammar: tens of milliseconds to compile it, and to fill a row.

    verbose_errors: an error text would carry the schema, which is its user's.
    """
    return llguidance().LLParserLimits(
        initial_lexer_fuel=500_000,
        step_lexer_fuel=80_000,
        step_max_items=20_000,
        max_items_in_row=2_000,
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
        _check_multiple(node.get("multipleOf"))
    _Patterns(schema).check()


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


def _check_multiple(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    try:
        _, digits, exponent = Decimal(str(value)).normalize().as_tuple()
    except InvalidOperation:
        return  # NaN, which llguidance refuses
    zeros = exponent if isinstance(exponent, int) and exponent > 0 else 0
    if len(digits) + zeros > 5 or int("".join(map(str, digits))) * 10**zeros > MAX_MULTIPLE:
        raise refusal(f"multipleOf is {value}; at most {MAX_MULTIPLE} steps between its powers of ten are allowed")


class _Patterns:
    """Counts the regular expressions that can apply to one string: its own, those of allOf, and of references."""

    def __init__(self, schema: Any) -> None:
        self._root = schema
        self._counts: dict[int, int] = {}

    def check(self) -> None:
        for node in _objects(self._root):
            if self._count(node) > MAX_PATTERNS:
                raise refusal(f"more than {MAX_PATTERNS} patterns or formats apply to one string (by allOf and $ref)")

    def _count(self, node: Any) -> int:
        if not isinstance(node, Mapping):
            return 0
        if id(node) in self._counts:
            return self._counts[id(node)]
        self._counts[id(node)] = 0  # a reference back to here adds nothing new
        count = ("pattern" in node) + ("format" in node)
        for keyword, combine in (("allOf", sum), ("anyOf", max), ("oneOf", max)):
            children = node.get(keyword)
            if isinstance(children, list) and children:
                count += combine([self._count(child) for child in children])
        count += self._count(self._resolve(node.get("$ref")))
        self._counts[id(node)] = count
        return count

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
      | (?P<block>%(?P<name>json|regex|llguidance)\s*)(?=\{)""",
    re.VERBOSE,
)
_BRACKETED = re.compile(r"\b(max_tokens|stop|temperature)\s*=")


def check_lark(text: str) -> list[tuple[int, int, dict[str, Any]]]:
    """Refuse what disables rollback, has no meaning here, or names tokens by number.

    Returns the schemas under %json: where each begins and ends in the text, and its parsed JSON.
    """
    schemas, plain = [], []
    position = 0
    while found := _LARK.search(text, position):
        plain.append(text[position : found.start()])
        position = found.end()
        if found["block"]:
            value, position = _block(text, found["name"], found.end())
            if found["name"] == "json":
                schemas.append((found.end(), position, value))
    plain.append(text[position:])
    rest = " ".join(plain)
    if attribute := _BRACKETED.search(rest):
        raise refusal(
            f"the grammar uses {attribute[1]}=, which is not supported (suffix= and lazy are)", got=attribute[1]
        )
    if "<[" in rest.replace(" ", ""):
        raise refusal("the grammar names tokens by number (<[…]>): name a control token by its spelling, <|…|>")
    return schemas


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
