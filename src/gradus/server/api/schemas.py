"""Schemas of OpenAI's and Anthropic's bodies for /openapi.json: the fields read, and the required ones.

Both protocols grow with every release of their makers, so unlisted fields are allowed. The engine's own dataclass
describes the fields of sampling.
"""

from collections.abc import Mapping
from typing import Any

from gradus.server.api.openai import SAMPLING, SCHEDULING
from gradus.server.api.openapi import answers, sampling_properties, scheduling_properties
from gradus.server.config import ServerConfig

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}
COUNT: Schema = {"type": "integer", "minimum": 1}
TEXTS: Schema = {"type": "array", "items": TEXT}
TOKENS: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}}


def _object(required: Mapping[str, Schema], **optional: Schema) -> Schema:
    """Describe an object. An optional field may be null, which means that it is absent."""
    nullable = {name: {"anyOf": [schema, {"type": "null"}]} for name, schema in optional.items()}
    return {"type": "object", "required": list(required), "properties": {**required, **nullable}}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _any(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


def _one(*values: str) -> Schema:
    return {"enum": list(values)}


PART = _object({"type": _one("text"), "text": TEXT})
CALL = _object({"function": _object({"name": TEXT, "arguments": TEXT})}, id=TEXT, type=_one("function"))
CHAT_MESSAGE = _object(
    {"role": _one("system", "developer", "user", "assistant", "tool")},
    content=_any(TEXT, _list(PART)),
    tool_calls=_list(CALL),
    tool_call_id=TEXT,
    reasoning=TEXT,
)
FUNCTION = _object({"name": TEXT}, description=TEXT, parameters=OBJECT, strict=FLAG)
CHAT_TOOL = _object({"type": _one("function"), "function": FUNCTION})
CHAT_CHOICE = _any(_one("auto", "none", "required"), OBJECT)
SCHEMA_FORMAT = _object({"type": _one("json_schema"), "json_schema": _object({"schema": OBJECT}, name=TEXT)})
FORMAT = _any(_object({"type": _one("text", "json_object")}), SCHEMA_FORMAT)
STREAM_OPTIONS = _object({}, include_usage=FLAG, continuous_usage_stats=FLAG)

ITEM = _any(
    _object({"role": _one("system", "developer", "user", "assistant"), "content": _any(TEXT, _list(OBJECT))}),
    _object({"type": _one("function_call"), "call_id": TEXT, "name": TEXT, "arguments": TEXT}),
    _object({"type": _one("function_call_output"), "call_id": TEXT, "output": TEXT}),
    _object({"type": TEXT}),
)

BLOCK = _any(
    _object({"type": _one("text"), "text": TEXT}),
    _object({"type": _one("thinking"), "thinking": TEXT}, signature=TEXT),
    _object({"type": _one("tool_use"), "id": TEXT, "name": TEXT, "input": OBJECT}),
    _object({"type": _one("tool_result"), "tool_use_id": TEXT}, content=_any(TEXT, _list(OBJECT)), is_error=FLAG),
    _object({"type": TEXT}),
)
MESSAGE = _object({"role": _one("user", "assistant", "system"), "content": _any(TEXT, _list(BLOCK))})
TOOL = _object({"name": TEXT, "input_schema": OBJECT}, description=TEXT, strict=FLAG)
TOOL_CHOICE = _object({"type": _one("auto", "any", "tool", "none")}, name=TEXT, disable_parallel_tool_use=FLAG)
THINKING = _object({"type": _one("enabled", "adaptive", "between_tools", "disabled")}, budget_tokens=COUNT)


def bodies(config: ServerConfig) -> dict[str, Schema]:
    """Describe the body of each route, by its path."""
    sampling, scheduling = sampling_properties(), scheduling_properties(config)
    asked = {name: sampling[name] for name in SAMPLING} | {name: scheduling[name] for name in SCHEDULING}
    asked |= {"model": TEXT, "stream": FLAG, "seed": {"type": "integer"}}
    constraint = {"response_format": FORMAT, "structured_outputs": OBJECT, "stream_options": STREAM_OPTIONS}
    conversation = {"system": _any(TEXT, _list(BLOCK)), "tools": _list(_any(TOOL, OBJECT)), "thinking": THINKING}
    conversation |= {"tool_choice": TOOL_CHOICE, "output_config": OBJECT, "model": TEXT}
    return {
        "/v1/completions": _object(
            {"prompt": _any(TEXT, TOKENS, TEXTS, _list(TOKENS))},
            **asked, **constraint, max_tokens=COUNT, echo=FLAG, suffix=TEXT,
            logprobs={"type": "integer", "minimum": 0},
        ),
        "/v1/chat/completions": _object(
            {"messages": _list(CHAT_MESSAGE)},
            **asked, **constraint, max_completion_tokens=COUNT, max_tokens=COUNT, tools=_list(CHAT_TOOL),
            tool_choice=CHAT_CHOICE, parallel_tool_calls=FLAG, reasoning_effort=TEXT, logprobs=FLAG,
            top_logprobs={"type": "integer", "minimum": 0}, chat_template_kwargs=OBJECT,
        ),
        "/v1/responses": _object(
            {"input": _any(TEXT, _list(ITEM))},
            model=TEXT, stream=FLAG, instructions=TEXT, max_output_tokens=COUNT, tools=_list(OBJECT),
            tool_choice=CHAT_CHOICE, parallel_tool_calls=FLAG, reasoning=OBJECT, text=OBJECT, include=TEXTS,
            temperature=asked["temperature"], top_p=asked["top_p"],
        ),
        "/v1/messages": _object(
            {"max_tokens": COUNT, "messages": _list(MESSAGE)},
            **conversation, stream=FLAG, stop_sequences=TEXTS,
            temperature=asked["temperature"], top_p=asked["top_p"], top_k=asked["top_k"],
        ),
        "/v1/messages/count_tokens": _object({"messages": _list(MESSAGE)}, **conversation),
        "/tokenize": _object({}, prompt=TEXT, messages=_list(CHAT_MESSAGE), tools=_list(CHAT_TOOL)),
        "/detokenize": _object({"tokens": TOKENS}),
    }  # fmt: skip


def openapi_of(path: str, config: ServerConfig) -> Schema:
    """Describe a route of a vendor's protocol, for FastAPI's `openapi_extra`."""
    content = {"application/json": {"schema": bodies(config)[path]}}
    return {"requestBody": {"required": True, "content": content}, "responses": answers("the answer")}
