"""A history is checked before it is read: whatever a field holds, a request is rendered or refused by the field's name.

Bodies go through the readers of the protocols and the model's template, without a server, so that thousands of them
take seconds: each value below in each place of a valid body.
"""

import json
from types import SimpleNamespace

import pytest

from gradus.engine.request import ModelLimits
from gradus.errors import GradusError
from gradus.server.api.anthropic.request import Messages
from gradus.server.api.chat import ChatCompletion
from gradus.server.api.responses.body import Responses
from gradus.text.front_end import FrontEnd
from tests.pairwise import each_once
from tests.text.templates import HARMONY, LLAMA, MISTRAL
from tests.text.tools.builders import CHATML, PLAIN, TAGS, tokenizer

DEEP = "x"
for _ in range(50):
    DEEP = {"a": [DEEP]}

WRONG = (None, True, False, -1, 0, 1.5, 2**64, float("inf"), "x", "", [], {}, [[]], [None], ["x"], {"type": 5}, DEEP)
GONE = object()

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Ulm"]},
        "days": {"type": "array", "items": {"$ref": "#/$defs/d"}},
    },
    "required": ["city"],
    "$defs": {"d": {"type": "integer"}},
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"city": "Ulm"}'}}

CHAT = {
    "messages": [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Ask."}], "name": "Ann"},
        {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [
            CALL, {**CALL, "id": "call_2"}]},
        {"role": "tool", "content": [{"type": "text", "text": "Rain."}], "tool_call_id": "call_1"},
        {"role": "tool", "content": "Sun.", "tool_call_id": "call_2", "name": "f"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Rain."}], "reasoning": "Hm."},
        {"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "content": "Sun.", "name": "f"},
        {"role": "user", "content": "Last."},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "description": "Tells.", "parameters": SCHEMA}}],
    "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [
        {"type": "function", "function": {"name": "f"}}]}},
    "parallel_tool_calls": True,
    "chat_template_kwargs": {"enable_thinking": False},
}  # fmt: skip

RESPONSES = {
    "instructions": "Be brief.",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Ask."}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}], "content": [
            {"type": "reasoning_text", "text": "Hm."}]},
        {"type": "function_call", "call_id": "c1", "id": "fc_1", "name": "f", "namespace": "n", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "Rain."},
        {"type": "function_call", "call_id": "c2", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "Sun."}]},
        {"type": "web_search_call", "status": "completed"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Rain.", "annotations": []}]},
        {"role": "user", "content": "Last."},
    ],
    "tools": [
        {"type": "function", "name": "f", "description": "Tells.", "parameters": SCHEMA, "strict": False},
        {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "g", "parameters": SCHEMA}]},
        {"type": "web_search"},
    ],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [
        {"type": "function", "name": "g", "namespace": "n"}]},
    "reasoning": {"effort": "low", "summary": None},
    "text": {"format": {"type": "text"}},
}  # fmt: skip

MESSAGES = {
    "max_tokens": 9,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Ask."}, {"type": "image", "source": {}}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "x"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"city": "Ulm"}},
            {"type": "tool_use", "id": "toolu_2", "name": "f", "input": {}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": "Rain.", "is_error": True},
            {"type": "tool_result", "tool_use_id": "toolu_2", "content": [
                {"type": "text", "text": "Sun."},
                {"type": "search_result", "source": "x", "content": [{"type": "text", "text": "Sun."}]}]},
            {"type": "document", "source": {"type": "text", "data": "Words."}}]},
        {"role": "system", "content": "Be briefer."},
        {"role": "assistant", "content": "Rain."},
        {"role": "user", "content": "Last."},
    ],
    "tools": [{"name": "f", "description": "Tells.", "input_schema": SCHEMA}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": False},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config": {"effort": "low"},
}  # fmt: skip

PROTOCOLS = {
    "chat": (ChatCompletion, CHAT),
    "responses": (Responses, RESPONSES),
    "messages": (Messages, MESSAGES),
}
TEMPLATES = {"chatml": CHATML, "plain": PLAIN, "mistral": MISTRAL, "llama": LLAMA, "harmony": HARMONY}


def client_of(template):
    limits = ModelLimits(300, 65536, eos_token_ids=(257,), structured=True)
    front_end = FrontEnd(tokenizer(TEMPLATES[template], TAGS), limits, "model", lambda *_: (), tool_format=None)
    return SimpleNamespace(front_end=front_end, info=None, config=SimpleNamespace(strict_fields=False))


def places(value, path=()):
    """Every place in a JSON value but the whole."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def changed(written, path, value):
    """Read a written body, and give it another value in one place, or take that place away."""
    made = json.loads(written)
    inner = made
    for step in path[:-1]:
        inner = inner[step]
    if value is GONE:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return made


def refusal(protocol, body, client):
    """The refusal of a body, or None if it is rendered."""
    try:
        for ask in protocol.parse(body, client).asks:
            ask.request(client.front_end, "r", ask.scheduling)
    except GradusError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name, template", each_once([*PROTOCOLS], [*TEMPLATES]))
def test_any_value_in_any_place_of_a_history_is_read_or_refused_by_name(name, template):
    protocol, body = PROTOCOLS[name]
    client = client_of(template)
    assert refusal(protocol, body, client) is None
    written, broken, refused = json.dumps(body), {}, 0
    for path in places(body):
        for value in (*WRONG, GONE):
            try:
                message = refusal(protocol, changed(written, path, value), client)
            except Exception as error:
                broken[path, repr(value)[:40]] = repr(error)[:200]
                continue
            refused += message is not None
            if message is not None and ("\n" in message or "template refuses" in message):
                broken[path, repr(value)[:40]] = message
    assert not broken, json.dumps({str(key): error for key, error in broken.items()}, indent=1)[:4000]
    assert refused > 300
