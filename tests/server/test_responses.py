"""/v1/responses over a real socket: each response and each item has its whole life, and the input is a conversation."""

import json
from itertools import cycle

import pytest

from gradus.server.http.app import IGNORED
from tests.pairwise import each_once
from tests.server.conftest import eventually, running
from tests.server.dialogue import (
    ANSWERS,
    FLAT_TOOLS,
    Answering,
    asked,
    comparable_response,
    joined_response,
    respond,
    response_events,
)
from tests.server.odd import ODD, send_odd

WHOLE = [name for name in ANSWERS if name not in ("several", "breaks", "calls_on")]  # the last is in test_endings.py


@pytest.fixture(scope="module", params=[1, 7], ids=["token by token", "seven tokens a step"])
def server(request):
    with running(lambda: Answering(size=request.param, cached=3)) as made:
        yield made


@pytest.fixture(scope="module")
def one():
    with running(lambda: Answering(context_length=1000)) as made:
        yield made


# -- answers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "server, name, more",
    [
        *each_once([1, 7], WHOLE, [{"tools": FLAT_TOOLS}]),
        *each_once([1, 7], WHOLE, [{}, {"top_logprobs": 2}, {"tools": FLAT_TOOLS, "max_output_tokens": 30}]),
    ],
    indirect=["server"],
)
def test_a_streamed_response_is_the_whole_one(server, name, more):
    streamed = joined_response(response_events(server, name, **more))
    whole = respond(server, name, **more).json()
    assert whole["object"] == "response" and whole["id"].startswith("resp_")
    assert comparable_response(streamed) == comparable_response(whole)
    assert eventually(server.idle)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("plain", ["message"]),
        ("blank", ["message"]),
        ("only_thought", ["reasoning", "message"]),
        ("call", ["function_call"]),
        ("two_calls", ["function_call", "function_call"]),
        ("think_and_call", ["reasoning", "message", "function_call", "function_call"]),
    ],
)
def test_an_answer_becomes_items(server, name, kinds):
    whole = respond(server, name, tools=FLAT_TOOLS).json()
    assert [item["type"] for item in whole["output"]] == kinds
    assert whole["status"] == "completed" and all(item["status"] == "completed" for item in whole["output"])
    for item in whole["output"]:
        match item["type"]:
            case "reasoning":
                assert (
                    item["content"] == [{"type": "reasoning_text", "text": "Where is Ulm?"}] and item["summary"] == []
                )
            case "function_call" if item["name"] == "look_up":
                assert json.loads(item["arguments"]) == {"place": "Ulm", "days": [1, 2]} and "namespace" not in item
            case "message":
                assert item["content"][0]["annotations"] == [] and item["role"] == "assistant"


def test_usage_is_in_the_words_of_responses(server):
    usage = respond(server, "think").json()["usage"]
    assert usage["input_tokens_details"] == {"cached_tokens": 3, "cache_write_tokens": 0}
    assert usage["output_tokens_details"] == {"reasoning_tokens": len("\nWhere is Ulm?\n") + 2}
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert response_events(server, "think")[0]["response"]["usage"] is None


@pytest.mark.parametrize("most", [1, 5, 12, 30, 60, 500])
@pytest.mark.parametrize("name", ["plain", "think", "talk_and_call"])
def test_a_response_that_is_cut_is_incomplete_and_so_is_its_last_item(server, name, most):
    found = response_events(server, name, tools=FLAT_TOOLS, max_output_tokens=most)
    response = joined_response(found)
    cut = most < len(server.engine.tokenizer.encode(ANSWERS[name])) + 1
    assert response["status"] == ("incomplete" if cut else "completed")
    assert response["incomplete_details"] == ({"reason": "max_output_tokens"} if cut else None)
    assert [item["status"] for item in response["output"][:-1]] == ["completed"] * (len(response["output"]) - 1)


def test_the_item_that_is_cut_is_incomplete(server):
    for most in (5, 25):  # inside the text, and inside the reasoning
        name = "plain" if most == 5 else "think"
        (item,) = joined_response(response_events(server, name, max_output_tokens=most - 10 * (most > 5)))["output"]
        assert item["status"] == "incomplete"
    last = joined_response(response_events(server, "call", tools=FLAT_TOOLS, max_output_tokens=60))["output"][-1]
    assert last["type"] == "function_call" and last["status"] == "incomplete"


def test_a_response_repeats_what_was_asked(one):
    text = {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}}
    whole = respond(
        one, instructions="Be brief.", tools=FLAT_TOOLS, tool_choice="required", temperature=0.5, top_p=0.9,
        max_output_tokens=9, parallel_tool_calls=False, metadata={"a": "b"}, reasoning={"effort": "low"}, text=text,
        store=True, user="me",
    ).json()  # fmt: skip
    assert whole["store"] is False and whole["previous_response_id"] is None and whole["error"] is None
    expected = {
        "instructions": "Be brief.", "tool_choice": "required", "temperature": 0.5, "top_p": 0.9,
        "max_output_tokens": 9, "parallel_tool_calls": False, "metadata": {"a": "b"}, "text": text, "user": "me",
        "reasoning": {"effort": "low", "summary": None},
    }  # fmt: skip
    assert {key: whole[key] for key in expected} == expected
    assert [(tool["name"], tool["type"], tool["strict"]) for tool in whole["tools"]] == [
        ("look_up", "function", False), ("clock", "function", False)
    ]  # fmt: skip


def test_numbers_that_json_cannot_write_are_not_repeated(one):
    body = b'{"input": "answer:plain", "metadata": {"a": 1e999}, "tool_choice": {"type": "auto", "x": 1e999}}'
    response = one.http.post("/v1/responses", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 200 and response.json()["metadata"] == {}


def test_log_probabilities_lie_beside_their_text_if_asked_for(server):
    for more in ({"top_logprobs": 1}, {"include": ["message.output_text.logprobs"]}):
        (_, message, *_) = joined_response(response_events(server, "think_and_call", tools=FLAT_TOOLS, **more))[
            "output"
        ]
        logprobs = message["content"][0]["logprobs"]
        shown = b"".join(bytes(each["bytes"]) for each in logprobs).decode()
        assert shown.strip().startswith("Let me look.") and "tool_call" not in shown
        assert len(logprobs[0]["top_logprobs"]) == more.get("top_logprobs", 0)
    (message,) = respond(server, "plain").json()["output"]
    assert message["content"][0]["logprobs"] == []


# -- faults ------------------------------------------------------------------------------------------------------------


def test_a_fault_in_a_stream_fails_the_response(server):
    response = joined_response(response_events(server, "breaks"))
    assert response["status"] == "failed" and response["error"]["code"] == "server_error"
    assert [item["type"] for item in response["output"]] == ["reasoning"], "what had ended stays"
    assert eventually(server.idle)


def test_codes_tell_codex_whether_to_shorten_to_wait_or_to_try_again():
    from gradus.server.api.errors import Problem
    from gradus.server.api.responses.answer import error_of

    long = Problem(400, "invalid_request", "too long", "prompt", "at most 9 tokens", 10)
    assert error_of(long)["code"] == "context_length_exceeded"
    busy = error_of(Problem(503, "overloaded", "busy", retry_after=2))
    assert busy == {"code": "rate_limit_exceeded", "message": "busy; try again in 2s"}
    assert error_of(Problem(500, "internal_error", "x"))["code"] == "server_error"


def test_a_prompt_beyond_the_context_has_its_code(one):
    error = respond(one, input="x" * 2000).json()["error"]
    assert error["code"] == "context_length_exceeded" and "context 1000" in error["message"]


# -- the input ---------------------------------------------------------------------------------------------------------


def prompt_of(server, **body):
    response = respond(server, **body)
    assert response.status_code == 200, response.text
    return server.engine.prompts[-1]


def turns(prompt):
    """The turns of a prompt in ChatML: (role, text)."""
    return [tuple(turn.removesuffix("<|im_end|>\n").split("\n", 1)) for turn in prompt.split("<|im_start|>")[1:]]


def test_instructions_and_developers_are_the_system(one):
    items = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Two."}]},
        {"role": "user", "content": "Ask."},
    ]
    prompt = prompt_of(one, instructions="One.", input=items)
    assert turns(prompt) == [("system", "One.\n\nTwo."), ("user", "Ask."), ("assistant", "")]
    assert turns(prompt_of(one, input="Ask."))[:-1] == [("user", "Ask.")]


@pytest.mark.parametrize("empty", ["", [], None])
def test_an_empty_input_is_a_probe_and_is_answered(one, empty):
    assert turns(prompt_of(one, input=empty))[:-1] == [("user", "")]


REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None}
HISTORY = [
    {"role": "user", "content": [{"type": "input_text", "text": "Ask."}]},
    {**REASONING, "content": [{"type": "reasoning_text", "text": "Hm."}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Look.", "annotations": []}]},
    {
        "type": "function_call",
        "call_id": "c1",
        "name": "look_up",
        "arguments": '{"place": "Ulm"}',
        "status": "completed",
    },
    {"type": "function_call", "call_id": "c2", "name": "clock", "arguments": "{broken"},
    {"type": "function_call_output", "call_id": "c1", "output": "On the Danube."},
    {
        "type": "function_call_output",
        "call_id": "c2",
        "output": [{"type": "input_text", "text": "Noon."}, {"type": "x"}],
    },
    {"type": "some_future_item", "payload": 1},
    {**REASONING, "summary": [{"type": "summary_text", "text": "Sum."}]},
    {"type": "function_call", "call_id": "c3", "name": "clock", "arguments": ""},
    {"type": "function_call_output", "call_id": "c3", "output": {"at": 12}},
]


def test_items_of_one_answer_are_one_message_with_its_reasoning_and_calls():
    from gradus.server.api.responses.history import messages_of

    messages, skipped = messages_of(None, HISTORY)
    assert skipped == ["some_future_item"]
    shapes = [(each["role"], each["content"], len(each.get("tool_calls", ()))) for each in messages]
    assert shapes == [
        ("user", "Ask.", 0), ("assistant", "Look.", 2), ("tool", "On the Danube.", 0),
        ("tool", "Noon.\n[x left out: this model reads text only]", 0), ("assistant", "", 1), ("tool", '{"at": 12}', 0),
    ]  # fmt: skip
    assert messages[1]["reasoning"] == "Hm." and messages[4]["reasoning"] == "Sum."
    assert [call["function"]["name"] for call in messages[1]["tool_calls"]] == ["look_up", "clock"]


def test_a_history_with_broken_arguments_and_unknown_items_is_answered(one):
    response = respond(one, input=HISTORY, tools=FLAT_TOOLS)
    assert response.status_code == 200
    assert response.headers[IGNORED] == "input.some_future_item"
    prompt = one.engine.prompts[-1]
    assert all(text in prompt for text in ("Look.", "On the Danube.", "Noon.", "{broken", '"at": 12'))


def test_what_a_response_said_can_be_sent_back_as_it_is(one):
    """As agents do: the output's items, then the results."""
    first = respond(one, "think_and_call", tools=FLAT_TOOLS).json()["output"]
    results = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": f"result of {item['name']}"}
        for item in first
        if item["type"] == "function_call"
    ]
    items = [{"role": "user", "content": asked("plain")}, *first, *results]
    prompt = prompt_of(one, input=items, tools=FLAT_TOOLS)
    assert "Let me look." in prompt and "result of look_up" in prompt and "result of clock" in prompt


# -- tools -------------------------------------------------------------------------------------------------------------

SPACE = {
    "type": "namespace",
    "name": "mcp__maps",
    "description": "Maps.",
    "tools": [
        {"type": "function", "name": "look_up", "parameters": {"type": "object"}},
        {"type": "custom", "name": "x"},
    ],
}


def test_a_function_in_a_namespace_is_called_by_both_of_its_names():
    """Codex looks a function up by namespace and name; a joined name is an unsupported call."""
    call = '<tool_call>\n{"name": "mcp__maps__look_up", "arguments": {}}\n</tool_call>'
    with running(lambda: Answering()) as server:
        ANSWERS["in_space"] = call
        try:
            found = response_events(server, "in_space", tools=[*FLAT_TOOLS, SPACE, {"type": "web_search"}])
        finally:
            del ANSWERS["in_space"]
        response = joined_response(found)
        (item,) = response["output"]
        assert (item["namespace"], item["name"]) == ("mcp__maps", "look_up")
        added = next(each for each in found if each["type"] == "response.output_item.added")
        assert added["item"]["namespace"] == "mcp__maps"
        assert [tool["type"] for tool in response["tools"]] == ["function", "function", "namespace"]
        assert "mcp__maps__look_up" in server.engine.prompts[-1]
        back = [item, {"type": "function_call_output", "call_id": item["call_id"], "output": "found"}]
        prompt_of(server, input=[{"role": "user", "content": "x"}, *back], tools=[SPACE])
        assert server.engine.prompts[-1].count("mcp__maps__look_up") == 2, "declared, and called"
        respond(
            server,
            tools=[*FLAT_TOOLS, SPACE],
            tool_choice={"type": "function", "namespace": "mcp__maps", "name": "look_up"},
        )
        assert "mcp__maps__look_up" in server.engine.requests[-1].params.structured.grammar


def test_tools_of_unknown_types_are_left_out_and_named(one):
    response = respond(one, tools=[{"type": "web_search"}, *FLAT_TOOLS, {"type": "image_generation"}])
    assert response.status_code == 200 and len(response.json()["tools"]) == 2
    assert response.headers[IGNORED] == "tools.web_search, tools.image_generation"


def grammar_of(server, **body):
    response = respond(server, tools=FLAT_TOOLS, **body)
    assert response.status_code == 200, response.text
    structured = server.engine.requests[-1].params.structured
    return None if structured is None or structured.lazy is not None else structured.grammar


def test_the_choice_among_tools_is_kept_by_a_grammar(one):
    assert grammar_of(one) is None
    assert "look_up" in grammar_of(one, tool_choice="required")
    clock = {"type": "function", "name": "clock"}
    for choice in (clock, {"type": "allowed_tools", "mode": "required", "tools": [clock]}):
        assert "look_up" not in grammar_of(one, tool_choice=choice)
    assert grammar_of(one, tool_choice="none") is None


def test_text_has_the_form_that_was_asked_for(one):
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    form = {"format": {"type": "json_schema", "name": "x", "strict": True, "schema": schema}}
    assert '"city"' in grammar_of(one, text=form) and "call_0" in grammar_of(one, text=form)
    assert '%json {"type":"object"}' in grammar_of(one, text={"format": {"type": "json_object"}})
    assert grammar_of(one, text={"format": {"type": "text"}, "verbosity": "low"}) is None


@pytest.mark.parametrize(("effort", "switched_off"), [("none", True), ("high", False), (None, False)])
def test_effort_switches_reasoning(one, effort, switched_off):
    assert ("<think>\n\n</think>" in prompt_of(one, reasoning={"effort": effort, "summary": "auto"})) == switched_off


# -- what is refused or ignored ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id is not supported: this server stores no responses"),
        ({"conversation": "conv_1"}, "conversation is not supported"),
        ({"background": True}, "background is not supported"),
        ({"prompt": {"id": "p"}}, "prompt is not supported"),
        ({"n": 2}, "n is not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format is not supported: use text.format"),
        ({"input": 5}, "input must be a text, or a list of items"),
        ({"input": [5]}, "input[0] must be an object"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role must be one of"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
         'input[0].content[0].type must be "text": this model reads nothing else, got \'input_image\''),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type must be"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema must be"),
        ({"text": {"format": "json"}}, "text.format.type must be"),
        ({"reasoning": {"effort": "huge"}}, "reasoning_effort must be one of"),
        ({"max_output_tokens": 0}, "max_tokens must be"),
        ({"tools": [7]}, "tools[0] must be an object"),
        ({"instructions": 5}, "instructions must be a text"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_cannot_be_done_is_refused_by_name(one, body, words):
    response = respond(one, **body)
    assert response.status_code == 400, response.text
    message = response.json()["error"]["message"]
    assert words in message and "\n" not in message


def test_what_changes_no_answer_is_accepted(one):
    harmless = {
        "store": True, "background": False, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k",
        "client_metadata": {}, "truncation": "auto", "max_tool_calls": 3, "service_tier": "auto", "metadata": None,
        "stream_options": {"include_obfuscation": False}, "previous_response_id": None, "conversation": None,
    }  # fmt: skip
    response = respond(one, **harmless)
    assert response.status_code == 200 and IGNORED not in response.headers


FIELDS = [
    "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "max_output_tokens", "text", "reasoning",
    "temperature", "top_p", "top_logprobs", "include", "store", "metadata", "user", "stream", "chat_template_kwargs",
    "n", "truncation", "background", "previous_response_id", "prompt", "stream_options", "service_tier", "model",
    "stop",
]  # fmt: skip


@pytest.mark.parametrize("value", ODD.values(), ids=ODD)
def test_no_value_of_any_field_is_a_fault_of_ours(one, value):
    """Each field of an item once: test_histories.py has every value in all of them, without a server."""
    bodies = [{"input": "x", "tools": FLAT_TOOLS, field: value} for field in FIELDS]
    kinds = ("message", "reasoning", "function_call", "function_call_output", "item_reference", value)
    names = ("role", "content", "summary", "name", "namespace", "arguments", "call_id", "output", "id", "status")
    bodies += [
        {"input": [{"type": kind, "role": "user", "content": "x", name: value}]}
        for kind, name in zip(cycle(kinds), names, strict=False)
    ]
    bodies += [
        {"input": "x", "tools": [{"type": "namespace", "name": value, "tools": [value]}, {"type": value, "name": "x"}]},
        {
            "input": "x",
            "tools": [{"type": "namespace", "name": "n", "tools": [value, {"type": "function", "name": value}]}],
        },
        {"input": "x", "text": {"format": {"type": "json_schema", "name": value, "strict": value, "schema": value}}},
        {"input": "x", "text": {"format": value}},
        {"input": "x", "tools": FLAT_TOOLS, "tool_choice": {"type": "function", "name": value, "namespace": value}},
        {"input": "x", "tools": FLAT_TOOLS, "tool_choice": {"type": "allowed_tools", "mode": value, "tools": [value]}},
    ]
    for body in bodies:
        send_odd(one, "/v1/responses", body)
    assert eventually(one.idle)
