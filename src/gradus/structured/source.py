"""A constraint in llguidance's terms. The user's own text goes in as it is, together with options."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gradus.engine.structured import Structured
from gradus.structured.bounds import check_literal, check_options, check_regex, check_schemas
from gradus.structured.lark import check_lark
from gradus.structured.library import llguidance, refusal

# Some models run away in blanks where any number is legal; none at all takes models off the layout that they learned.
WHITESPACE: dict[str, dict[str, Any]] = {
    "bounded": {"whitespace_pattern": r"\n[ ]{0,24}|[ ]{1,24}"},
    "compact": {"whitespace_flexible": False},
}
ESCAPES = {
    "json_allow_general_unicode_escapes": True
}  # \u00e9 for é, as models that learned from Python's JSON write it


def source_of(structured: Structured, controls: Mapping[str, int], eos: Sequence[int]) -> str:
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
            check_schemas([schema])
            return _listed("json_schema", _with_options("{}" if schema is True else text, options))
        case "regex":
            check_regex(text)
            return str(llguidance().LLMatcher.grammar_from_regex(text))
        case "choice":
            choices = json.loads(text)
            for choice in choices:
                check_literal(choice, "a choice")
            quoted = " | ".join(json.dumps(choice).replace("\x7f", "\\u007f") for choice in choices)  # Lark has no DEL
            return _listed("lark_grammar", json.dumps(f"start: CHOICE\nCHOICE: {quoted}"))
        case _:
            return _listed("lark_grammar", json.dumps(_lark(text, options, controls, eos)))


def _listed(kind: str, value: str) -> str:
    return f'{{"grammars": [{{"{kind}": {value}}}]}}'


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


def _lark(grammar: str, options: str, controls: Mapping[str, int], eos: Sequence[int]) -> str:
    """Number the control tokens of a grammar, and give its schemas the request's whitespace.

    A schema that has options of its own keeps them.
    """
    pieces, position = [], 0
    for place in check_lark(grammar):
        pieces.append(grammar[position : place.start])
        position = place.end
        written = grammar[place.start : place.end]
        if place.schema is None:
            pieces.append(f"<[{_number(written, controls, eos)}]>")
        else:
            pieces.append(written if "x-guidance" in place.schema else _with_options(written, options))
    return "".join([*pieces, grammar[position:]])


def _number(name: str, controls: Mapping[str, int], eos: Sequence[int]) -> int:
    if name not in controls:
        what = "a token by its number" if name.startswith("<[") else name
        raise refusal(f"the grammar names {what}: it may name this model's control tokens, by their spelling", got=name)
    if controls[name] in eos:
        raise refusal(f"the grammar names {name}, which ends every answer: leave it out", got=name)
    return controls[name]
