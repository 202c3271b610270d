"""Grammars that are small to write and large to follow: each must be refused, or stay cheap."""

import json
import random
from collections.abc import Callable

from gradus.engine.structured import Structured


def regex(text: str) -> Structured:
    return Structured(regex=text)


def lark(text: str) -> Structured:
    return Structured(grammar=text)


def schema(value: object) -> Structured:
    return Structured(json_schema=json.dumps(value))


def _nested(depth: int) -> dict:
    made: dict = {"type": "integer"}
    for _ in range(depth):
        made = {"type": "object", "properties": {"a": made}, "required": ["a"]}
    return made


def _doubling(rules: int, name: str, last: str) -> str:
    lines = [f"start: {name}0"] + [f"{name}{i}: {name}{i + 1} {name}{i + 1}" for i in range(rules)]
    return "\n".join([*lines, f'{name}{rules}: "{last}"'])


def _chain(count: int) -> dict:
    """Definitions, each with a pattern, and each referring to the next: all patterns apply to one string."""
    definitions = {f"d{i}": {"pattern": f"a.*{i}", "$ref": f"#/$defs/d{i + 1}"} for i in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": definitions | {f"d{count}": {"type": "string"}}}


def _references(count: int, keyword: str) -> dict:
    """Definitions that each refer to the next."""
    definitions: dict = {f"d{i}": {keyword: {"$ref": f"#/$defs/d{i + 1}"}} for i in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": definitions | {f"d{count}": {"type": "string"}}}


def _rules(count: int, name: str) -> str:
    """Definitions that each use the next."""
    lines = [f"start: {name}0", *(f'{name}{i}: "a" {name}{i + 1} "b"' for i in range(count)), f'{name}{count}: "x"']
    return "\n".join(lines)


_OPTIONAL = {"type": "string"}
_FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
_RECURSIVE = {
    "$ref": "#/$defs/a",
    "$defs": {
        "a": {
            "type": "object",
            "properties": {
                "x": {"$ref": "#/$defs/a"},
                "y": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "array", "items": {"$ref": "#/$defs/a"}}]},
            },
        }
    },
}
_CIRCLE = {
    "$ref": "#/$defs/a",
    "$defs": {
        "a": {"allOf": [{"$ref": "#/$defs/b"}, {"properties": {"x": {"$ref": "#/$defs/a"}}}]},
        "b": {"allOf": [{"$ref": "#/$defs/a"}]},
    },
}

HOSTILE: dict[str, Callable[[], Structured]] = {
    # regular expressions
    "exponential": lambda: regex("(a|aa)+b{1000}"),
    "ambiguous stars": lambda: regex("(a|aa|aaa)*(a|b)*c(a|b){20}"),
    "determinizes to 2^18": lambda: regex("[ab]*a[ab]{18}"),
    "dots": lambda: regex("(.*a){20}"),
    "counted twice": lambda: regex("(a{1000}){1000}"),
    "counted three times": lambda: regex("((a{100}){100}){100}"),
    "counted ranges": lambda: regex("(([a-z]{0,100}){0,100}){0,100}"),
    "a long range": lambda: regex("[a-z]{0,100000}"),
    "a giant range": lambda: regex("[a-z]{0,1000000000}"),
    "a million of anything": lambda: regex("(?s:.){1000,1000000}"),
    "Unicode classes": lambda: regex(r"(\p{L}\p{N}|\p{L}){500}"),
    "Unicode words": lambda: regex(r"(\w|\d|\p{Greek}){1,2000}x\w*"),
    "5,000 alternatives": lambda: regex("|".join(f"{'ab' * (i % 20)}x{i}" for i in range(5000))),
    "alternatives repeated": lambda: regex("(" + "|".join(f"x{i}[a-z]{{0,{i % 20}}}" for i in range(3000)) + "){1,50}"),
    "2,000 parentheses": lambda: regex("(" * 2000 + "a" + ")" * 2000),
    "1,000 optional letters": lambda: regex("a?" * 1000),
    "400 optional letters": lambda: regex("a?" * 400),
    "400 optional classes": lambda: regex(r"\p{L}?" * 400),
    "400 dots": lambda: regex(".*" * 400),
    "400 counted letters": lambda: regex("a{0,5}" * 400),
    "a long word": lambda: regex("a" * 200_000),
    # schemas
    "a huge enum": lambda: schema({"enum": [f"value{i}" for i in range(15000)]}),
    "a huge enum of numbers": lambda: schema({"enum": list(range(30000))}),
    "deep": lambda: schema(_nested(30)),
    "500 objects at once": lambda: schema(
        {"allOf": [{"type": "object", "properties": {f"p{i}": _OPTIONAL}} for i in range(500)]}
    ),
    "60 patterns at once": lambda: schema(
        {"type": "string", "allOf": [{"pattern": f"a.*{chr(97 + i % 26)}{i}"} for i in range(60)]}
    ),
    "8 patterns at once": lambda: schema({"type": "string", "allOf": [{"pattern": f"a.*{i}"} for i in range(8)]}),
    "patterns by reference": lambda: schema(_chain(40)),
    "a product of choices": lambda: schema(
        {
            "allOf": [
                {"anyOf": [{"type": "object", "properties": {f"p{i}{j}": _OPTIONAL}} for j in range(4)]}
                for i in range(8)
            ]
        }
    ),
    "3,000 properties": lambda: schema({"type": "object", "properties": {f"p{i}": _OPTIONAL for i in range(3000)}}),
    "500 properties": lambda: schema({"type": "object", "properties": {f"p{i}": _OPTIONAL for i in range(500)}}),
    "500 objects of properties": lambda: schema(
        {"anyOf": [{"type": "object", "properties": {f"p{i}{j}": _OPTIONAL for j in range(9)}} for i in range(500)]}
    ),
    "an array of 100,000": lambda: schema({"type": "array", "items": {"type": "integer"}, "minItems": 100000}),
    "nested arrays": lambda: schema(
        {"type": "array", "maxItems": 1000, "items": {"type": "array", "maxItems": 1000, "items": {"maxItems": 1000}}}
    ),
    "a long string": lambda: schema({"type": "string", "minLength": 10, "maxLength": 1000000000}),
    "a wide number": lambda: schema({"type": "number", "minimum": -1.2345678901234567e300, "maximum": 9.87e300}),
    "a huge integer": lambda: schema({"type": "integer", "minimum": 3, "maximum": 10**300, "multipleOf": 7}),
    "a huge multiple": lambda: schema({"type": "integer", "multipleOf": 99991}),
    "multiples at once": lambda: schema({"type": "integer", "allOf": [{"multipleOf": n} for n in (97, 89, 83, 79)]}),
    "a reference to itself": lambda: schema({"$ref": "#"}),
    "recursive": lambda: schema(_RECURSIVE),
    "a circle of references": lambda: schema(_CIRCLE),
    "60 patterns of names": lambda: schema(
        {"type": "object", "patternProperties": {f"^[a-z]{{{i}}}$": {"type": "integer"} for i in range(1, 60)}}
    ),
    "24 patterns of names": lambda: schema(
        {"type": "object", "patternProperties": {f"^.*{i}.*{i}$": {"type": "integer"} for i in range(24)}}
    ),
    "every format": lambda: schema(
        {"type": "array", "items": {"anyOf": [{"type": "string", "format": name} for name in _FORMATS]}}
    ),
    "1,500 references": lambda: schema(_references(1500, "additionalProperties")),
    "249 references": lambda: schema(_references(249, "additionalProperties")),
    "249 references of arrays": lambda: schema(_references(249, "items")),
    "3,000 objects in an enum": lambda: schema({"enum": [{"a": i, "b": [i]} for i in range(3000)]}),
    "700 objects in an enum": lambda: schema({"enum": [{"a": i, "b": [i]} for i in range(700)]}),
    "8,000 required": lambda: schema({"type": "object", "required": [f"p{i}" for i in range(8000)]}),
    "2,900 required": lambda: schema({"type": "object", "required": [f"p{i}" for i in range(2900)]}),
    "400 disjoint choices": lambda: schema(
        {"oneOf": [{"type": "object", "properties": {"k": {"const": f"{i}"}}, "required": ["k"]} for i in range(400)]}
    ),
    "a huge constant": lambda: schema({"const": "ab" * 60000}),
    "a huge name": lambda: schema({"type": "object", "properties": {"ab" * 60000: {}}, "required": ["ab" * 60000]}),
    # Lark
    "5,000 rules": lambda: lark(_rules(5000, "r")),
    "390 rules": lambda: lark(_rules(390, "r")),
    "390 terminals": lambda: lark(_rules(390, "R")),
    "400 optional lexemes": lambda: lark("start: " + '"a"? ' * 400),
    "400 stars of lexemes": lambda: lark("start: " + '"a"* ' * 400),
    "400 optional parts of a lexeme": lambda: lark("start: T\nT: " + '"a"? ' * 400),
    "left recursion": lambda: lark('start: start start | "a" | '),
    "expressions": lambda: lark('start: e\ne: e "+" e | e "*" e | "(" e ")" | /[0-9]+/'),
    "hidden left recursion": lambda: lark('start: a\na: b a | "x"\nb: | "y" | b b'),
    "ambiguous": lambda: lark("start: s\ns: s s s | s s | /a/ | /aa/ | "),
    "stars of stars": lambda: lark("start: x*\nx: y* \ny: z*\nz: /[ab]/* "),
    "right recursion": lambda: lark("start: /a/ start | /a/"),
    "a million": lambda: lark('start: "a"{1000000}'),
    "counted rules": lambda: lark('start: a{1000}\na: b{1000}\nb: c{1000}\nc: "x"{1000}'),
    "counted ranges of rules": lambda: lark('start: (("a"{0,1000} "b"?){0,1000} "c"?){0,1000}'),
    "intersections": lambda: lark("start: A\nA: /(.*a.*b){10}/ & /(.*b.*a){10}/ & ~/.*ab.*ab.*/"),
    "a negation": lambda: lark("start: A\nA: ~(/(.|\\n)*a[ab]{15}/) & /[ab]*/"),
    "doubling terminals": lambda: lark(_doubling(40, "A", "x")),
    "doubling rules": lambda: lark(_doubling(40, "r", "x")),
    "3,000 lexemes": lambda: lark("start: " + " | ".join(f"/[a-z]+{i}/" for i in range(3000))),
    "300 overlapping lexemes": lambda: lark("start: (" + " | ".join(f"/[a-z]*{i}[a-z]*/" for i in range(300)) + ")*"),
    "a large substring": lambda: lark(
        'start: %regex {"substring_chars": ' + json.dumps("".join(random.Random(0).choices("abc ", k=60000))) + "}"
    ),
    "an allowed substring": lambda: lark(
        'start: %regex {"substring_chars": ' + json.dumps("".join(random.Random(0).choices("abc ", k=16000))) + "}"
    ),
    "an empty %ignore": lambda: lark('%ignore /a*/\nstart: "b" "c"'),
    "5,000 groups": lambda: lark("start: " + "(" * 5000 + '"a"' + ")" * 5000),
    "a huge literal": lambda: lark("start: " + json.dumps("ab" * 60000)),
    "an empty rule": lambda: lark("start: "),
    "a rule of itself": lambda: lark("start: start"),
    "a schema inside": lambda: lark('start: %json {"type": "object", "allOf": ' + json.dumps([_RECURSIVE] * 3) + "}"),
    # choices
    "4,096 choices": lambda: Structured(choice=[f"{random.Random(i).random()}" * 3 for i in range(4096)]),
    "long choices": lambda: Structured(choice=["ab" * 30000 + ending for ending in "xyz"]),
    "any JSON": lambda: Structured(json=True),
}
