"""Twenty ways in which servers have lost, doubled or invented calls: each as what must hold instead."""

import json
from dataclasses import replace

import pytest

from gradus.engine.request import SamplingParams
from gradus.text.tools.dialect import Dialect
from gradus.text.tools.events import Answer, Text, ToolArguments, ToolEnd, ToolStart, reason_with_calls
from gradus.text.tools.tool import read_tools
from tests.text.tools.builders import (
    CHATML,
    FAMILIES,
    TAGS,
    TOOLS,
    called,
    events_of,
    family,
    read,
    shown,
    stream_of,
    tokenizer,
    tokens_of,
)

HERMES = '<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>'
XML = "<tool_call>\n<function=f>\n%s</function>\n</tool_call>"


def parameter(name, value):
    return f"<parameter={name}>\n{value}\n</parameter>\n"


def one_by_one(name, text):
    dialect = family(name)
    return events_of(dialect, text, [1] * len(tokens_of(dialect, text)))


def test_1_a_message_in_one_piece_keeps_all_its_calls():
    text = "\n".join([HERMES % '{"count": 1}', HERMES % '{"count": 2}', HERMES % '{"count": 3}'])
    assert called(read("hermes", text)) == [("f", f'{{"count": {n}}}') for n in (1, 2, 3)]


@pytest.mark.parametrize("size", [2, 3, 5, 7, 50])
def test_2_any_number_of_tokens_in_a_piece_gives_valid_json(size):
    arguments = {"text": 'a "quoted" {brace} \\ é 👍', "map": {"k": [1, {"x": None}]}, "flag": False}
    text = family("llama3-json").format.layout.write([("f", arguments)])
    (call,) = Answer.of(events_of(family("llama3-json"), text, [size] * 90)).calls
    assert call.complete and json.loads(call.arguments) == arguments


def test_3_two_parameters_in_one_step_are_both_kept():
    text = XML % (parameter("text", "a") + parameter("count", "1"))
    expected = [("f", '{"text": "a", "count": 1}')]
    assert called(read("qwen3-coder", text)) == expected
    assert called(Answer.of(one_by_one("qwen3-coder", text))) == expected


@pytest.mark.parametrize("name", FAMILIES)
def test_4_a_call_without_arguments_has_an_empty_object(name):
    assert called(read(name, family(name).format.layout.write([("g", {})]))) == [("g", "{}")]


def test_4_a_call_whose_arguments_are_left_out_or_null_has_an_empty_object():
    for body in ('{"name": "g"}', '{"name": "g", "arguments": null}'):
        assert called(read("hermes", f"<tool_call>{body}</tool_call>")) == [("g", "{}")]


@pytest.mark.parametrize("name", FAMILIES)
def test_5_a_boolean_at_the_end_and_the_closing_brace_arrive(name):
    text = family(name).format.layout.write([("f", {"flag": True})])
    assert called(Answer.of(one_by_one(name, text))) == [("f", '{"flag": true}')]


@pytest.mark.parametrize("name", FAMILIES)
def test_6_arguments_are_sent_once(name):
    """Also by the end of the output, and where the last tokens and the end arrive together."""
    text = family(name).format.layout.write([("f", {"text": "once"})])
    for events in (one_by_one(name, text), events_of(family(name), text)):
        assert "".join(event.delta for event in events if isinstance(event, ToolArguments)) == '{"text": "once"}'
        assert sum(isinstance(event, ToolEnd) for event in events) == 1


@pytest.mark.parametrize("cut", range(1, len("</tool_call>")))
def test_7_half_a_marker_never_gets_into_the_arguments(cut):
    dialect = family("hermes", by_text=True)
    text = HERMES % '{"text": "x"}'
    size = len(text) - len("</tool_call>") + cut
    answer = Answer.of(events_of(dialect, text, [size, 1]))
    assert called(answer) == [("f", '{"text": "x"}')] and answer.text == ""


@pytest.mark.parametrize("name", FAMILIES)
def test_8_a_call_that_breaks_off_is_shown_alike_streamed_and_whole(name):
    text = "" if family(name).format.layout.trigger in "[{" else "Well: "
    text += ("\n" if name == "gemma3" else "") + family(name).format.layout.write([("f", {"text": "x", "count": 12})])
    for end in range(len(text)):
        whole = read(name, text[:end])
        assert Answer.of(one_by_one(name, text[:end])) == whole
        assert whole.text or whole.calls or not shown(name, text[:end]), "what was said is not lost"


def test_8_a_call_that_breaks_off_is_not_complete():
    (call,) = read("hermes", '<tool_call>\n{"name": "f", "arguments": {"count": 12').calls
    assert (call.arguments, call.complete) == ('{"count": ', False)


@pytest.mark.parametrize(
    "broken",
    [
        "<tool_call>\n<function=f\n</tool_call>",
        "<tool_call>\n<function=nope>\n</function>\n</tool_call>",
        "<tool_call>\nfunction=f\n</tool_call>",
        "<tool_call>\n<function=f>\noops\n</function>\n</tool_call>",
        "<tool_call></tool_call>",
    ],
)
def test_9_a_malformed_call_is_text_and_its_neighbours_are_calls(broken):
    one, two = (XML % parameter("count", number) for number in (1, 2))
    answer = read("qwen3-coder", f"{one}\n{broken}\n{two}")
    assert called(answer) == [("f", '{"count": 1}'), ("f", '{"count": 2}')]
    assert answer.text.strip() == broken


def test_9_a_call_that_stops_being_one_ends_incomplete_and_its_neighbours_are_whole():
    answer = read("hermes", HERMES % '{"count": oops}' + "\n" + HERMES % '{"count": 1}')
    assert [(call.arguments, call.complete) for call in answer.calls] == [('{"count": ', False), ('{"count": 1}', True)]
    assert answer.text == " oops}}\n</tool_call>"


@pytest.mark.parametrize(("value", "expected"), [('{"city": "Oslo"}', {"city": "Oslo"}), ("null", None)])
def test_10_an_object_allowed_by_any_of_is_an_object_and_no_text_of_one(value, expected):
    (call,) = read("qwen3-coder", XML % parameter("maybe", value)).calls
    assert json.loads(call.arguments) == {"maybe": expected}


@pytest.mark.parametrize("value", ["    indented\n  less\n", "\n\nblank lines\n\n", "\ttab ", "", "\n", "a\r\nb\r\n"])
def test_11_raw_text_loses_one_line_break_on_each_side_and_nothing_else(value):
    (call,) = Answer.of(one_by_one("qwen3-coder", XML % parameter("text", value))).calls
    assert json.loads(call.arguments) == {"text": value}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("count", "three", "three"),
        ("count", "3.5", "3.5"),
        ("count", "-3", -3),
        ("count", "4.0", 4),
        ("ratio", "1e3", 1000.0),
        ("ratio", "1,5", "1,5"),
        ("flag", "True", True),
        ("flag", "yes", "yes"),
        ("list", "[1, 2", "[1, 2"),
        ("list", "['a', None]", ["a", None]),
        ("map", "[]", "[]"),
        ("map", "{\n  'a': 1}", {"a": 1}),
        ("unknown", "5", "5"),
    ],
)
def test_12_a_value_that_is_not_of_its_type_is_passed_as_text(name, value, expected):
    (call,) = read("qwen3-coder", XML % parameter(name, value)).calls
    assert json.loads(call.arguments) == {name: expected}


@pytest.mark.parametrize(
    "text",
    [
        'Use {"name": "f", "parameters": {"count": 1}} to call it.',
        '{"name": "Ada", "parameters": {"count": 1}}',
        '{"city": {"name": "f", "parameters": {}}}',
        '```json\n{"name": "f", "parameters": {}}\n```',
        "[1, 2, 3]",
        "[f(x) for x in list]",
        "{}",
    ],
)
@pytest.mark.parametrize("name", FAMILIES)
def test_13_json_in_prose_is_no_call_and_all_of_it_is_shown(name, text):
    if name == "qwen2.5-coder" and text.startswith("```"):
        pytest.skip("its calls may look so")
    answer = read(name, text)
    assert answer.calls == () and answer.text == text


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "f", "arguments": {"count": 1}}',
        '```json\n{\n  "name": "f",\n  "arguments": {\n    "count": 1\n  }\n}\n```',
        '<tool_call>\n{"name": "f", "arguments": {"count": 1}}\n</tool_call>',
    ],
)
def test_13_json_that_begins_the_answer_is_a_call_in_the_format_that_says_so(text):
    assert called(read("qwen2.5-coder", text)) == [("f", '{"count": 1}')] and not read("qwen2.5-coder", text).text
    assert read("qwen2.5-coder", f"Like so: {text[:-1]}").calls == () or text.startswith("<")
    assert len(read("hermes", text).calls) == text.startswith("<")


JSON_FAMILIES = [name for name in FAMILIES if "$json" in family(name).format.layout.call]


@pytest.mark.parametrize("name", JSON_FAMILIES)
@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("arguments", [{}, {"text": 'é 👍 "q" \\ \n', "map": {"k": [1, None]}}], ids=["none", "some"])
def test_19_arguments_in_a_json_string_are_those_of_the_object_inside(name, ascii_only, arguments):
    text = with_string(name, json.dumps(json.dumps(arguments, ensure_ascii=ascii_only), ensure_ascii=ascii_only))
    for events in (one_by_one(name, text), events_of(family(name), text)):
        answer = Answer.of(events)
        assert [json.loads(call.arguments) for call in answer.calls] == [arguments]
        assert answer.text == "" and answer.calls[0].complete


def with_string(name, written):
    """A call whose arguments are written so."""
    return family(name).format.layout.write([("f", {"here": 0})]).replace('{"here": 0}', written)


@pytest.mark.parametrize("name", JSON_FAMILIES)
@pytest.mark.parametrize(
    "written", ['"Ulm"', '"[1]"', '"{oops}"', '"{} {}"', "[1]", "7", "true", "nul", '"{\\"a\\": 1']
)
def test_19_a_call_whose_arguments_do_not_begin_is_text(name, written):
    text = with_string(name, written)
    for events in (one_by_one(name, text), events_of(family(name), text)):
        answer = Answer.of(events)
        assert answer.calls == () and answer.text == shown(name, text)


@pytest.mark.parametrize(("written", "arguments"), [('""', "{}"), ('" "', "{}"), ('"{ }"', "{}"), ("null", "{}")])
def test_19_an_empty_string_means_no_arguments(written, arguments):
    assert called(read("hermes", HERMES % written)) == [("f", arguments)]
    before = f'<tool_call>{{"arguments": {written}, "name": "f"}}</tool_call>'
    assert called(read("hermes", before)) == [("f", arguments)]


def test_19_half_a_surrogate_pair_in_a_string_of_arguments_stays_an_escape():
    (call,) = read("hermes", HERMES % json.dumps('{"text": "\ud83d"}')).calls
    assert call.arguments == '{"text": "\\ud83d"}' and call.arguments.encode()


@pytest.mark.parametrize("name", ["gemma3", "llama3-pythonic"])
def test_19_a_python_call_whose_first_value_is_none_is_text(name):
    text = "[f(text=place)]" if name == "llama3-pythonic" else "\n```tool_code\nf(text=place)\n```"
    answer = read(name, text)
    assert answer.calls == () and answer.text == text
    later = read(name, text.replace("text=place", "count=1, text=place"))
    assert [(call.arguments, call.complete) for call in later.calls] == [('{"count": 1', False)]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        (r"\d+\.\w*", r"\d+\.\w*"),
        (r"C:\users\Xy", r"C:\users\Xy"),
        (r"\u00e9\u00", "é\\u00"),
        (r"it\'s \\d \n", "it's \\d \n"),
        ("a \\\n b", "a \\\n b"),  # a line that goes on in a shell
        (r"\é", "\\é"),
    ],
)
@pytest.mark.parametrize("name", JSON_FAMILIES)
def test_20_a_backslash_that_begins_no_escape_is_a_backslash(name, written, value):
    text = with_string(name, f'{{"text": "{written}"}}')
    for events in (one_by_one(name, text), events_of(family(name), text)):
        (call,) = Answer.of(events).calls
        assert call.complete and json.loads(call.arguments) == {"text": value}


@pytest.mark.parametrize("name", FAMILIES)
def test_13_a_name_that_was_not_declared_is_text(name):
    written = family(name).format.layout.write([("nope", {"count": 1})])
    answer = read(name, written)
    assert answer.calls == ()
    assert answer.text == shown(name, written)


def test_14_the_finish_reason_agrees_with_the_calls_and_never_hides_length():
    answers = [
        ("stop", 1, "tool_calls"),
        ("stop", 0, "stop"),
        ("length", 1, "length"),
        ("error", 1, "error"),
        (None, 1, None),
    ]
    assert [reason_with_calls(reason, calls) for reason, calls, _ in answers] == [shown for _, _, shown in answers]
    events = events_of(family("hermes"), '<tool_call>\n{"name": "f", "arguments": {"text": "cut o')
    assert Answer.of(events, "length").finish_reason == "length"
    assert Answer.of(events_of(family("hermes"), HERMES % "{}"), "stop").finish_reason == "tool_calls"


def test_15_a_marker_keeps_its_place_while_the_text_lags_behind():
    """The beginning of a stop string, and half a character, are held back when the marker's token arrives."""
    dialect = family("hermes")
    stream = stream_of(dialect, params=SamplingParams(stop=["x<tool_call>END", "<END"]))
    events = stream.push([*b"ax"]) + stream.push([dialect.markers["<tool_call>"]])
    assert Answer.of(events).text == "a"
    events += stream.push(tokens_of(dialect, '{"name": "g"}</tool_call>')) + stream.finish()
    assert Answer.of(events).text == "ax" and called(Answer.of(events)) == [("g", "{}")]
    stream = stream_of(dialect)
    half = stream.push([0xF0, 0x9F, dialect.markers["<tool_call>"]])
    rest = stream.push(tokens_of(dialect, '{"name": "g"}</tool_call>')) + stream.finish()
    assert [*half, *rest][0] == Text("\ufffd") and called(Answer.of([*half, *rest])) == [("g", "{}")]


def test_15_a_stop_string_that_cuts_a_marker_leaves_text():
    dialect = family("hermes")
    stream = stream_of(dialect, params=SamplingParams(stop=["l_call"]))
    assert Answer.of([*stream.push(tokens_of(dialect, "a<tool_call>b")), *stream.finish()]).text == "a<too"


def test_16_tools_given_as_an_iterator_are_read_once_and_kept():
    dialect = family("hermes")
    turn = dialect.turn(iter(TOOLS))
    for _ in range(2):
        assert [tool.name for tool in turn.tools] == ["f", "g"]
        assert [tool.name for tool in turn.shown] == ["f", "g"]
        stream = turn.stream([], seed="x")
        assert called(Answer.of([*stream.push(tokens_of(dialect, HERMES % "{}")), *stream.finish()])) == [("f", "{}")]


def test_17_a_prompt_begins_with_one_token_where_the_template_writes_it():
    """Also where the tokenizer itself would begin every text with it."""
    from gradus.loading.chat import ChatTemplate
    from gradus.loading.tokenizer import Tokenizer, begin_texts_with

    made = tokenizer()._backend
    begin_texts_with(made, 256, None)
    both = Tokenizer(made, bos_token_id=256, chat_template=ChatTemplate("{{ bos_token }}{{ tools | tojson }}"))
    assert both.encode("a") == [256, *b"a"]
    prompt = both.chat([{"role": "user", "content": "x"}], tools=[tool.shown() for tool in read_tools(TOOLS)])
    assert prompt.count(256) == 1 and prompt[0] == 256


def test_18_the_grammar_is_added_to_a_requests_penalties_and_stop_tokens():
    dialect = Dialect(tokenizer(CHATML, TAGS))
    params = SamplingParams(repetition_penalty=1.1, top_k=20, stop_token_ids=[7], stop=["END"], seed=3, max_tokens=9)
    constrained = dialect.turn(TOOLS, "required").constrain(params, [])
    assert constrained.structured is not None and replace(constrained, structured=None) == params


def test_the_ids_of_calls_are_nine_letters_and_digits_and_depend_on_the_seed_alone():
    text = "\n".join(HERMES % f'{{"count": {number}}}' for number in range(3))
    starts = [event for event in events_of(family("hermes"), text) if isinstance(event, ToolStart)]
    ids = [event.id for event in starts]
    assert ids == [event.id for event in one_by_one("hermes", text) if isinstance(event, ToolStart)]
    assert len(set(ids)) == 3 and all(len(each) == 9 and each.isalnum() and each.isascii() for each in ids)
    turn, tokens = family("hermes").turn(TOOLS), tokens_of(family("hermes"), text)
    drawn = [Answer.of(turn.stream([]).push(tokens)).calls[0].id for _ in range(2)]
    assert drawn[0] != drawn[1]
