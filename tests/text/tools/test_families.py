"""Calls and reasoning of the dense families of 2026, as they were taught and as they deviate from it."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from gradus.structured import Grammars
from gradus.text.tools.dialect import Dialect
from gradus.text.tools.events import Answer
from gradus.text.tools.formats import detect
from gradus.text.tools.reader import Reader, next_is_end
from tests.text import templates
from tests.text.tools.builders import FAMILIES, TOOLS, called, events_of, family, read, tokenizer, tokens_of

PAGE = Path(__file__).parents[3] / "docs" / "tools.md"

SCHEMA = {
    "type": "object",
    "properties": {
        "query": {"type": "string"},
        "limit": {"type": "integer"},
        "exact": {"type": "boolean"},
        "sites": {"type": "array", "items": {"type": "string"}},
        "range": {"$ref": "#/$defs/range"},
        "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        "first name": {"type": "string"},
    },
    "$defs": {
        "range": {"type": "object", "properties": {"from": {"type": "string"}, "within": {"$ref": "#/$defs/range"}}}
    },
}
SEARCH = [{"type": "function", "function": {"name": "search", "parameters": SCHEMA}}]


def answer_of(name, text, size=None, tools=SEARCH, prompt=()):
    dialect = family(name)
    stream, tokens = dialect.turn(tools).stream(prompt, seed="x"), tokens_of(dialect, text)
    size = size or len(tokens)
    events = [event for at in range(0, len(tokens), size) for event in stream.push(tokens[at : at + size])]
    return Answer.of([*events, *stream.finish()])


def arguments_of(name, text):
    """The arguments of the one call in a text, which are the same however its tokens are cut."""
    one, *others = (answer_of(name, text, size) for size in (None, 1, 2, 7))
    assert all(other == one for other in others)
    assert [call.complete for call in one.calls] == [True] and one.text == ""
    return json.loads(one.calls[0].arguments)


def gemma(arguments):
    return "<|tool_call>call:search{" + arguments.replace("§", '<|"|>') + "}<tool_call|>"


# -- Gemma 4 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (
            "query:§Oslo, {now} [1] \"x\" é\n§,limit:3,exact:true",
            {"query": 'Oslo, {now} [1] "x" é\n', "limit": 3, "exact": True},
        ),
        ("", {}),
        (
            "sites:[§a§,§b§],range:{from:§x§,within:{from:§y§}}",
            {"sites": ["a", "b"], "range": {"from": "x", "within": {"from": "y"}}},
        ),
        ("sites:[],range:{}", {"sites": [], "range": {}}),
        (" query : §a§ , limit : -2 ", {"query": "a", "limit": -2}),
        ("query:null,limit:None,exact:False", {"query": "null", "limit": None, "exact": False}),
        ("query:5,limit:5,either:5,other:5", {"query": "5", "limit": 5, "either": 5, "other": 5}),
        ("limit:soon,other:soon,exact:yes", {"limit": "soon", "other": "soon", "exact": "yes"}),
        ("limit:2.0,other:2.5e3", {"limit": 2, "other": 2500.0}),
        ("first name:§Ada§", {"first name": "Ada"}),
    ],
)  # fmt: skip
def test_gemmas_arguments_are_typed_by_the_schema(written, expected):
    assert arguments_of("gemma4", gemma(written)) == expected


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("query:weather in Tokyo§", {"query": "weather in Tokyo"}),
        ("query:Paris, France§,limit:5", {"query": "Paris, France", "limit": 5}),
        ("query:Paris, France,limit:5", {"query": "Paris, France", "limit": 5}),
        ("query:{a} or [b]", {"query": "{a} or [b]"}),
        ("sites:[\"a\",'b'],range:{\"from\": \"x\"}", {"sites": ["a", "b"], "range": {"from": "x"}}),
        ("§query§:§a§", {"query": "a"}),
        ("query:§print(§hi§)§,limit:1", {"query": 'print("hi")', "limit": 1}),
        (
            "query:§sql(§§§SELECT 1§§§).df()§,sites:[§a§]",
            {"query": 'sql("""SELECT 1""").df()', "sites": ["a"]},
        ),
        ('query:{"a": 1}§,limit:1', {"query": '{"a": 1}', "limit": 1}),
        ("query:§{§a§: [§b§, 1]}§", {"query": '{"a": ["b", 1]}'}),
        ("query:§f(§a§, §b§)§", {"query": 'f("a", "b")'}),
        ("query:§a§},limit§", {"query": 'a"},limit'}),
        ("sites:[§say §a§ twice§,§b§]", {"sites": ['say "a" twice', "b"]}),
    ],
)  # fmt: skip
def test_gemmas_deviations_are_read_as_they_were_meant(written, expected):
    assert arguments_of("gemma4", gemma(written)) == expected


def documented():
    """Read the page's rows about Gemma 4: a quote in them means the token around strings."""
    rows = PAGE.read_text(encoding="utf-8").split("| Gemma 4 writes |")[1].split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip(" `") for cell in row.strip("| ").split(" | ")] for row in rows]
    return [(written.replace('"', '<|"|>'), json.loads(expected)) for _, written, expected in cells]


@pytest.mark.parametrize(("written", "expected"), documented())
def test_the_pages_examples_are_read_as_it_says(written, expected):
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string"}, "code": {"type": "string"}, "cities": {"type": "array"},
            "now": {"type": "boolean"}, "days": {"type": "integer"},
        },
    }  # fmt: skip
    for size in (None, 1):
        answer = answer_of(
            "gemma4", f"<|tool_call>call:f{written}<tool_call|>", size, [{"name": "f", "input_schema": schema}]
        )
        assert json.loads(answer.calls[0].arguments) == expected and answer.calls[0].complete


def test_gemmas_call_may_lack_its_word_and_its_end():
    for text in ("<|tool_call>:search{limit:1}<tool_call|>", "<|tool_call>call:search{limit:1}"):
        assert arguments_of("gemma4", text) == {"limit": 1}


@pytest.mark.parametrize(
    "text",
    [
        "<|tool_call>call:search limit:1<tool_call|>",
        "<|tool_call>call:search{limit}<tool_call|>",
        "<|tool_call>call:search{limit:}<tool_call|>",
        "<|tool_call>call:nope{limit:1}<tool_call|>",
        "<|tool_call>search(limit=1)<tool_call|>",
        "call:search{limit:1}",
        "The marker is spelled <|tool_call|>.",
    ],
)
def test_what_is_no_call_of_gemmas_is_text(text):
    for size in (None, 1, 3):
        answer = answer_of("gemma4", text, size)
        assert answer.calls == () and answer.text == text.replace("<|tool_call>", "").replace("<tool_call|>", "")


def test_gemmas_call_that_repeats_a_key_ends_incomplete():
    (call,) = answer_of("gemma4", gemma("limit:1,limit:2")).calls
    assert (call.arguments, call.complete) == ('{"limit": 1', False)


def test_the_token_of_a_result_ends_an_answer_with_calls():
    """Results come from outside; a model that is not stopped there invents one."""
    two = gemma("limit:1") + gemma("limit:2")
    answer = answer_of("gemma4", two + "<|tool_response>response:search{value:1}<tool_response|>So: 1.")
    assert len(answer.calls) == 2 and answer.text == ""
    assert answer_of("gemma4", "<|tool_response>Hm.").text == "Hm.", "without a call it is no result"


def test_gemmas_calls_are_constrained_to_the_schema_and_to_the_order_of_its_template():
    dialect = family("gemma4")
    made = dialect.tokenizer
    grammars = Grammars(made.to_json, made.vocab_size, made.eos_token_ids)
    schema = {
        "type": "object",
        "properties": {
            "unit": {"enum": ["C", "F", None, 5]},
            "days": {"type": "array", "items": {"type": "integer", "minimum": 0}},
            "place": {"$ref": "#/$defs/place"},
            "any": {},
            "note": {"type": ["string", "null"]},
        },
        "required": ["unit"],
        "$defs": {"place": {"properties": {"city": {"type": "string"}, "in": {"$ref": "#/$defs/place"}}}},
    }  # fmt: skip
    constraint = dialect.turn([{"name": "f", "input_schema": schema}], "required").constraint(())

    def accepts(arguments):
        text = "<|tool_call>call:f{" + arguments.replace("§", '<|"|>') + "}<tool_call|>"
        return grammars.matcher(constraint).accept([*tokens_of(dialect, text), made.eos_token_ids[0]])

    for right in (
        "unit:§C§", "unit:null", "days:[1,0],unit:5", "place:{city:§Oslo, {x}§,in:{in:{}}},unit:§F§",
        "any:[{a:§b§,c:[null,1.5]}],note:null,unit:§C§", "note:§n:1§,unit:§C§", "days:[],unit:5",
    ):  # fmt: skip
        assert accepts(right), right
    for wrong in (
        "", "unit:§K§", "unit:C", "unit:§C§,days:[1]", "days:[-1],unit:5", "days:1,unit:5",
        "days:[§1§],unit:5",
        "place:{town:§x§},unit:5", "more:1,unit:5", "note:1,unit:5", "unit:5,", "any:x,unit:5",
    ):  # fmt: skip
        assert not accepts(wrong), wrong


# -- OLMo 3, Phi-4-mini, Granite 3 -------------------------------------------------------------------------------------


F = '{"name": "f", "arguments": {"text": "a", "flag": true, "maybe": null}}'
G = '{"name": "g"}'


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("olmo3", '<function_calls>\nf(text="a", flag=true, maybe=null)\ng()\n</function_calls>'),
        ("olmo3", "<function_calls>f(text='a', flag=True, maybe=None)\ng()</function_calls>"),
        ("olmo3", "<function_calls>\n[f(text='a', flag=True, maybe=None), g()]\n</function_calls>"),
        ("olmo3", f"<function_calls>[{F}, {G}]</function_calls>"),
        ("olmo3", f"<function_calls>{F}\n{G}"),
        ("phi4", f"<|tool_call|>[{F}, {G}]<|/tool_call|>"),
        ("phi4", f'<|tool_call|>[{{"type": "function", "function": {F}}}, {G}]<|/tool_call|>'),
        ("phi4", f"<|tool_call|>{F}<|/tool_call|>\n<|tool_call|>{G}<|/tool_call|>"),
        ("phi4", f"functools[{F}, {G}]"),
        ("granite3", f"<|tool_call|>[{F}, {G}]"),
        ("granite3", f"<|tool_call|> [{F}, {G}]"),
        ("granite3", f"<tool_call>[{F}, {G}]"),
    ],
)
def test_calls_are_read_in_every_way_that_a_family_writes_them(name, text):
    for sizes in ((), [1] * len(text), [3] * len(text)):
        answer = Answer.of(events_of(family(name), text, sizes))
        assert [(call, json.loads(arguments)) for call, arguments in called(answer)] == [
            ("f", {"text": "a", "flag": True, "maybe": None}), ("g", {}),
        ]  # fmt: skip
        assert answer.text == ""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("phi4", "functools is a module of Python."),
        ("phi4", 'See functools[{"name": "g"}]'),
        ("phi4", 'functools{"name": "g"}'),
        ("granite3", 'Write <tool_call>[{"name": "g"}]'),
        ("granite3", '<tool_call>{"name": "g"}</tool_call>'),
        ("olmo3", "<function_calls>nothing</function_calls>"),
        ("olmo3", "f(count=1)"),
    ],
)
def test_what_only_looks_like_a_call_is_text(name, text):
    for sizes in ((), [1] * len(text)):
        answer = Answer.of(events_of(family(name), text, sizes))
        assert answer.calls == () and answer.text == text


# -- reasoning ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reasoning", "said"),
    [
        ("<|channel>thought\nHm.\n<channel|>So.", "Hm.", "So."),
        ("<|channel>thought\n<channel|>So.", "", "So."),
        ("<|channel>thought<channel|>So.", "", "So."),
        ("<|channel>thoughtful\n<channel|>So.", "thoughtful", "So."),
        ("<|channel>Hm.<channel|>So.", "Hm.", "So."),
        ("<channel|>So.", "", "So."),
        ("So thought\nI.", "", "So thought\nI."),
        ("<|channel>thought\nHm", "Hm", ""),
        ("<|channel>thou", "thou", ""),
    ],
)
def test_the_label_of_gemmas_channel_is_no_thought(text, reasoning, said):
    for size in (None, 1, 2):
        answer = answer_of("gemma4", text, size)
        assert (answer.reasoning, answer.text) == (reasoning, said)


def test_reasoning_in_words_is_found_where_the_template_asks_for_it():
    """Granite 3.2 has no tokens around its thoughts."""
    asks = "{# Write your thoughts after 'Here is my thought process:', the rest after 'Here is my response:' #}"
    dialect = Dialect(tokenizer(FAMILIES["grammar"][0] + asks))
    stream = dialect.turn().stream(())
    text = "Here is my thought process: Hm. Here it is. Here is my response: So. Here you are."
    answer = Answer.of(
        [event for token in tokens_of(dialect, text) for event in stream.push([token])] + stream.finish()
    )
    assert (answer.reasoning, answer.text) == ("Hm. Here it is.", "So. Here you are.")
    stream = dialect.turn().stream(())
    assert (
        Answer.of([*stream.push(tokens_of(dialect, "Here is my idea.")), *stream.finish()]).text == "Here is my idea."
    )


# -- their templates ---------------------------------------------------------------------------------------------------

FORMATS = {
    "SMOLLM3": "hermes",
    "MINISTRAL_3": "mistral-v11",
    "MISTRAL_SMALL_3": "mistral-v3",
    "OLMO_3": "olmo3",
    "GRANITE_3": "granite3",
    "GRANITE_4": "hermes",
    "GEMMA_4": "gemma4",
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_familys_format_is_found_in_its_template(name):
    assert detect(getattr(templates, name), lambda text: False).name == FORMATS[name]


def test_phis_format_is_found_in_its_vocabulary():
    """Its template names neither calls nor a list of tools."""
    markers = FAMILIES["phi4"][1]
    assert detect(templates.PHI_4, markers.__contains__).name == "phi4"
    assert detect(templates.PHI_4, ("<|tool_call|>",).__contains__).name == "grammar"


CALL = {"id": "000000001", "type": "function", "function": {"name": "f", "arguments": {"text": "x"}}}
HISTORY = [
    {"role": "user", "content": "Ask."},
    {"role": "assistant", "content": "Looking.", "tool_calls": [CALL]},
    {"role": "tool", "content": "Found.", "tool_call_id": "000000001"},
    {"role": "assistant", "content": "Said."},
    {"role": "user", "content": "Again."},
]


@pytest.mark.parametrize("name", [*FORMATS, "PHI_4"])
def test_every_template_gets_tools_calls_results_and_turns(name):
    markers = FAMILIES["phi4"][1] if name == "PHI_4" else ()
    dialect = Dialect(tokenizer(getattr(templates, name), markers, (), ""))
    shown = dialect.turn(TOOLS).shown
    messages = dialect.messages([{"role": "system", "content": "Rule."}, *HISTORY], shown)
    text = dialect.tokenizer.render_chat(messages, tools=[tool.shown() for tool in shown])
    ordered = ["Rule.", "Ask.", "Found.", "Said.", "Again."]
    assert all(text.index(one) < text.index(other) for one, other in pairwise(ordered)), text
    assert "Does it." in text
    called = text[text.index("Ask.") : text.index("Found.")]
    assert dialect.format.layout.trigger in called and "f" in called and "x" in called


def test_calls_that_a_template_leaves_out_are_written_into_contents_without_control_tokens():
    """A content cannot have a control token: its letters would teach the model to spell it."""
    dialect = Dialect(tokenizer(templates.GRANITE_3, *FAMILIES["granite3"][1:]))
    assert not dialect.takes.calls
    _, said, result, *_ = dialect.messages(HISTORY, dialect.turn(TOOLS).shown)
    assert said["content"] == 'Looking.\n<tool_call>[{"name": "f", "arguments": {"text": "x"}}]'
    assert "tool_calls" not in said and result["role"] == "tool"
    assert Dialect(tokenizer(templates.GRANITE_4)).takes.calls


def test_tools_are_put_into_the_system_message_where_the_template_reads_them_there():
    dialect = Dialect(tokenizer(templates.PHI_4, FAMILIES["phi4"][1]))
    shown = dialect.turn(TOOLS).shown
    first, *_ = dialect.messages(HISTORY, shown)
    assert first["role"] == "system" and [each["name"] for each in json.loads(first["tools"])] == ["f", "g"]
    first, *_ = dialect.messages([{"role": "system", "content": "Rule."}, *HISTORY], shown)
    assert first["content"] == "Rule." and json.loads(first["tools"])
    assert dialect.messages(HISTORY)[0] == HISTORY[0], "no tools, no system message"
    assert "<|tool|>[{" in dialect.tokenizer.render_chat([first])


def test_a_look_ahead_takes_nothing_and_ends_at_a_mark():
    reader = Reader()
    for piece in ("ab", "cd"):
        reader.feed(piece)
    found = []

    def look():
        found.append((yield from reader.look(3)))
        found.append((yield from reader.look(9)))

    waiting = look()
    next(waiting)
    assert found == [("abc", None)]
    reader.end()
    list(waiting)
    assert found[1][0] == "abcd" and reader.kept == "" and not next_is_end(reader)


def test_every_familys_call_can_be_forced_and_read():
    for name in FAMILIES:
        text = family(name).format.layout.write([("f", {"text": "x"})])
        assert called(read(name, text, choice="required")) == [("f", '{"text": "x"}')], name
