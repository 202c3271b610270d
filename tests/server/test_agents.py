"""What agents and frameworks send, replayed: the fields and shapes of their requests, with our own words in them."""

import json

import pytest

from gradus.server.http.app import IGNORED
from tests.server.conftest import events, running
from tests.server.dialogue import (
    FLAT_TOOLS,
    TOOLS,
    Answering,
    asked,
    comparable,
    comparable_response,
    joined_chat,
    joined_response,
)
from tests.server.saying import keeps_to_a_form
from tests.text.templates import GEMMA, MISTRAL

FAMILIES = {"hermes": {}, "gemma3": {"template": GEMMA}, "mistral-v3": {"template": MISTRAL}}


@pytest.fixture(scope="module", params=FAMILIES)
def server(request):
    """Models of three families: one takes tools and system messages anywhere, the others insist on an order."""
    with running(lambda: Answering(family=request.param, context_length=30_000, **FAMILIES[request.param])) as made:
        yield made


def parts(text, kind="input_text"):
    return [{"type": kind, "text": text}]


def item(role, text):
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "id": f"msg_{role}", "role": role, "content": parts(text, kind)}


# -- /v1/responses -----------------------------------------------------------------------------------------------------

CODEX = {
    "model": "gradus",
    "input": [
        item("developer", "You work in a sandbox."),
        item("developer", "Repository guidelines: be brief."),
        item("user", "<environment_context>here</environment_context>"),
        item("user", asked("think_and_call")),
    ],
    "tools": [
        *({**tool, "strict": False} for tool in FLAT_TOOLS),
        {"type": "namespace", "name": "agents", "description": "Other agents.", "tools": [
            {"type": "function", "name": "ask", "strict": False, "parameters": {"type": "object", "properties": {}}}]},
        {"type": "web_search", "external_web_access": False},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0199",
    "client_metadata": {"origin": "cli"},
}  # fmt: skip
OPENAI_AGENTS = {
    "model": "gradus",
    "instructions": "You are helpful.",
    "input": [{"role": "user", "content": asked("call")}],
    "include": [],
    "tools": [],
}
SDK_TURN = {
    "model": "gradus",
    "instructions": "You are helpful.",
    "input": asked("plain"),
    "max_output_tokens": 32_000,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "truncation": "disabled",
    "tools": [],
    "tool_choice": "auto",
}


def answered(server, body):
    """Send a body as a stream and whole: the response, once both agree."""
    whole = server.http.post("/v1/responses", json=body | {"stream": False})
    assert whole.status_code == 200, whole.text
    streamed = server.http.post("/v1/responses", json=body | {"stream": True})
    found, _ = events(streamed)
    response = joined_response(found)
    assert comparable_response(response) == comparable_response(whole.json())
    return response


@pytest.mark.parametrize("body", [CODEX, OPENAI_AGENTS, SDK_TURN], ids=["codex", "openai-agents", "sdk"])
def test_a_recorded_request_for_a_response_is_answered(server, body):
    response = answered(server, body)
    assert response["status"] == "completed" and response["output"]


def test_codex_goes_on_with_what_it_was_answered(server):
    """It repeats all items, reasoning without its encrypted form, and adds the results of the calls."""
    output = answered(server, CODEX)["output"]
    results = [
        {"type": "function_call_output", "call_id": each["call_id"], "output": json.dumps({"output": "found it"})}
        for each in output
        if each["type"] == "function_call"
    ]
    kept = [{**each, "encrypted_content": None} if each["type"] == "reasoning" else each for each in output]
    more = [*CODEX["input"], *kept, *results, item("user", asked("plain"))]
    second = answered(server, CODEX | {"input": more})
    assert second["output"][-1]["content"][0]["text"].startswith("Ulm is a city")
    prompt = server.engine.prompts[-1]
    assert prompt.count("found it") == len(results) and prompt.count("You work in a sandbox.") == 1


def test_codex_is_answered_in_spite_of_its_own_tools(server):
    response = server.http.post("/v1/responses", json=CODEX)
    assert response.headers[IGNORED] == "tools.web_search"


# -- /v1/chat/completions ----------------------------------------------------------------------------------------------

SYSTEM = {"role": "system", "content": "You are an agent."}
BEFORE = [
    SYSTEM,
    {"role": "user", "content": "Look it up."},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_00_Xy", "type": "function", "function": {"name": "look_up", "arguments": '{"place": "Ulm"}'}}]},
    {"role": "tool", "tool_call_id": "call_00_Xy", "content": "On the Danube."},
]  # fmt: skip
STREAM = {"model": "gradus", "stream": True, "stream_options": {"include_usage": True}}

OPENCODE = STREAM | {
    "max_tokens": 32_000,
    "temperature": 0.55,
    "top_p": 1,
    "messages": [*BEFORE, {"role": "user", "content": parts(asked("talk_and_call"), "text")}],
    "tools": TOOLS,
    "tool_choice": "auto",
}
OPENCODE_TITLE = STREAM | {
    "max_tokens": 32_000,
    "messages": [SYSTEM, {"role": "user", "content": "Make a title:\n"}, {"role": "user", "content": asked("plain")}],
}
CONTINUE = STREAM | {
    "messages": [
        SYSTEM,
        {"role": "user", "content": parts("Read this.", "text")},
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"place":'}}]},
        {"role": "tool", "tool_call_id": "c1", "content": parts("On the Danube.", "text")},
        {"role": "user", "content": asked("call")},
    ],
    "tools": [{**tool, "display_title": "x"} for tool in TOOLS],
}  # fmt: skip
AIDER = {
    "model": "gradus",
    "messages": [
        {"role": "system", "content": "Act as an expert."},
        {"role": "user", "content": "Change this."},
        {"role": "assistant", "content": "Changed."},
        {"role": "user", "content": "I switched to a new code base."},
        {"role": "assistant", "content": "Ok."},
        {"role": "user", "content": "These are the files."},
        {"role": "assistant", "content": "Ok, any changes I propose will be to those files."},
        {"role": "user", "content": asked("plain")},
        {"role": "system", "content": "Use search and replace blocks."},
    ],
    "stream": True,
    "temperature": 0,
}
CITY = {
    "title": "City",
    "type": "object",
    "additionalProperties": False,
    "required": ["city", "people"],
    "properties": {"city": {"title": "City", "type": "string"}, "people": {"title": "People", "type": "integer"}},
}
LANGCHAIN = {
    "model": "gradus",
    "messages": [{"role": "system", "content": "You are an agent."}, {"role": "user", "content": asked("json")}],
    "stream": False,
    "response_format": {"type": "json_schema", "json_schema": {"name": "City", "strict": True, "schema": CITY}},
}
LITELLM = {
    "model": "gradus",
    "messages": [*BEFORE, {"role": "user", "content": asked("call")}],
    "tools": TOOLS,
    "stream": True,
    "stream_options": {"include_usage": True},
    "extra_body": {},
}
OPEN_WEBUI = {
    "model": "gradus",
    "stream": True,
    "messages": [{"role": "user", "content": asked("think")}],
    "stream_options": {"include_usage": True},
    "metadata": None,
}
VLLM_BENCH = {
    "model": "gradus",
    "messages": [{"role": "user", "content": parts(asked("plain"), "text")}],
    "max_completion_tokens": 16,
    "stream": True,
    "stream_options": {"include_usage": True},
    "repetition_penalty": 1.0,
    "logprobs": None,
    "ignore_eos": False,
}
CHATS = {
    "opencode": OPENCODE, "opencode, title": OPENCODE_TITLE, "continue": CONTINUE, "aider": AIDER,
    "langchain": LANGCHAIN, "litellm": LITELLM, "open webui": OPEN_WEBUI, "vllm bench": VLLM_BENCH,
}  # fmt: skip


def texts_of(content):
    return [content] if isinstance(content, str) else [each["text"] for each in content or ()]


@pytest.mark.parametrize("body", CHATS.values(), ids=CHATS)
def test_a_recorded_chat_is_answered(server, body):
    constrained = "response_format" in body
    whole = server.http.post("/v1/chat/completions", json=body | {"stream": False})
    assert whole.status_code == 200, whole.text
    streamed = server.http.post("/v1/chat/completions", json=body | {"stream": True})
    chunks, done = events(streamed)
    assert done
    joined, wanted = joined_chat(chunks), comparable(whole.json())
    usage = joined["usage"] if body.get("stream_options") else wanted["usage"]
    assert comparable(joined | {"usage": usage}) == wanted
    prompt = server.engine.prompts[-1]
    texts = [text for message in body["messages"] for text in texts_of(message["content"])]
    assert all(text.strip() in prompt for text in texts), "no word of the conversation is lost"
    assert keeps_to_a_form(server.engine.requests[-1]) == constrained


def test_two_calls_at_once_are_told_apart(server):
    """opencode asks for the answer and for a title at the same time."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(server.http.post, "/v1/chat/completions", json=body) for body in (OPENCODE, OPENCODE_TITLE)]
        answers = [joined_chat(events(each.result())[0])["choices"][0]["message"]["content"] for each in both]
    assert answers[0].startswith("Let me look.") and answers[1].startswith("Ulm is a city")
