"""A body of /v1/responses, checked, as one request to the engine."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradus.engine.request import MAX_LOGPROBS, SamplingParams
from gradus.engine.structured import Structured
from gradus.server.api import openai
from gradus.server.api.fields import Fields, refuse
from gradus.server.api.responses.answer import ResponseEncoder
from gradus.server.api.responses.history import Names, flat_name, flattened, messages_of
from gradus.server.api.turns import read_turn, template_settings
from gradus.server.exchange import Ask, Chat, Encoder, Served
from gradus.server.results import Stream
from gradus.text.front_end import FrontEnd
from gradus.text.tools.dialect import Turn
from gradus.text.tools.tool import Tool

LOGPROBS = "message.output_text.logprobs"  # the item of `include` that requests them

STORED = "this server stores no responses; send all items in input"
REFUSED = {
    "previous_response_id": STORED,
    "conversation": STORED,
    "prompt": "this server stores no prompts; send instructions and input",
    "n": "send several requests",
    "response_format": "use text.format",
    "structured_outputs": "use text.format",
}
HARMLESS = (
    "max_tool_calls",
    "prompt_cache_options",
    "prompt_cache_retention",
    "stream_options",
    "truncation",
    "client_metadata",
    "moderation",
)
"""Fields without effect: this server never does what they ask for, or always does. Too long a prompt is refused."""


@dataclass(frozen=True, slots=True)
class Responses:
    """A body of /v1/responses, checked as far as possible before its prompt is rendered.

    names: of functions in namespaces. echoed: the fields of the body that the response repeats.
    """

    ask: Ask
    stream: bool
    names: Names
    echoed: Mapping[str, Any]
    front_end: FrontEnd
    ignored: tuple[str, ...] = ()

    @property
    def asks(self) -> Sequence[Ask]:
        return (self.ask,)

    def encoder(self, stream: Stream) -> Encoder:
        (request,) = stream.requests.values()
        return ResponseEncoder(self.ask, request, self.front_end, self.names, self.echoed)

    @classmethod
    def parse(cls, body: Any, served: Served) -> "Responses":
        """Check parsed JSON. Raises RequestError naming the field, or Unavailable while the model loads."""
        fields = Fields(body, strict=served.config.strict_fields)
        openai.refuse_unsupported(fields)
        fields.some(*HARMLESS)
        fields.refuse(REFUSED)
        if fields.flag("background"):
            fields.refuse({"background": STORED})
        front_end, stock = served.front_end, openai.stock(served)
        instructions = fields.text("instructions")
        messages, items_left_out = messages_of(instructions, fields.get("input"))
        turn, names, tools_left_out = _turn(fields, front_end)
        reasoning = fields.object("reasoning")
        settings = template_settings(fields, front_end, reasoning.get("effort"))
        params = _params(fields, stock)
        ask = Ask(Chat(messages, turn, settings), params, openai.scheduling(fields), cut=True)
        stream = fields.flag("stream")
        echoed = _echoed(fields, params, turn, names, reasoning) | {"instructions": instructions}
        skipped = _named("input", items_left_out) + _named("tools", tools_left_out)
        return cls(ask, stream, names, echoed, front_end, (*skipped, *fields.ignored()))


def _turn(fields: Fields, front_end: FrontEnd) -> tuple[Turn, dict[str, tuple[str, str]], list[str]]:
    """Read tools and choice. Also returns the functions in namespaces, and the types of tools left out."""
    tools, names, skipped = flattened(fields.list("tools"))
    choice = fields.get("tool_choice")
    if isinstance(choice, Mapping):
        choice = _flat_choice(choice)
    parallel = fields.flag("parallel_tool_calls", True)
    turn, left_out = read_turn(front_end.dialect, tools, choice, parallel)
    return turn, names, skipped + (["function"] if left_out else [])


def _flat_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    """Name a chosen function as the model sees it."""
    flat = dict(choice)
    if isinstance(flat.get("namespace"), str) and isinstance(flat.get("name"), str):
        flat["name"] = flat_name(flat.pop("namespace"), flat["name"])
    if isinstance(flat.get("tools"), list):
        flat["tools"] = [_flat_choice(each) if isinstance(each, Mapping) else each for each in flat["tools"]]
    return flat


def _params(fields: Fields, stock: openai.Stock) -> SamplingParams:
    """Read how to choose tokens. Either `top_logprobs` or `include` requests log-probabilities."""
    top = fields.whole("top_logprobs", 0, MAX_LOGPROBS, 0)
    wanted = bool(top) or LOGPROBS in fields.list("include")
    params = openai.sampling(
        fields, stock, max_tokens=fields.get("max_output_tokens"), logprobs=top if wanted else None
    )
    return replace(params, structured=_constraint(fields.object("text").get("format")))


def _constraint(given: Any) -> Structured | None:
    """Read `text.format`. Its schema's fields are its own, where a chat nests them in an object."""
    if given is None:
        return None
    kind = given.get("type") if isinstance(given, Mapping) else given
    match kind:
        case "text":
            return None
        case "json_object":
            return Structured(json_schema=openai.ANY_OBJECT)
        case "json_schema":
            schema = given.get("schema")
            if not isinstance(schema, dict):
                refuse("text.format.schema", "a JSON schema, an object", schema)
            return Structured(json_schema=schema)
    refuse("text.format.type", '"text", "json_object" or "json_schema"', kind)


# -- repeated in a response --------------------------------------------------------------------------------------------


def _echoed(
    fields: Fields, params: SamplingParams, turn: Turn, names: Names, reasoning: Mapping[str, Any]
) -> dict[str, Any]:
    """Collect the fields that a response repeats, as parsed: the raw body may hold numbers that JSON cannot."""
    metadata = {key: value for key, value in fields.object("metadata").items() if isinstance(value, str)}
    return {
        "max_output_tokens": params.max_tokens,
        "metadata": metadata,
        "parallel_tool_calls": turn.choice.parallel,
        "reasoning": {"effort": reasoning.get("effort"), "summary": None},
        "temperature": params.temperature,
        "text": {"format": _format(fields.object("text").get("format"), params.structured)},
        "tool_choice": _choice(turn, names),
        "tools": _tools(turn.tools, names),
        "top_logprobs": params.logprobs or 0,
        "top_p": params.top_p,
        "user": fields.text("user"),
    }


def _format(given: Any, structured: Structured | None) -> dict[str, Any]:
    if structured is None or given["type"] != "json_schema":
        return {"type": "text" if structured is None else "json_object"}
    name = given.get("name")
    schema = json.loads(structured.text)
    named = name if isinstance(name, str) else "schema"
    return {"type": "json_schema", "name": named, "schema": schema, "strict": given.get("strict") is True}


def _choice(turn: Turn, names: Names) -> str | dict[str, Any]:
    if turn.choice.mode != "named":
        return turn.choice.mode if turn.tools else "auto"
    return {"type": "function", "name": names.get(turn.choice.name or "", ("", turn.choice.name))[1]}


def _tools(tools: Sequence[Tool], names: Names) -> list[dict[str, Any]]:
    """Write the functions as they were declared, each in its namespace."""
    found: list[dict[str, Any]] = []
    spaces: dict[str, dict[str, Any]] = {}
    for tool in tools:
        namespace, name = names.get(tool.name, (None, tool.name))
        function = {
            "type": "function",
            "name": name,
            "description": tool.description or None,
            "parameters": tool.parameters,
            "strict": tool.strict,
        }
        if namespace is None:
            found.append(function)
        elif namespace in spaces:
            spaces[namespace]["tools"].append(function)
        else:
            spaces[namespace] = {"type": "namespace", "name": namespace, "description": "", "tools": [function]}
            found.append(spaces[namespace])
    return found


def _named(where: str, types: Sequence[str]) -> tuple[str, ...]:
    """Name the types that were left out, for a header."""
    return tuple(f"{where}.{kind}" for kind in dict.fromkeys(types) if kind.isascii() and kind.isidentifier())[:8]
