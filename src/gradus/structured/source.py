"""A constraint in llguidance's terms. The user's own text goes in as it is, together with options.

Only schemas that the library would not keep exactly are rewritten (schema.py).
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gradus.engine.structured import Structured
from gradus.structured.bounds import check_literal, check_options, check_regex, check_schemas
from gradus.structured.lark import check_lark, lark_literal
from gradus.structured.library import llguidance, refusal
from gradus.structured.schema import kept

# Some models run away in blanks where any number is legal; none at all takes models off the layout that they learned.
WHITESPACE: dict[str, dict[str, Any]] = {
    "bounded": {"whitespace_pattern": r"\n[ ]{0,24}|[ ]{1,24}"},
    "compact": {"whitespace_flexible": False},
}
ESCAPES = {
    "json_allow_general_unicode_escapes": True
}  # \u00e9 for é, as models that learned from Python's JSON write it


class Source(NamedTuple):
    """A grammar for llguidance. unkept: keywords of its schemas that answers need not obey."""

    text: str
    unkept: tuple[str, ...] = ()


def source_of(structured: Structured, controls: Mapping[str, int], eos: Sequence[int]) -> Source:
    """Write the grammar that llguidance compiles: a list with one grammar, as JSON.

    Always that list: a bare text would be read as JSON if it began with a brace. Raises RequestError for what is
    refused before it is compiled.

    controls: the tokenizer's control tokens, by their spelling; eos: those that end an answer.
    """
    text, options = structured.text, json.dumps(WHITESPACE[structured.whitespace] | ESCAPES)
    match structured.kind:
        case "json":
            return _listed("json_schema", _with_options("{}", options))
        case "json_schema":
            schema = _parsed(text)
            check_options(schema, "the schema", allowed=False)
            found = kept(schema, text)
            check_schemas([found.schema])
            written = _with_options("{}" if schema is True else found.text, options)
            return _listed("json_schema", written, found.unkept)
        case "regex":
            check_regex(text)
            return Source(str(llguidance().LLMatcher.grammar_from_regex(text)))
        case "choice":
            choices = json.loads(text)
            for choice in choices:
                check_literal(choice, "a choice")
            quoted = " | ".join(map(lark_literal, choices))
            return _listed("lark_grammar", json.dumps(f"start: CHOICE\nCHOICE: {quoted}"))
        case _:
            grammar, unkept = _lark(text, options, controls, eos)
            return _listed("lark_grammar", json.dumps(grammar), unkept)


def _listed(kind: str, value: str, unkept: tuple[str, ...] = ()) -> Source:
    return Source(f'{{"grammars": [{{"{kind}": {value}}}]}}', unkept)


def _parsed(text: str) -> Any:
    """Parse a schema's JSON. Structured has checked that it is JSON: only numbers out of all bounds are left."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise refusal(f"the schema is not JSON that can be read: {error}") from None


def _with_options(schema: str, options: str) -> str:
    """Put llguidance's options in front of a schema's own keys."""
    inside = schema.strip()[1:]
    return f'{{"x-guidance": {options}{"" if inside.lstrip() == "}" else ","}{inside}'


def _lark(grammar: str, options: str, controls: Mapping[str, int], eos: Sequence[int]) -> Source:
    """Number the control tokens of a grammar, and give its schemas the request's whitespace.

    A schema that has options of its own keeps them.
    """
    pieces, position, unkept = [], 0, dict[str, None]()
    for place in check_lark(grammar):
        pieces.append(grammar[position : place.start])
        position = place.end
        if place.schema is None:
            pieces.append(f"<[{_number(grammar[place.start : place.end], controls, eos)}]>")
        else:
            written = place.schema.text
            pieces.append(written if "x-guidance" in place.schema.schema else _with_options(written, options))
            unkept |= dict.fromkeys(place.schema.unkept)
    return Source("".join([*pieces, grammar[position:]]), tuple(unkept))


def _number(written: str, controls: Mapping[str, int], eos: Sequence[int]) -> int:
    """Look a control token up. One whose spelling has no angle brackets is written in them: <[TOOL_CALLS]>."""
    name = written if written in controls or written[1:-1] not in controls else written[1:-1]
    if name not in controls:
        what = "a token by its number" if name.startswith("<[") else name
        raise refusal(f"the grammar names {what}: it may name this model's control tokens, by their spelling", got=name)
    if controls[name] in eos:
        raise refusal(f"the grammar names {name}, which ends every answer: leave it out", got=name)
    return controls[name]
