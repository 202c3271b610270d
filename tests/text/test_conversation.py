"""Every conversation that clients send reaches every template, whatever it takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.engine.request import ModelLimits
from gradus.errors import RequestError
from gradus.text.arrangement import Takes, arranged, takes
from gradus.text.conversation import read
from gradus.text.front_end import FrontEnd
from gradus.text.tools.dialect import Dialect
from tests.text.templates import FIRST_ONLY, GEMMA, GEMMA_2, HARMONY, LLAMA, MISTRAL, QUERY, SILENT
from tests.text.tools.builders import CHATML, PLAIN, TOOLS, tokenizer

TEMPLATES = {
    "chatml": (CHATML, Takes()),
    "plain": (PLAIN, Takes(calls=False)),
    "gemma": (GEMMA, Takes(late_system=False, neighbors=False, no_user_first=False)),
    "gemma-2": (GEMMA_2, Takes(system=False, late_system=False, neighbors=False, no_user_first=False)),
    "mistral": (
        MISTRAL,
        Takes(
            late_system=False,
            neighbors=False,
            user_after_results=False,
            late_results=False,
            stray_results=False,
            unanswered_calls=False,
            no_user_first=False,
        ),
    ),
    "llama": (LLAMA, Takes(parallel_calls=False)),
    "harmony": (HARMONY, Takes(parallel_calls=False, late_results=False, stray_results=False)),
    "query": (QUERY, Takes(late_system=False, no_user_first=False)),
    "first-only": (FIRST_ONLY, Takes(late_system=False, calls=False)),
    "silent": (SILENT, Takes(late_system=False, calls=False)),
}


FRONT_ENDS = {
    name: FrontEnd(tokenizer(template), ModelLimits(300, 4096), "model", lambda *_: ())
    for name, (template, _) in TEMPLATES.items()
}


def said(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name="f", **more):
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": "{}"}, **more}


@pytest.mark.parametrize(("template", "expected"), TEMPLATES.values(), ids=TEMPLATES)
def test_what_a_template_takes_is_found_by_trial(template, expected):
    assert takes(tokenizer(template).render_chat) == expected
    dialect = Dialect(tokenizer(template))
    assert dialect.takes is dialect.takes == expected, "once per model"


def test_what_a_template_takes_may_depend_on_tools():
    assert Dialect(tokenizer(LLAMA)).takes_with_tools == Takes(parallel_calls=False, no_user_first=False)
    for name in ("chatml", "mistral", "harmony", "query"):
        dialect = Dialect(tokenizer(TEMPLATES[name][0]))
        assert dialect.takes_with_tools == dialect.takes


CONVERSATIONS = {
    "developers before the user, as Codex": [
        said("developer", "Rule-one."), said("developer", "Rule-two."), said("user", "Ask.")],
    "a system message behind the user, as Claude Code": [
        said("system", "Rule-one."), said("user", "Ask."), said("system", "Rule-two.")],
    "a system message between turns": [
        said("user", "Ask."), said("assistant", "Say."), said("system", "Rule-one."), said("user", "Again.")],
    "two users and two answers in a row": [
        said("user", "Ask."), said("user", "Again."), said("assistant", "Say."), said("assistant", "More."),
        said("user", "Last.")],
    "calls and results, with nulls": [
        said("user", "Ask."), said("assistant", None, tool_calls=[call()], refusal=None, audio=None),
        said("tool", "Result.", tool_call_id="call_1"), said("assistant", "Say."), said("user", "Last.")],
    "a system message between a call and its result": [
        said("user", "Ask."), said("assistant", None, tool_calls=[call()]), said("system", "Rule-one."),
        said("tool", "Result.", tool_call_id="call_1"), said("user", "Last.")],
    "the older form of calls": [
        said("user", "Ask."), said("assistant", None, function_call={"name": "f", "arguments": "{"}),
        said("function", "Result.", name="f"), said("user", "Last.")],
    "two calls at once, answered in another order": [
        said("user", "Ask."), said("assistant", None, tool_calls=[call("f"), call("g", id="call_2")]),
        said("tool", "Result.", tool_call_id="call_2"), said("tool", "More.", tool_call_id="call_1"),
        said("user", "Last.")],
    "words of the user between calls and results": [
        said("user", "Ask."), said("assistant", None, tool_calls=[call("f"), call("g", id="call_2")]),
        said("user", "Again."), said("tool", "Result.", tool_call_id="call_1"), said("user", "Last."),
        said("tool", "More.", tool_call_id="call_2")],
    "a result after the answer": [
        said("user", "Ask."), said("assistant", None, tool_calls=[call()]), said("assistant", "Say."),
        said("tool", "Result.", tool_call_id="call_1")],
    "results of no call": [
        said("tool", "Result.", tool_call_id="call_9"), said("user", "Ask."), said("assistant", "Say."),
        said("tool", "More.", name="f"), said("user", "Last.")],
    "the assistant first": [said("assistant", "Say."), said("user", "Ask.")],
    "no user": [said("assistant", "Say.")],
    "only a system message": [said("system", "Rule-one.")],
    "empty contents": [
        said("user", ""), said("assistant", ""), said("user", "Ask."), said("assistant", None),
        said("user", []), said("assistant", [], tool_calls=[]), said("user", "Last.")],
    "one id for calls of several turns": [
        said("user", "Ask."), said("assistant", None, tool_calls=[call(), call("g")]),
        said("tool", "Result.", tool_call_id="call_1"), said("assistant", None, tool_calls=[call()]),
        said("tool", "More.", tool_call_id="call_1"), said("user", "Last.")],
    "contents in parts": [
        said("user", [{"type": "text", "text": "Ask."}, {"type": "input_text", "text": "Again."}]),
        said("assistant", [{"type": "output_text", "text": "Say."}, {"type": "refusal", "refusal": "Not."}]),
        said("user", "Last.")],
}  # fmt: skip


@pytest.mark.parametrize("messages", CONVERSATIONS.values(), ids=CONVERSATIONS)
@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("tools", [[], TOOLS], ids=["without tools", "with tools"])
def test_every_word_of_every_conversation_reaches_every_template_once(name, messages, tools):
    front_end = FRONT_ENDS[name]
    text = front_end.tokenizer.decode(front_end.chat_prompt(messages, tools=tools), skip_special=False)
    for word in ("Rule-one.", "Rule-two.", "Ask.", "Again.", "Say.", "Not.", "More.", "Last.", "Result."):
        assert text.count(word) == str(messages).count(word), word
    assert "developer" not in text and "function_call" not in text


ROLES = st.sampled_from(["user", "assistant", "system", "call", "calls", "stray"])


@given(st.lists(st.tuples(ROLES, st.sampled_from((0, 1, 2, 9))), min_size=1, max_size=7), st.booleans())
@pytest.mark.parametrize("name", TEMPLATES)
def test_any_order_of_turns_calls_and_results_reaches_every_template(name, turns, tools):
    """A number says how many turns later the results of a turn's calls arrive: with 9, never."""
    messages, due = [], []
    for place, (role, later) in enumerate(turns):
        if role in ("call", "calls"):
            ids = [f"{place}{letter}" for letter in ("a", "b")[: len(role) - 3]]
            calls = [call(f"name{each}", id=each) for each in ids]
            messages.append(said("assistant", None, tool_calls=calls))
            due += [(place + later, said("tool", f"Result-{each}.", tool_call_id=each)) for each in ids]
        elif role == "stray":
            messages.append(said("tool", f"Stray-{place}.", tool_call_id="none"))
        else:
            messages.append(said(role, f"Turn-{place}."))
        messages += [message for at, message in due if at == place]
        due = [(at, message) for at, message in due if at != place]
    messages += [message for at, message in due if at < 9] + [said("user", "Last.")]
    text = FRONT_ENDS[name].tokenizer.decode(
        FRONT_ENDS[name].chat_prompt(messages, tools=TOOLS if tools else []), skip_special=False
    )
    words = [message["content"] for message in messages if message["content"]]
    assert all(text.count(word) == 1 for word in words)
    names = [each["function"]["name"] for message in messages for each in message.get("tool_calls", ())]
    assert all(each in text for each in names)


def test_a_late_system_message_joins_the_next_users_turn():
    messages = [said("user", "a"), said("system", "b"), said("assistant", "c"), said("user", "d"), said("system", "e")]
    expected = [said("user", "a"), said("assistant", "c"), said("user", "b\n\nd"), said("user", "e")]
    assert arranged(messages, Takes(late_system=False)) == expected
    assert arranged(messages, Takes()) == messages
    joined = [*expected[:2], said("user", "b\n\nd\n\ne")]
    assert arranged(messages, Takes(late_system=False, neighbors=False)) == joined


def test_results_are_answered_before_the_user_goes_on_where_a_template_insists():
    messages = [said("user", "a"), said("assistant", "", tool_calls=[call()]), said("tool", "b"), said("user", "c")]
    assert arranged(messages, Takes()) == messages
    answered = arranged(messages, Takes(user_after_results=False))
    assert answered == [*messages[:3], said("assistant", ""), messages[3]]


TWO = [call("f", id="a"), call("g", id="b")]
RESULTS = [said("tool", "of b", tool_call_id="b"), said("tool", "of a", tool_call_id="a")]


def test_calls_stand_one_by_one_each_before_its_result_where_a_template_insists():
    messages = [said("user", "x"), said("assistant", "y", tool_calls=TWO), *RESULTS, said("user", "z")]
    assert arranged(messages, Takes()) == messages
    assert arranged(messages, Takes(parallel_calls=False)) == [
        messages[0],
        said("assistant", "y", tool_calls=[TWO[0]]),
        RESULTS[1],
        said("assistant", "", tool_calls=[TWO[1]]),
        RESULTS[0],
        messages[-1],
    ]


def test_late_results_move_behind_their_calls_where_a_template_insists():
    first, second = said("assistant", "", tool_calls=[TWO[0]]), said("assistant", "", tool_calls=[TWO[0]])
    results = [said("tool", text, tool_call_id="a") for text in ("one", "two")]
    messages = [first, said("user", "x"), results[0], second, said("user", "y"), results[1]]
    assert arranged(messages, Takes()) == messages
    expected = [first, results[0], said("user", "x"), second, results[1], said("user", "y")]
    assert arranged(messages, Takes(late_results=False)) == expected, "each behind the last call of its id"


def test_a_result_of_no_call_is_said_by_the_user_where_a_template_insists():
    stray = said("tool", "b", tool_call_id="9", name="f")
    messages = [said("user", "a"), said("assistant", "", tool_calls=[TWO[0]]), RESULTS[1], stray]
    assert arranged(messages, Takes()) == messages
    assert arranged(messages, Takes(stray_results=False)) == [*messages[:3], said("user", "Result of f:\nb")]


def test_a_call_without_a_result_gets_an_empty_one_where_a_template_insists():
    messages = [
        said("assistant", "", tool_calls=TWO),
        RESULTS[0],
        said("user", "x"),
        said("assistant", "", tool_calls=TWO),
    ]
    messages[-1] = said("assistant", "", tool_calls=[call("f", id="c")])
    assert arranged(messages, Takes()) == messages
    made = {"role": "tool", "content": "", "tool_call_id": "a"}
    assert arranged(messages, Takes(unanswered_calls=False)) == [messages[0], made, *messages[1:]], "not at the end"


def test_an_empty_turn_of_the_user_comes_first_where_a_template_insists():
    for system in ([], [said("system", "s")]):
        for rest in ([said("assistant", "a")], [], [said("user", "u")]):
            if system or rest:
                begins = [] if rest and rest[0]["role"] == "user" else [said("user", "")]
                assert arranged([*system, *rest], Takes(no_user_first=False)) == [*system, *begins, *rest]


def test_neighbors_are_joined_with_their_calls_and_reasoning():
    first = said("assistant", "a", tool_calls=[call("f")], reasoning_content="x")
    second = said("assistant", "", tool_calls=[call("g")], reasoning_content="y")
    results = [said("tool", "r", tool_call_id="1"), said("tool", "s", tool_call_id="2")]
    joined, *rest = arranged([first, second, *results], Takes(neighbors=False))
    assert [each["function"]["name"] for each in joined["tool_calls"]] == ["f", "g"] and rest == results
    assert (joined["content"], joined["reasoning_content"]) == ("a", "x\n\ny")


def test_reading_a_conversation_twice_changes_nothing():
    for messages in CONVERSATIONS.values():
        once = read(messages)
        assert read(once) == once


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        (None, "messages must be a list of at least one message, got None"),
        ([], "messages must be a list of at least one message"),
        ("hi", "messages must be a list of at least one message"),
        ([said("user", "x"), 7], r"messages\[1\] must be an object"),
        ([said("robot", "x")], r"messages\[0\].role must be one of system, developer, user, .*got 'robot'"),
        ([{"content": "x"}], r"messages\[0\].role must be one of"),
        ([said("user", None)], r"messages\[0\].content must be a text, or a list of parts, got None"),
        ([said("user", 5)], r"messages\[0\].content must be"),
        ([said("user", [{"type": "image_url", "image_url": {"url": "x"}}])],
         r'messages\[0\].content\[0\].type must be "text": this model reads nothing else, got \'image_url\''),
        ([said("user", [{"type": "text", "text": 5}])], r"messages\[0\].content\[0\].text must be a text"),
        ([said("user", ["x"])], r"messages\[0\].content\[0\] must be"),
        ([said("assistant", "x", tool_calls=True)], r"messages\[0\].tool_calls must be a list of calls, got True"),
        ([said("assistant", "x", tool_calls={})], r"messages\[0\].tool_calls must be a list of calls"),
        ([said("assistant", "x", tool_calls=[call(), None])], r"messages\[0\].tool_calls\[1\] must be"),
        ([said("assistant", "x", tool_calls=[call(id=True)])], r"messages\[0\].tool_calls\[0\].id must be a text"),
        ([said("assistant", "x", tool_calls=[call(id=[])])], r"messages\[0\].tool_calls\[0\].id must be a text"),
        ([said("assistant", "x", tool_calls=[call(name={})])], r"tool_calls\[0\].function.name must be a text"),
        ([said("assistant", "x", tool_calls=[call(function="f")])], r"tool_calls\[0\].function must be an object"),
        ([said("assistant", "x", function_call="f")], r"messages\[0\].function_call must be an object"),
        ([said("tool", "x", tool_call_id=[1])], r"messages\[0\].tool_call_id must be a text"),
        ([said("user", "x", name={})], r"messages\[0\].name must be a text"),
    ],
)  # fmt: skip
def test_what_no_model_can_read_is_refused_in_one_line(messages, words):
    with pytest.raises(RequestError, match=words) as error:
        read(messages)
    assert "\n" not in str(error.value)


# -- the end of a prompt -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name != "mistral"])
def test_the_last_message_is_continued_where_its_text_ends(name):
    front_end = FrontEnd(tokenizer(TEMPLATES[name][0]), ModelLimits(300, 4096), "model", lambda *_: ())
    messages = [said("user", "Count."), said("assistant", "One, two, ")]
    text = front_end.tokenizer.decode(front_end.chat_prompt(messages, continue_final=True), skip_special=False)
    assert text.endswith("\nOne, two, "), "its blank included, and no turn is closed or begun"


def test_only_an_assistants_message_can_be_continued():
    front_end = FrontEnd(tokenizer(PLAIN), ModelLimits(300, 4096), "model", lambda *_: ())
    for last in (said("user", "x"), said("assistant", None, tool_calls=[call()])):
        messages = [said("user", "x"), last]
        if last["role"] == "assistant":
            front_end = FrontEnd(tokenizer(CHATML), ModelLimits(300, 4096), "model", lambda *_: ())
        with pytest.raises(RequestError, match="the last message must be the assistant's, without calls"):
            front_end.chat_prompt(messages, continue_final=True)


def test_a_template_that_leaves_the_last_message_out_cannot_continue_it():
    made = tokenizer("{% for m in messages[:-1] %}{{ m.content }}{% endfor %}")
    with pytest.raises(RequestError, match="leaves the last message out"):
        made.chat([said("user", "x"), said("assistant", "y")], continue_final=True)
