"""/v1/messages over a socket: blocks of every kind, streamed as they are whole, and what real clients send."""

import json
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.errors import RequestError
from gradus.server.api.anthropic.answer import Blocks, _frame
from gradus.server.api.anthropic.conversation import read_conversation
from gradus.server.api.anthropic.partial_json import whole_members
from gradus.server.api.frames import event as written
from gradus.text.tools.events import Reasoning, Text, ToolArguments
from tests.server.conftest import eventually, running
from tests.server.saying import CALL, THOUGHT, SayingCore, keeps_to_a_form
from tests.text.templates import LLAMA
from tests.text.tools.builders import tokenizer

TOOL = {
    "name": "look_up",
    "description": "Looks up the weather.",
    "input_schema": {
        "type": "object",
        "properties": {"place": {"type": "string"}, "days": {"type": "array", "items": {"type": "integer"}}},
        "required": ["place"],
    },
}
CALLED = {"type": "tool_use", "id": "toolu_01", "name": "look_up", "input": {}}
INPUT = {"place": "Ulm", "days": [1, 2]}
USER = {"role": "user", "content": "What is the weather in Ulm?"}


def say(prompt):
    """Answer the last user's words with what they ask for."""
    last = prompt.rpartition("<|im_start|>user\n")[2]
    if "everything" in last:
        return f"{THOUGHT}I look. \u2028 Ö\n{CALL}\n{CALL.replace('Ulm', 'Bonn')}"
    if "weather" in last:
        return CALL
    return "Hello."


@pytest.fixture(scope="module")
def server():
    with running(partial(SayingCore, say, cached=7)) as started:
        yield started


@pytest.fixture(autouse=True)
def nothing_is_left_behind(server):
    server.engine.prompts.clear()
    server.engine.requests.clear()
    yield
    assert eventually(server.idle)


def post(server, path="/v1/messages", headers=None, **body):
    body = {"model": "claude", "max_tokens": 1000, "messages": [USER], **body}
    return server.http.post(path, json={key: value for key, value in body.items() if value is not ...}, headers=headers)


def ok(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()


def refusal(answer, status=400, kind="invalid_request_error"):
    """The message of an error of Anthropic's shape."""
    assert answer.status_code == status, answer.text
    content = answer.json()
    assert content["type"] == "error" and content["error"]["type"] == kind
    return content["error"]["message"]


def prompt(server, **body):
    """What the model reads of a body."""
    ok(post(server, **body))
    return server.engine.prompts[-1]


def frames(answer):
    """The events of a stream, each of whose names is its data's type."""
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in answer.text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def put_together(events):
    """The message that a client makes of a stream: starts, deltas and stops in their order, or it fails."""
    assert [event["type"] for event in events[:2]] == ["message_start", "ping"]
    message, arguments, opened = events[0]["message"], {}, None
    assert message["content"] == [] and message["stop_reason"] is None
    for event in events[2:-2]:
        if event["type"] == "content_block_start":
            assert opened is None and event["index"] == len(message["content"])
            opened = event["index"]
            message["content"].append(event["content_block"])
        else:
            assert event["index"] == opened
            block = message["content"][opened]
            match event:
                case {"type": "content_block_stop"}:
                    opened = None
                case {"delta": {"type": "input_json_delta", "partial_json": text}}:
                    arguments[event["index"]] = arguments.get(event["index"], "") + text
                case {"delta": {"type": "text_delta", "text": text}}:
                    block["text"] += text
                case {"delta": {"type": "thinking_delta", "thinking": text}}:
                    block["thinking"] += text
    assert opened is None
    for index, text in arguments.items():
        message["content"][index]["input"] = json.loads(text)
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    message |= events[-2]["delta"]
    message["usage"] |= events[-2]["usage"]
    return message


# -- answers -----------------------------------------------------------------------------------------------------------


def test_a_message_has_all_that_clients_read(server):
    message = ok(post(server, messages=[{"role": "user", "content": "Hi"}]))
    assert message.pop("id").startswith("msg_")
    total = len(server.engine.requests[0].prompt)
    assert message == {
        "type": "message",
        "role": "assistant",
        "model": "saying",
        "content": [{"type": "text", "text": "Hello."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": total - 7,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 7,
            "output_tokens": 7,
            "output_tokens_details": {"thinking_tokens": 0},
        },
    }


def test_an_answer_may_have_thoughts_text_and_calls_in_this_order(server):
    body = {"messages": [{"role": "user", "content": "everything"}], "tools": [TOOL], "thinking": {"type": "adaptive"}}
    message = ok(post(server, **body))
    thought, text, first, second = message["content"]
    assert thought == {"type": "thinking", "thinking": "Where is Ulm?", "signature": ""}
    assert text == {"type": "text", "text": "I look. \u2028 Ö"}
    assert first.pop("id") != second.pop("id")
    assert first == {"type": "tool_use", "name": "look_up", "input": INPUT}
    assert second == first | {"input": INPUT | {"place": "Bonn"}}
    assert message["stop_reason"] == "tool_use"
    thought = len("<think>") + len("\nWhere is Ulm?\n")  # the markers are tokens
    assert 0 < message["usage"]["output_tokens_details"]["thinking_tokens"] <= thought


@pytest.mark.parametrize("size", [1, 3, 17, 1000])
@pytest.mark.parametrize("asked", ["Hi", "everything", "weather"])
def test_a_stream_put_together_is_the_whole_message(serving, asked, size):
    server = serving(partial(SayingCore, say, size=size))
    body = {"messages": [{"role": "user", "content": asked}], "tools": [TOOL], "thinking": {"type": "adaptive"}}
    whole, streamed = ok(post(server, **body)), put_together(frames(post(server, stream=True, **body)))
    for message in (whole, streamed):
        message.pop("id")
        for block in message["content"]:
            block.pop("id", None)
    assert streamed == whole


@given(st.sampled_from(["text", "thinking", "call"]), st.text())
def test_deltas_are_written_as_all_other_events(kind, text):
    made = {"text": Text(text), "thinking": Reasoning(text), "call": ToolArguments(0, text)}[kind]
    frame = list(Blocks().add(made))[-1]
    assert _frame(frame) == written(frame, "content_block_delta")


def test_a_stream_begins_with_the_prompts_size_and_ends_with_the_whole_usage(server):
    events = frames(post(server, stream=True))
    total = len(server.engine.requests[0].prompt)
    start, end = events[0]["message"]["usage"], events[-2]["usage"]
    assert start == {
        "input_tokens": total, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 0,
    }  # fmt: skip
    assert end["input_tokens"] == total - 7 and end["cache_read_input_tokens"] == 7 and end["output_tokens"] > 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_sequence_is_named_and_not_part_of_the_text(server, stream):
    answer = post(server, messages=[{"role": "user", "content": "Hi"}], stop_sequences=["x", "lo"], stream=stream)
    message = put_together(frames(answer)) if stream else ok(answer)
    assert message["content"] == [{"type": "text", "text": "Hel"}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "lo")


def test_an_answer_that_is_cut_says_so_and_keeps_the_whole_members_of_a_call(server):
    ends = {text: CALL.index(text) for text in ('"days"', "2]", "}}")}
    for text, members in (('"days"', {"place": "Ulm"}), ("2]", {"place": "Ulm", "days": [1]}), ("}}", INPUT)):
        # <tool_call> is one token, every other character is one
        most = ends[text] - len("<tool_call>") + 1
        message = ok(post(server, tools=[TOOL], max_tokens=most))
        assert message["stop_reason"] == "max_tokens"
        assert [block["input"] for block in message["content"]] == [members]


def test_an_answer_that_ends_with_the_context_says_so(serving):
    server = serving(partial(SayingCore, say="a" * 200, context_length=100))
    assert ok(post(server))["stop_reason"] == "model_context_window_exceeded"
    assert put_together(frames(post(server, stream=True)))["stop_reason"] == "model_context_window_exceeded"
    assert ok(post(server, max_tokens=5))["stop_reason"] == "max_tokens"


def test_max_tokens_is_cut_to_what_the_context_has_room_for(server):
    ok(post(server, max_tokens=32_000))
    (request,) = server.engine.requests
    assert request.max_tokens == 4096 - len(request.prompt)


# -- what goes in ------------------------------------------------------------------------------------------------------


def test_calls_and_results_go_back_to_the_model(server):
    turn = [
        USER,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Where is Ulm?", "signature": ""},
                {"type": "redacted_thinking", "data": "xyz"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "toolu_01", "name": "look_up", "input": INPUT},
                {"type": "tool_use", "id": "toolu_02", "name": "look_up", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_01", "content": "sunny", "is_error": False},
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_02",
                    "is_error": True,
                    "content": [{"type": "text", "text": "no such"}, {"type": "text", "text": "place"}],
                },
                {"type": "text", "text": "Go on.", "cache_control": {"type": "ephemeral"}},
            ],
        },
    ]
    text = prompt(server, messages=turn, tools=[TOOL])
    said = text.partition("<|im_start|>assistant\n")[2]
    assert said.startswith("I look.<tool_call>") and '"arguments": {"place": "Ulm", "days": [1, 2]}' in said
    assert "<|im_start|>tool\nsunny<|im_end|>" in said
    assert "<|im_start|>tool\nError: no such\nplace<|im_end|>\n<|im_start|>user\nGo on.<|im_end|>" in said


def test_an_answer_that_the_client_begins_is_continued(server):
    begun = {"role": "assistant", "content": "It is"}
    assert prompt(server, messages=[USER, begun]).endswith("<|im_start|>assistant\nIt is")
    late = {"role": "system", "content": "The time is noon."}
    assert "It is<|im_end|>" in prompt(server, messages=[USER, begun, late])


def test_a_model_that_was_not_taught_to_call_answers_without_tools(serving):
    server = serving(partial(SayingCore, family="grammar"))
    answer = post(server, tools=[TOOL])
    assert ok(answer)["content"] == [{"type": "text", "text": "Hello."}]
    assert answer.headers["x-gradus-ignored"] == "tools" and "look_up" not in server.engine.prompts[-1]


def conversation(*messages, system=None):
    return read_conversation(system, list(messages))


def test_thoughts_are_the_reasoning_of_a_message_and_sealed_ones_are_left_out():
    blocks = [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "redacted_thinking", "data": "…"}]
    found = conversation(USER, {"role": "assistant", "content": blocks}, USER)
    assert found[1] == {"role": "assistant", "content": "", "reasoning": "Hm."}


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        [],
        [{"type": "tool_reference", "tool_name": "x"}],
        [{"type": "of_tomorrow", "text": 5}],
    ],
)
def test_a_result_without_text_is_empty(content):
    result = {"type": "tool_result", "tool_use_id": "toolu_01", "content": content}
    assert conversation({"role": "user", "content": [result]})[0]["content"] == ""


def test_blocks_that_say_nothing_are_left_out_and_so_are_messages_of_nothing_else():
    nothing = {"role": "user", "content": [{"type": "of_tomorrow"}, {"type": "text", "text": ""}]}
    sealed = {"role": "assistant", "content": [{"type": "server_tool_use", "id": "x", "name": "web_search"}]}
    added = {"role": "system", "content": [{"type": "tool_addition", "tools": []}]}
    assert conversation(nothing, sealed, added, USER) == [USER]


def test_pictures_leave_a_note_and_texts_are_read_wherever_they_are():
    found = conversation(
        {
            "role": "user",
            "content": [
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
                {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "A page."}},
                {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "Found."}]},
                {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}},
            ],
        }
    )
    assert found[0]["content"] == (
        "[image left out: this model reads text only]\nA page.\nFound.\n[document left out: this model reads text only]"
    )


@pytest.mark.parametrize("as_text", [False, True])
def test_the_billing_header_is_no_part_of_the_system_text(as_text):
    header = "x-anthropic-billing-header: cc_version=2.1.331.a1b; cc_entrypoint=cli;"
    blocks = [{"type": "text", "text": text} for text in (header, "Be kind.", "Be short.")]
    system = f"{header}\nBe kind.\nBe short." if as_text else blocks
    assert conversation(USER, system=system)[0] == {"role": "system", "content": "Be kind.\nBe short."}
    assert conversation(USER, system=header) == [USER]


def test_system_messages_may_come_late(server):
    late = {"role": "system", "content": [{"type": "text", "text": "The time is noon."}]}
    found = conversation(USER, late, system="Be kind.")
    assert [message["role"] for message in found] == ["system", "user", "system"]
    text = prompt(server, messages=[USER, late], system="Be kind.")
    assert text.index("Be kind.") < text.index("weather") < text.index("The time is noon.")


@pytest.mark.parametrize(
    ("thinking", "thinks"),
    [
        (..., False),
        (None, False),
        ({"type": "disabled"}, False),
        ({"type": "enabled", "budget_tokens": 2000}, True),
        ({"type": "adaptive", "display": "omitted"}, True),
        ({"type": "between_tools"}, False),
        ({"type": "of_tomorrow"}, True),
    ],
)
def test_the_model_thinks_if_the_client_asks_for_it(server, thinking, thinks):
    assert prompt(server, thinking=thinking).endswith("assistant\n" if thinks else "<think>\n\n</think>\n\n")


def test_the_model_can_be_asked_to_think_between_calls_only(server):
    result = {"type": "tool_result", "tool_use_id": "toolu_01", "content": "sunny"}
    turn = [USER, {"role": "assistant", "content": [CALLED]}, {"role": "user", "content": [result]}]
    assert prompt(server, messages=turn, thinking={"type": "between_tools"}).endswith("<|im_start|>assistant\n")


def test_two_calls_at_once_reach_a_template_that_takes_one(serving):
    server = serving(partial(SayingCore, template=LLAMA))
    second = {**CALLED, "id": "toolu_02", "input": {"place": "Bonn"}}
    results = [
        {"type": "tool_result", "tool_use_id": each["id"], "content": f"in {each['id']}"} for each in (second, CALLED)
    ]
    turn = [USER, {"role": "assistant", "content": [CALLED, second]}, {"role": "user", "content": results}]
    for tools in ([], [TOOL]):
        text = prompt(server, messages=turn, tools=tools)
        places = [text.index(part) for part in (USER["content"], "in toolu_01", "Bonn", "in toolu_02")]
        assert places == sorted(places)


def test_the_template_learns_of_the_effort_and_an_unknown_one_is_no_error(serving):
    server = serving(partial(SayingCore, template="{{ messages[0].content }} {{ reasoning_effort }}"))
    assert prompt(server, output_config={"effort": "xhigh"}).endswith("Ulm? xhigh")
    assert prompt(server, output_config={"effort": "of_tomorrow"}).endswith("Ulm? ")


@pytest.mark.parametrize("field", ["output_config", "output_format"])
def test_a_format_constrains_the_answer(serving, field):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    given = {"type": "json_schema", "schema": schema}
    server = serving(partial(SayingCore, THOUGHT + '{"a": 1}'))
    format = {field: {"format": given} if field == "output_config" else given}
    message = ok(post(server, thinking={"type": "adaptive"}, **format))
    assert server.engine.requests[-1].params.structured is not None
    assert [block["type"] for block in message["content"]] == ["thinking", "text"]
    assert message["content"][1]["text"] == '{"a": 1}'


def test_sampling_fields_are_the_engines(server):
    ok(post(server, temperature=0.3, top_p=0.9, top_k=5))
    params = server.engine.requests[-1].params
    assert (params.temperature, params.top_p, params.top_k) == (0.3, 0.9, 5)
    ok(post(server))
    assert server.engine.requests[-1].params.temperature == 1.0  # the API's default


@pytest.mark.parametrize(
    ("choice", "constrained", "shown"),
    [
        (..., False, True),
        ({"type": "auto"}, False, True),
        ({"type": "any"}, True, True),
        ({"type": "tool", "name": "look_up"}, True, True),
        ({"type": "none"}, False, False),
    ],
)
def test_the_choice_of_tools_constrains_the_answer(server, choice, constrained, shown):
    message = ok(post(server, tools=[TOOL], tool_choice=choice))
    assert keeps_to_a_form(server.engine.requests[-1]) == constrained
    assert ("Looks up the weather." in server.engine.prompts[-1]) == shown
    assert (message["content"][0]["type"] == "tool_use") == shown


@pytest.mark.parametrize("single", [False, True])
def test_parallel_calls_can_be_disabled(server, single):
    choice = {"type": "auto", "disable_parallel_tool_use": single}
    message = ok(post(server, tools=[TOOL], tool_choice=choice, messages=[{"role": "user", "content": "everything"}]))
    assert [block["type"] for block in message["content"]].count("tool_use") == (1 if single else 2)


def test_tools_of_anthropics_servers_are_skipped(server):
    text = prompt(server, tools=[{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}, TOOL])
    assert "look_up" in text and "web_search" not in text


# -- real clients ------------------------------------------------------------------------------------------------------


def claude_code(*messages):
    """A request with the fields that Claude Code 2.1 sends."""
    return {
        "model": "claude-opus-5",
        "max_tokens": 32_000,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "<system-reminder>\nToday.\n</system-reminder>\n"}]},
            {"role": "system", "content": "Answer in English."},
            *messages,
        ],
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.331.1a2; cc_entrypoint=sdk-cli;"},
            {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "\nUse your tools.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
        ],
        "tools": [TOOL, {**TOOL, "name": "later", "defer_loading": True}],
        "metadata": {"user_id": '{"device_id":"1"}'},
        "thinking": {"type": "adaptive", "display": "omitted"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "stream": True,
    }


HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
    "x-api-key": "none",
}


def test_a_session_of_claude_code_calls_a_tool_and_ends(server):
    asked = {"role": "user", "content": [{"type": "text", "text": "everything", "cache_control": {}}]}
    answer = post(server, "/v1/messages?beta=true", HEADERS, **claude_code(asked))
    assert "x-gradus-ignored" not in answer.headers
    message = put_together(frames(answer))
    calls = [block for block in message["content"] if block["type"] == "tool_use"]
    assert len(calls) == 2 and message["stop_reason"] == "tool_use"
    results = [
        {"tool_use_id": call["id"], "type": "tool_result", "content": "sunny", "is_error": False} for call in calls
    ]
    turn = [asked, {"role": "assistant", "content": message["content"]}, {"role": "user", "content": results}]
    message = put_together(frames(post(server, "/v1/messages?beta=true", HEADERS, **claude_code(*turn))))
    assert message["stop_reason"] in ("tool_use", "end_turn")
    assert "billing" not in server.engine.prompts[-1]
    before, after = (request.prompt for request in server.engine.requests[-2:])
    assert after[: len(before)] == before  # so that only the new turn is computed


def test_the_fields_of_the_whole_request_that_follows_a_broken_stream_are_the_same(server):
    body = claude_code({"role": "user", "content": "Hi"}) | {"stream": False}
    assert ok(post(server, "/v1/messages?beta=true", HEADERS, **body))["content"] == [
        {"type": "text", "text": "Hello."}
    ]


@pytest.mark.parametrize("extra", [{}, {"tools": [TOOL]}, {"system": "Be kind.", "thinking": {"type": "enabled"}}])
def test_counted_tokens_are_those_of_the_prompt(server, extra):
    body = {"messages": [USER], **extra}
    counted = ok(server.http.post("/v1/messages/count_tokens?beta=true", json={"model": "m", **body}))
    assert not server.engine.requests
    ok(post(server, **body))
    assert counted == {"input_tokens": len(server.engine.requests[0].prompt)}


def test_a_prompt_longer_than_the_context_can_be_counted(server):
    body = {"messages": [{"role": "user", "content": "a" * 10_000}]}
    assert ok(server.http.post("/v1/messages/count_tokens", json=body))["input_tokens"] > 10_000


# -- errors ------------------------------------------------------------------------------------------------------------


def test_a_prompt_that_is_too_long_is_refused_in_words_that_clients_read(server):
    message = refusal(post(server, messages=[{"role": "user", "content": "a" * 5000}]))
    body = {"messages": [{"role": "user", "content": "a" * 5000}]}
    total = ok(server.http.post("/v1/messages/count_tokens", json=body))["input_tokens"]
    assert message == f"prompt is too long: {total} tokens > 4095 maximum"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": ...}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": ...}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": [5]}, "messages[0]"),
        ({"messages": [{"role": "robot", "content": "Hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [5]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[0].content[0].tool_use_id"),
        ({"messages": [USER, {"role": "assistant", "content": [{"type": "tool_use"}]}]}, "messages[1].content[0].name"),
        ({"messages": [USER, {"role": "assistant", "content": [CALLED]}]}, "no result follows"),
        ({"messages": [{"role": "user", "content": []}]}, "no message has any content"),
        ({"system": 5}, "system"),
        ({"tools": [{"name": "f"}]}, "tools[0]"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice"),
        ({"thinking": {"type": True}}, "thinking.type"),
        ({"output_config": {"format": {"type": "regex"}}}, "output_config.format"),
        ({"stream": "yes"}, "stream"),
        ({"temperature": "hot"}, "temperature"),
        ({"stop_sequences": [""]}, "stop"),
    ],
)
def test_a_refusal_names_the_field(server, fields, named):
    assert named in refusal(post(server, **fields))
    assert not server.engine.requests


def test_a_field_that_has_no_effect_is_named_or_refused_where_the_server_is_strict(server, serving):
    assert post(server, mcp_servers=[]).headers["x-gradus-ignored"] == "mcp_servers"
    strict = serving(SayingCore, strict_fields=True)
    assert "mcp_servers" in refusal(post(strict, mcp_servers=[]))
    assert post(strict, **claude_code(USER)).status_code == 200


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize("body", [b"{", b"[]", b"5", b'{"messages": [{"role": "user", "content": [[]]}]}'])
def test_malformed_bodies_are_refused_in_anthropics_shape(server, path, body):
    refusal(server.http.post(path, content=body, headers={"content-type": "application/json"}))


def test_an_unknown_path_below_is_refused_in_anthropics_shape(server):
    refusal(server.http.post("/v1/messages/batches", json={}), 404, "not_found_error")


def test_an_overloaded_server_says_when_to_come_back(serving):
    server = serving(partial(SayingCore, slots=1, step_s=0.05, say="a" * 200), max_waiting=1)
    body = {"messages": [USER], "max_tokens": 100, "stream": True}
    with server.http.stream("POST", "/v1/messages", json=body):
        assert eventually(lambda: server.engine.running)
        with server.http.stream("POST", "/v1/messages", json=body):
            answer = post(server)
            assert "queue is full" in refusal(answer, 503, "overloaded_error")
            assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_sample_that_fails_is_an_error(serving, stream):
    server = serving(partial(SayingCore, poison=ord("Q")))
    answer = post(server, messages=[{"role": "user", "content": "Q"}], stream=stream)
    if stream:
        *before, last = frames(answer)
        assert [event["type"] for event in before] == ["message_start", "ping"]
        assert last["type"] == "error" and last["error"]["type"] == "api_error" and "secret" not in str(last)
    else:
        refusal(answer, 500, "api_error")


def test_a_stream_that_breaks_ends_with_an_error_and_nothing_behind_it(serving):
    server = serving(partial(SayingCore, say="a" * 100, step_s=0.02, faults={5: RuntimeError("secret")}))
    *before, last = frames(post(server, stream=True))
    assert before[-1]["type"] == "content_block_delta"
    assert last["type"] == "error" and last["error"]["type"] == "overloaded_error" and "secret" not in str(last)


def test_a_model_without_a_chat_template_says_so(serving):
    core = SayingCore()
    core.tokenizer = tokenizer(None)
    assert "no chat template" in refusal(post(serving(lambda: core)))


# -- pieces ------------------------------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(max_size=5), VALUES, max_size=5)


def begins(part, whole):
    """Whether a value is the beginning of another one: every scalar in it is whole."""
    if isinstance(part, dict) and isinstance(whole, dict):
        names = list(part)
        return names == list(whole)[: len(names)] and all(begins(part[name], whole[name]) for name in names)
    if isinstance(part, list) and isinstance(whole, list):
        return len(part) <= len(whole) and all(map(begins, part, whole))
    return type(part) is type(whole) and part == whole


@given(OBJECTS, st.data(), st.sampled_from([None, 1]), st.booleans())
def test_a_cut_object_keeps_its_whole_members(value, cuts, indent, ascii_only):
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    cut = cuts.draw(st.integers(0, len(text)))
    assert begins(whole_members(text[:cut]), value)
    assert whole_members(text) == value


@pytest.mark.parametrize(
    ("text", "members"),
    [
        ("", {}),
        ("{", {}),
        ('{"a": 12', {}),
        ('{"a": 12,', {"a": 12}),
        ('{"a": "12"', {"a": "12"}),
        ('{"a": "[{,', {}),
        ('{"a": "x\\"', {}),
        ('{"a": [1, {"b": [', {"a": [1, {"b": []}]}),
        ('{"a": 1e999, "b": ' + "9" * 5000 + "}", {"a": "1e999", "b": "9" * 5000}),
        (r'{"a": "\ud800"}', {"a": "?"}),
    ],
)
def test_numbers_strings_and_brackets_that_are_cut(text, members):
    assert whole_members(text) == members
    json.dumps(members).encode()


@pytest.mark.parametrize("text", ['{"a":' + "[" * 5000, '{"a":' + "[" * 5000 + "]" * 5000 + "}", '{"a":' * 5000 + "1"])
def test_arguments_nested_deeper_than_python_parses_have_no_members(text):
    assert whole_members(text) == {}


@given(st.recursive(st.text() | st.none() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(
    st.sampled_from(["type", "text", "role", "content", "tool_use_id", "input", "id", "name", "source", "data"]),
    inner | st.sampled_from(["text", "tool_use", "tool_result", "thinking", "user", "system", "assistant", "image"]),
), max_leaves=20))  # fmt: skip
def test_no_conversation_raises_anything_but_a_refusal(value):
    for system, messages in ((value, [USER]), (None, [value]), (None, [{"role": "user", "content": value}])):
        try:
            found = read_conversation(system, messages)
        except RequestError:
            continue
        assert all(isinstance(message["content"], str) for message in found)
