"""Random JSON schemas, each with instances that are valid by construction."""

import json
import random
from collections.abc import Callable
from typing import Any

NAMES = [
    "a",
    "b",
    "the cat",
    "name",
    "x-y",
    "été",
    'quo"te',
    "back\\slash",
    "<|im_start|>",
    "$ref",
    "enum",
    "items",
    "",
]
TEXTS = ["", "a", "the cat sat", "été", "日本", '"', "\\", "\n\t", "😀", "<|im_end|>", "\u2028", "\u0007", "/"]
PATTERNS: dict[str, Callable[[random.Random], str]] = {
    "^[a-z]{2,4}$": lambda r: "".join(r.choices("abcxyz", k=r.randint(2, 4))),
    "^\\d{3}-\\d{2}$": lambda r: f"{r.randint(0, 999):03}-{r.randint(0, 99):02}",
    "^(yes|no|may be)$": lambda r: r.choice(["yes", "no", "may be"]),
    "cat": lambda r: r.choice(["cat", "a cat!", "cats"]),
    '^"?[^"]*$': lambda r: r.choice(['"', "a", ""]),
    r'^[^"\\]{1,4}$': lambda r: r.choice(["a", "the", "\n/", "é"]),
    r'^[^\\/:*?"<>|]+$': lambda r: r.choice(["a file.txt", "\t", "日"]),
}
FORMATS: dict[str, Callable[[random.Random], str]] = {
    "date": lambda r: f"{r.randint(1000, 2999)}-{r.randint(1, 12):02}-{r.randint(1, 28):02}",
    "uuid": lambda r: "-".join("".join(r.choices("0123456789abcdef", k=size)) for size in (8, 4, 4, 4, 12)),
    "ipv4": lambda r: ".".join(str(r.randint(0, 255)) for _ in range(4)),
    "email": lambda r: f"{r.choice(['a', 'cat'])}@{r.choice(['b.org', 'mat.com'])}",
    "date-time": lambda r: "2026-11-25T12:34:56Z",
}

Valid = Callable[[random.Random], Any]  # makes an instance


def schema(r: random.Random, depth: int = 3) -> tuple[dict[str, Any], Valid]:
    """Choose a schema whose values nest at most `depth` deep, and a function that makes instances of it."""
    flat = [_string, _string, _number, _integer, _enum, _const, _plain]
    nested = [_object, _object, _object, _array, _array, _tuple, _any_of, _list]
    return r.choice(flat + 2 * nested if depth > 0 else flat)(r, depth)


def _string(r: random.Random, depth: int) -> tuple[dict[str, Any], Valid]:
    match r.randrange(4):
        case 0:
            pattern = r.choice(list(PATTERNS))
            return {"type": "string", "pattern": pattern}, PATTERNS[pattern]
        case 1:
            name = r.choice(list(FORMATS))
            return {"type": "string", "format": name}, FORMATS[name]
        case 2:
            low, more = r.randint(0, 3), r.randint(0, 4)
            return {"type": "string", "minLength": low, "maxLength": low + more}, lambda r: "".join(
                r.choices('aé日😀" \\', k=r.randint(low, low + more))
            )
        case _:
            return {"type": "string"}, lambda r: r.choice(TEXTS)


def _integer(r: random.Random, depth: int) -> tuple[dict[str, Any], Valid]:
    low, high = sorted(r.sample(range(-1000, 1000), 2))
    step = r.choice([1, 1, 2, 5])
    low, high = low * step, high * step
    bounds = {"minimum": low, "maximum": high} if r.random() < 0.5 else {"exclusiveMinimum": low - 1, "maximum": high}
    made = {"type": "integer", **bounds} | ({"multipleOf": step} if step > 1 else {})
    return made, lambda r: r.randint(low // step, high // step) * step


def _number(r: random.Random, depth: int) -> tuple[dict[str, Any], Valid]:
    low, high = sorted(r.sample(range(-100, 100), 2))
    bounds = r.choice([{"minimum": low, "maximum": high}, {"minimum": low}, {"maximum": high}, {}])
    return {"type": "number", **bounds}, lambda r: r.choice([low, high, low + r.randrange(8) * (high - low) / 8])


def _enum(r: random.Random, depth: int) -> tuple[dict[str, Any], Valid]:
    values = [*r.sample(TEXTS, 2), r.randint(-9, 9), None, {"a": [1]}, [True, "x"]]
    chosen = r.sample(values, r.randint(1, len(values)))
    return {"enum": chosen}, lambda r: r.choice(chosen)


def _const(r: random.Random, depth: int) -> tuple[dict[str, Any], Valid]:
    """Literals with the names of keywords in them: nothing may be added to these (vLLM #58695)."""
    value = r.choice([*TEXTS, 0, -1.5, {"type": "object", "properties": {"a": {}}}, [{"const": 1}]])
    return {"const": value, "default": {"type": "object"}}, lambda r: value


def _plain(r: random.Random, depth: int) -> tuple[dict[str, Any], Valid]:
    return r.choice([
        ({"type": "boolean"}, lambda r: r.random() < 0.5),
        ({"type": "null"}, lambda r: None),
        ({"type": ["string", "null"]}, lambda r: r.choice([None, "a"])),
        ({}, lambda r: r.choice([1, "a", None, [1, {}], {"a": 0.5}])),
    ])  # fmt: skip


def _object(r: random.Random, depth: int) -> tuple[dict[str, Any], Valid]:
    parts = {name: schema(r, depth - 1) for name in r.sample(NAMES, r.randint(0, 4))}
    required = [name for name in parts if r.random() < 0.6]
    made: dict[str, Any] = {"type": "object", "properties": {name: part for name, (part, _) in parts.items()}}
    made |= {"required": required} if required or r.random() < 0.5 else {}
    extra = schema(r, 0) if r.random() < 0.3 else None
    if extra or r.random() < 0.6:
        made["additionalProperties"] = extra[0] if extra else False

    def valid(r: random.Random) -> dict[str, Any]:
        value = {name: make(r) for name, (_, make) in parts.items() if name in required or r.random() < 0.5}
        if extra:
            value |= {f"extra{number}": extra[1](r) for number in range(r.randrange(3))}
        return value

    return made, valid


def _array(r: random.Random, depth: int) -> tuple[dict[str, Any], Valid]:
    items, make = schema(r, depth - 1)
    low, more = r.randint(0, 3), r.randint(0, 3)
    made = {"type": "array", "items": items} | r.choice([{"minItems": low, "maxItems": low + more}, {"minItems": low}])
    return made, lambda r: [make(r) for _ in range(r.randint(low, low + more))]


def _tuple(r: random.Random, depth: int) -> tuple[dict[str, Any], Valid]:
    parts = [schema(r, depth - 1) for _ in range(r.randint(1, 3))]
    made = {"type": "array", "prefixItems": [part for part, _ in parts], "items": False, "minItems": len(parts)}
    return made, lambda r: [make(r) for _, make in parts]


def _any_of(r: random.Random, depth: int) -> tuple[dict[str, Any], Valid]:
    parts = [schema(r, depth - 1) for _ in range(r.randint(1, 3))]
    return {"anyOf": [part for part, _ in parts]}, lambda r: r.choice(parts)[1](r)


def _list(r: random.Random, depth: int) -> tuple[dict[str, Any], Valid]:
    """A recursive one. Only the outermost schema may hold definitions: `document` moves them there."""
    rest = {"anyOf": [{"$ref": "#/$defs/list"}, {"type": "null"}]}
    node = {"type": "object", "properties": {"value": {"type": "integer"}, "rest": rest}, "required": ["value", "rest"]}

    def valid(r: random.Random) -> dict[str, Any]:
        return {"value": r.randint(-99, 99), "rest": valid(r) if r.random() < 0.5 else None}

    return {"$ref": "#/$defs/list", "$comment": node | {"additionalProperties": False}}, valid


def document(seed: int) -> tuple[dict[str, Any], Valid]:
    made, valid = schema(random.Random(seed))
    found: list[dict[str, Any]] = []

    def lift(value: Any) -> Any:
        if isinstance(value, dict):
            if "$comment" in value:
                found.append(value["$comment"])
            return {key: lift(each) for key, each in value.items() if key != "$comment"}
        return [lift(each) for each in value] if isinstance(value, list) else value

    made = lift(made)
    return made | ({"$defs": {"list": found[0]}} if found else {}), valid


def written(value: Any, r: random.Random) -> str:
    """Write JSON as models do: compact, with blanks, or on several lines, unless the bound for blanks forbids that."""
    layout: dict[str, Any] = r.choice([{"separators": (",", ":")}, {}, {"indent": 2}, {"indent": 4}])
    text = json.dumps(value, ensure_ascii=False, **layout)
    return json.dumps(value, ensure_ascii=False) if "\n" + " " * 25 in text else text
