"""The OpenAPI schema of /generate, derived from the engine's own dataclasses with the descriptions of their
fields, so the two cannot drift apart."""

import dataclasses
import re
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from gradus.engine.meaning import meanings
from gradus.engine.request import SamplingParams, SchedulingParams
from gradus.engine.structured import Structured
from gradus.server.config import (
    ServerConfig,
)


def openapi_of_generate(config: ServerConfig) -> dict[str, Any]:
    """Derive the schema from the engine's own dataclasses, as FastAPI would from a pydantic model."""
    schema: dict[str, Any] = {
        "type": "object",
        "required": ["prompt"],
        "additionalProperties": False,
        "properties": {
            "prompt": {
                "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer", "minimum": 0}}],
                "description": "text, or token ids",
            },
            **sampling_properties(),
            **scheduling_properties(config),
            "stream": {"type": "boolean", "default": False, "description": "answer with server-sent events"},
        },
    }
    for name, field in schema["properties"].items():
        if name != "prompt":
            _allow_null(field)
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": answers("the completion; with `stream`, events whose data are its pieces, then [DONE]"),
    }


def answers(meaning: str) -> dict[str, Any]:
    """Describe a route's answers. meaning: the description of status 200."""
    return {
        "200": {"description": meaning, "content": {"application/json": {}, "text/event-stream": {}}},
        **{status: {"description": error} for status, error in ERRORS.items()},
    }


ERRORS = {
    "400": "the request can never be served as it stands; `error` names the field, its limit and what was given",
    "401": "the server asks for an API key, and this request has none that it knows",
    "403": "another host's name, another site's page, or a key whose role does not allow the route",
    "408": "the body did not arrive in time",
    "413": "the body is too large",
    "415": "the body is not plain application/json in UTF-8",
    "429": "the API key has used up what it may use at once, or per minute; Retry-After says when to come back",
    "431": "the headers are too large",
    "500": "this one request failed in the engine",
    "503": "loading, overloaded, restarting, draining or failed; Retry-After says when to return, where known",
    "504": "the request did not end within its timeout, or could not end by its deadline",
}


def _allow_null(schema: dict[str, Any]) -> None:
    """Let the schema of a field accept null, which means the field's default."""
    kinds = schema.setdefault("anyOf", [])
    if not kinds:
        kinds.append({key: schema.pop(key) for key in TYPED if key in schema})
    if {"type": "null"} not in kinds:
        kinds.append({"type": "null"})


TYPED = ("type", "items", "additionalProperties")


def sampling_properties() -> dict[str, Any]:
    properties, constraint = _properties(SamplingParams), _properties(Structured)
    del constraint["lazy"]  # of the tools' grammars, which no client writes
    properties["structured"] = {
        "type": "object",
        "additionalProperties": False,
        "properties": constraint | {"json_schema": {"description": meanings(Structured)["json_schema"]}},
        **{key: properties["structured"][key] for key in ("default", "description")},
    }
    # a single stop string may come without a list
    properties["stop"] = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]} | {
        key: properties["stop"][key] for key in ("default", "description")
    }
    return properties


def scheduling_properties(config: ServerConfig) -> dict[str, Any]:
    properties = _properties(SchedulingParams)
    properties["timeout"] |= {"exclusiveMinimum": 0, "maximum": config.request_timeout}
    properties["timeout"]["description"] += f" Here null is {config.request_timeout:g} s."
    return properties


def _properties(params: type[SamplingParams | SchedulingParams | Structured]) -> dict[str, Any]:
    kinds, descriptions = typing.get_type_hints(params), meanings(params)
    properties = {}
    for field in dataclasses.fields(params):
        default = field.default if field.default is not dataclasses.MISSING else {}
        properties[field.name] = {
            **_json_type(kinds[field.name]),
            "default": list(default) if isinstance(default, tuple) else default,
            "description": re.sub(r"\bNone\b", "null", descriptions[field.name]),
        }
    return properties


JSON_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", types.NoneType: "null"}


def _json_type(kind: Any) -> dict[str, Any]:
    arguments = typing.get_args(kind)
    if isinstance(kind, types.UnionType):
        return {"anyOf": [_json_type(one) for one in arguments]}
    match typing.get_origin(kind) or kind:
        case origin if origin is Sequence:
            return {"type": "array", "items": _json_type(arguments[0])}
        case origin if origin is Mapping:  # JSON has no integer keys
            return {"type": "object", "additionalProperties": _json_type(arguments[1])}
        case simple:
            return {"type": JSON_TYPES[simple]} if simple in JSON_TYPES else {}
