"""Limits on what a grammar may cost, checked before it is compiled.

llguidance counts most of its own work (`parser_limits`). Its counters miss some of it, and it recurses: a schema of a
thousand definitions, each referring to the next, overflows the stack and ends the process. The limits here were found
by feeding it hostile grammars (tests/structured/hostile.py), with a vocabulary of 49,152 tokens.
"""

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any
from urllib.parse import unquote

from gradus.structured.library import llguidance, refusal

MAX_VALUES = 3_000  # of a schema: each takes tens of microseconds
ENUMERATED = 8  # plain values of enums count as one
MAX_PROPERTIES = 450  # of one object: each may come next, and the parser has four items per possibility
MAX_PATTERNS = 8  # that apply to one string: their intersection grows with their product
MAX_PATTERN_PROPERTIES = 24  # of one object: each pair is checked for strings that match both
MAX_MULTIPLE = 10_000  # multipleOf without its decimal point: an automaton with a state per remainder
MAX_TARGETS = 250  # of references: the library recurses through them, and 1,000 overflow a stack of 8 MiB
MAX_TARGET_LEVELS = 1_000  # of nesting in all of them
MAX_REGEX = 32_768  # characters of one regular expression
MAX_LITERAL = 16_384  # characters of one literal text: where it is forced, every row takes time in proportion
MAX_REPEATS = 400  # in one regular expression or Lark grammar: the cost grows with their square

PROBED_TOKENS = 96  # that every grammar is walked before it is used
PROBE_SECONDS = 0.12  # of CPU time for them

LOOSE = ("lenient", "coerce_one_of")  # options of llguidance that ignore parts of a schema
SKIPPED = {"title", "description", "default", "examples", "$comment", "enum", "const"}  # the last two apart


def parser_limits() -> Any:
    """Bound the library's work on one grammar: tens of milliseconds to compile it, and to fill a row.

    verbose_errors: an error text would carry the schema, which is its user's.
    """
    return llguidance().LLParserLimits(
        initial_lexer_fuel=100_000,
        step_lexer_fuel=80_000,
        step_max_items=40_000,  # a row behind a value of MAX_PROPERTIES optional ones takes up to 30,000
        max_items_in_row=4_000,
        max_lexer_states=25_000,
        max_grammar_size=100_000,
        verbose_errors=False,
    )


def check_regex(text: str, what: str = "the regular expression") -> None:
    """Refuse a regular expression that is too long, or has too many repetitions."""
    if len(text) > MAX_REGEX:
        raise refusal(f"{what} has {len(text)} characters; at most {MAX_REGEX} are allowed", limit=str(MAX_REGEX))
    if (repeats := count_repeats(text)) > MAX_REPEATS:
        raise refusal(f"{what} repeats {repeats} parts (? * + {{}}); at most {MAX_REPEATS} are allowed")


def check_literal(text: str, what: str) -> None:
    """Refuse a long literal text."""
    if len(text) > MAX_LITERAL:
        raise refusal(f"{what} has {len(text)} characters; at most {MAX_LITERAL} are allowed", limit=str(MAX_LITERAL))


def count_repeats(text: str) -> int:
    """Count the characters that repeat something, except those behind a backslash."""
    return len(re.findall(r"[?*+{]", re.sub(r"\\.", "", text, flags=re.DOTALL)))


# -- JSON schemas ------------------------------------------------------------------------------------------------------


def check_schemas(schemas: list[Any]) -> None:
    """Refuse what would take too long to compile, or too deep a recursion. schemas: parsed JSON, of one grammar."""
    if (values := sum(map(_values, schemas))) > MAX_VALUES:  # first: the rest takes longer
        raise refusal(f"the schema has about {values} values; at most {MAX_VALUES} are allowed")
    for schema in schemas:
        if schema is False:
            raise refusal("nothing satisfies the schema `false`")
        for node in _objects(schema):
            _check_object(node)
        _Together(schema).check()
    targets = [target for schema in schemas for target in _targets(schema)]
    if len(targets) > MAX_TARGETS or sum(map(_levels, targets)) > MAX_TARGET_LEVELS:
        raise refusal(
            f"the schema refers to {len(targets)} definitions; at most {MAX_TARGETS} are allowed, with "
            f"{MAX_TARGET_LEVELS} levels of nesting in all"
        )


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


def _check_object(node: Mapping[str, Any]) -> None:
    for keyword, limit in (("properties", MAX_PROPERTIES), ("patternProperties", MAX_PATTERN_PROPERTIES)):
        value = node.get(keyword)
        if isinstance(value, Mapping) and len(value) > limit:
            raise refusal(f"{keyword} has {len(value)} entries; at most {limit} are allowed", limit=str(limit))
    for name in node:
        check_literal(name, "a name in the schema")
    names = node.get("patternProperties")
    for pattern in (node.get("pattern"), *(names if isinstance(names, Mapping) else ())):
        if isinstance(pattern, str):
            check_regex(pattern, "a pattern")


def _values(schema: Any) -> int:
    """Count the values of a schema, without what only describes it; those inside a literal object or array twice."""
    count = enumerated = 0
    pending = [(schema, 1)]
    while pending:
        node, weight = pending.pop()
        count += weight
        if isinstance(node, Mapping):
            choices = node.get("enum")
            literals = [*(choices if isinstance(choices, list) else ()), node.get("const")]
            enumerated += len(literals)
            for value in literals:
                if isinstance(value, dict | list):
                    pending.append((value, 2))
                elif isinstance(value, str):
                    check_literal(value, "a text in the schema")
            pending += [(value, weight) for key, value in node.items() if key not in SKIPPED]
        elif isinstance(node, list):
            pending += [(value, weight) for value in node]
        elif isinstance(node, str):
            check_literal(node, "a text in the schema")
    return count + enumerated // ENUMERATED


def _targets(schema: Any) -> list[Any]:
    """List the values that the schema's references name, once each."""
    references = {node["$ref"] for node in _objects(schema) if isinstance(node.get("$ref"), str)}
    found = {id(target): target for name in references if (target := resolve(schema, name)) is not None}
    return list(found.values())


def _levels(value: Any) -> int:
    """Count how deep a value nests."""
    levels, row = 0, [value]
    while row:
        levels += 1
        nested = [node for node in row if isinstance(node, dict | list)]
        row = [child for node in nested for child in (node.values() if isinstance(node, dict) else node)]
    return levels


def resolve(root: Any, reference: Any) -> Any:
    """Follow a reference inside the document (#/$defs/name); others, llguidance refuses or compiles by itself."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    node = root
    for part in unquote(reference).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, list):
            node = node[int(key)] if key.isdecimal() and len(key) < 7 and int(key) < len(node) else None
        else:
            node = node.get(key) if isinstance(node, Mapping) else None
    return node


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
        together = [self._cost(resolve(self._root, node.get("$ref")))]
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
