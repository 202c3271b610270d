"""Every conversation that clients send reaches every template, whatever it takes."""

import pytest

from gradus.engine.request import ModelLimits
from gradus.errors import RequestError
from gradus.text.conversation import Takes, arranged, read, takes
from gradus.text.front_end import FrontEnd
from gradus.text.tools.dialect import Dialect
from tests.text.templates import FIRST_ONLY, GEMMA, GEMMA_2, MISTRAL, SILENT
from tests.text.tools.builders import CHATML, PLAIN, TOOLS, tokenizer

TEMPLATES = {
    "chatml": (CHATML, Takes()),
    "plain": (PLAIN, Takes()),
    "gemma": (GEMMA, Takes(late_system=False, neighbors=False)),
    "gemma-2": (GEMMA_2, Takes(system=False, late_system=False, neighbors=False)),
    "mistral": (MISTRAL, Takes(late_system=False, neighbors=False, user_after_results=False)),
    "first-only": (FIRST_ONLY, Takes(late_system=False)),
    "silent": (SILENT, Takes(late_system=False)),
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
    "contents in parts": [
        said("user", [{"type": "text", "text": "Ask."}, {"type": "input_text", "text": "Again."}]),
        said("assistant", [{"type": "output_text", "text": "Say."}, {"type": "refusal", "refusal": "Not."}]),
        said("user", "Last.")],
}  # fmt: skip


@pytest.mark.parametrize("messages", CONVERSATIONS.values(), ids=CONVERSATIONS)
@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("tools", [[], TOOLS], ids=["without tools", "with tools"])
def test_every_word_of_every_conversation_reaches_every_template_once(name, messages, tools):
    front_end = FrontEnd(tokenizer(TEMPLATES[name][0]), ModelLimits(300, 4096), "model", lambda *_: ())
    text = front_end.tokenizer.decode(front_end.chat_prompt(messages, tools=tools), skip_special=False)
    for word in ("Rule-one.", "Rule-two.", "Ask.", "Again.", "Say.", "Not.", "More.", "Last.", "Result."):
        assert text.count(word) == str(messages).count(word), word
    assert "developer" not in text and "function_call" not in text


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
