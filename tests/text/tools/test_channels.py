"""gpt-oss: an answer in messages, as it is written, prompted and constrained."""

import json

import pytest

from gradus.engine.request import ModelLimits, SamplingParams
from gradus.engine.structured import Structured
from gradus.structured import Grammars
from gradus.text.front_end import FrontEnd
from gradus.text.tools.channels import MARKERS
from gradus.text.tools.dialect import Dialect
from gradus.text.tools.events import Answer
from tests.text.templates import GPT_OSS
from tests.text.tools.builders import TOOLS, called, tokenizer, tokens_of

GPT = tokenizer(GPT_OSS, (), MARKERS)
USER = {"role": "user", "content": "Ask."}
THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>"
CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"text": "x"}<|call|>'


def dialect() -> Dialect:
    return Dialect(GPT)


def prompt_of(*messages, **settings) -> list[int]:
    found = dialect()
    return list(GPT.chat(found.messages(messages or [USER]), **settings))


def answer(text, size=None, tools=TOOLS, choice=None, prompt=None):
    found = dialect()
    stream = found.turn(tools, choice).stream(prompt_of() if prompt is None else prompt, seed="x")
    tokens = tokens_of(found, text)
    size = size or max(1, len(tokens))
    events = [event for at in range(0, len(tokens), size) for event in stream.push(tokens[at : at + size])]
    return Answer.of([*events, *stream.finish()]), stream


def read(text, **options):
    """Read an answer, which is the same however its tokens are cut."""
    one, *others = (answer(text, size, **options)[0] for size in (None, 1, 2, 7))
    assert all(other == one for other in others)
    return one


# -- reading -----------------------------------------------------------------------------------------------------------


def test_the_format_is_found_in_the_template_and_in_the_vocabulary():
    assert dialect().format.name == Dialect(tokenizer(None, (), MARKERS)).format.name == "harmony"


def test_channels_are_reasoning_text_and_calls():
    text = (
        "<|channel|>analysis<|message|>Where? <b>\n<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>I look it up.<|end|>"
        f"<|start|>assistant{CALL}"
    )
    found = read(text)
    assert (found.reasoning, found.text, called(found)) == ("Where? <b>", "I look it up.", [("f", '{"text": "x"}')])
    assert read(f"{THOUGHT}{FINAL}So.\n<|return|>") == Answer("So.\n", "Hm.", ())


def test_messages_of_one_kind_are_paragraphs():
    text = f"{THOUGHT}{THOUGHT}<|channel|>commentary<|message|>First.<|end|><|start|>assistant{FINAL}Then.<|return|>"
    found = read(text)
    assert (found.reasoning, found.text) == ("Hm.\n\nHm.", "First.\n\nThen.")


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.f<|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.f json<|message|>",
        "<|channel|>commentary to=functions.f code<|message|>",
        "<|channel|>commentary to=functions.f<|message|>",
        "<|channel|>analysis to=functions.f <|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.f<|channel|>commentary <|constrain|>json<|message|>",
        "<|channel|>commentary to=f <|constrain|>json<|message|>",
        " to=functions.f<|channel|>commentary json<|message|>",
        " to=functions.f<|channel|>commentary <|constrain|>json<|message|>",
        "to=functions.f<|channel|>commentary<|message|>",
    ],
)
@pytest.mark.parametrize("end", ["<|call|>", "<|end|>", ""])
@pytest.mark.parametrize("before", ["", THOUGHT])
def test_a_call_is_read_whatever_form_its_header_has(header, end, before):
    found = read(f'{before}{header}{{"text": "é", "map": {{"a": [1]}}}}{end}')
    assert called(found) == [("f", '{"text": "é", "map": {"a": [1]}}')] and found.calls[0].complete
    assert (found.text, found.reasoning) == ("", "Hm." if before else "")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<|channel|>commentary to=functions.nope json<|message|>{}<|call|>", "commentary to=functions.nope json{}"),
        ("<|channel|>commentary to=functions.f json<|message|>oops<|call|>", "commentary to=functions.f jsonoops"),
        ("<|channel|>commentary to=functions.f json<|message|><|call|>", "commentary to=functions.f json"),
    ],
)
def test_what_is_no_call_is_text(text, shown):
    assert read(text) == Answer(shown, "", ())


def test_without_tools_a_call_is_text():
    assert read(CALL, choice="none").text == 'commentary to=functions.f json{"text": "x"}'


def test_a_tool_that_nobody_declared_is_part_of_the_thoughts_it_is_called_in():
    found = read(f"<|channel|>analysis to=python code<|message|>print(1)<|call|>{FINAL}So.")
    assert (found.reasoning, found.text) == ("print(1)", "")


def test_text_outside_of_messages_is_text():
    """A client's own grammar knows no channels."""
    assert read('{"city": "Ulm"}').text == '{"city": "Ulm"}'
    assert read(" to be or not").text == " to be or not"
    assert read("to=functions").text == "to=functions"
    assert read(f"{THOUGHT} 42").text == " 42"


def test_markers_that_are_spelled_are_text():
    """Here the tokenizer has no such tokens, so all letters arrive as letters."""
    found = Dialect(tokenizer(GPT_OSS, (), ()), "harmony")
    text = "<|channel|>final<|message|>So."
    stream = found.turn(TOOLS).stream((), seed="x")
    assert Answer.of([*stream.push(tokens_of(found, text)), *stream.finish()]).text == text


@pytest.mark.parametrize(
    "end", ["<|return|>", "<|call|>", "<|end|><|start|>user<|message|>", "<|end|><|start|>functions.f"]
)
def test_an_answer_is_over_where_its_turn_is(end):
    found, stream = answer(f"{FINAL}So.{end}And more<|end|>")
    assert found.text == "So." and stream.over


def test_a_call_that_breaks_off_is_not_complete():
    (call,) = read(CALL[: CALL.index('x"') + 1]).calls
    assert (call.arguments, call.complete) == ('{"text": "x', False)


@pytest.mark.parametrize(
    "text", ["<|channel|>", "<|channel|>ana", "<|channel|>analysis", "<|channel|>commentary to=fun"]
)
def test_half_a_header_is_not_shown(text):
    assert read(text) == Answer("", "", ())


def test_a_header_of_no_channel_is_shown():
    assert read("<|channel|>Well, a text.<|end|>").text == "Well, a text."


def test_tokens_of_reasoning_are_counted_with_their_markers():
    _, stream = answer(f"{THOUGHT}{FINAL}So.", size=1)
    assert stream.thought_tokens == len("Hm.") + 2


# -- what the prompt has begun -----------------------------------------------------------------------------------------


def test_an_answer_goes_on_where_the_prompt_ends():
    assert GPT.decode(prompt_of(), skip_special=False).endswith("<|start|>assistant")
    for begun, text, expected in [
        ("<|channel|>analysis<|message|>Hm", f"m.<|end|><|start|>assistant{FINAL}So.", ("m.", "So.")),
        ("<|channel|>final<|message|>S", "o.", ("", "o.")),
        ("<|channel|>fin", "al<|message|>So.", ("", "So.")),
    ]:
        prompt = [*prompt_of(), *GPT.encode(begun, special_tokens=False)]
        found = read(text, prompt=prompt)
        assert (found.reasoning, found.text) == expected
    thoughts = [*prompt_of(), *GPT.encode("<|channel|>analysis<|message|>Hm", special_tokens=False)]
    assert dialect().thoughts_after(thoughts).inside and not dialect().thoughts_after(prompt_of()).inside


def test_a_prompt_that_ends_in_another_turn_begins_nothing():
    prompt = GPT.encode("<|start|>user<|message|>Go on", special_tokens=False)
    assert read(f"{FINAL}So.", prompt=prompt).text == "So."


# -- the chat template -------------------------------------------------------------------------------------------------

HISTORY = [
    {"role": "system", "content": "Rule."},
    USER,
    {
        "role": "assistant",
        "content": "I look.",
        "reasoning_content": "Hm.",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"text": "x"}'}},
            {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ],
    },
    {"role": "tool", "tool_call_id": "b", "content": "Second."},
    {"role": "tool", "tool_call_id": "a", "content": "First."},
]


def test_calls_and_results_go_back_as_the_template_writes_them():
    found = dialect()
    turn = found.turn(TOOLS)
    messages = found.messages(HISTORY, turn.shown)
    text = GPT.render_chat(messages, tools=found.shown(turn.shown), reasoning_effort="high")
    assert "Reasoning: high" in text and "# Instructions\n\nRule." in text and "// Does it.\ntype f = (_: {" in text
    assert "// \ntype g = () => any;" in text, "the template refuses a tool without a description"
    assert text[text.index("<|start|>user") :] == (
        "<|start|>user<|message|>Ask.<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>Hm.\n\nI look.<|end|>"
        '<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"text": "x"}<|call|>'
        '<|start|>functions.f to=assistant<|channel|>commentary<|message|>"First."<|end|>'
        "<|start|>assistant to=functions.g<|channel|>commentary json<|message|>{}<|call|>"
        '<|start|>functions.g to=assistant<|channel|>commentary<|message|>"Second."<|end|>'
        "<|start|>assistant"
    )


def test_a_call_of_the_template_is_read_as_the_model_would_write_it():
    """Models copy calls of their prompt."""
    text = GPT.render_chat(dialect().messages(HISTORY[:3]), add_generation_prompt=False)
    written = text[text.index("assistant to=") + len("assistant") :].split("<|call|>")[0]
    assert called(read(written)) == [("f", '{"text": "x"}')]


def test_thoughts_of_a_turn_that_is_over_are_the_templates_to_drop():
    messages = [USER, {"role": "assistant", "content": "So.", "reasoning": "Hm."}, USER]
    text = GPT.render_chat(dialect().messages(messages))
    assert "<|channel|>final<|message|>So.<|end|>" in text and "Hm." not in text


# -- grammars ----------------------------------------------------------------------------------------------------------

STRICT = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {"count": {"type": "integer"}},
                "required": ["count"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "g"}},
]
GRAMMARS = Grammars(GPT.to_json, GPT.vocab_size, GPT.eos_token_ids)
RIGHT = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"count": 1}<|call|>'


def accepts(constraint, text, ends=True):
    return GRAMMARS.matcher(constraint).accept([*tokens_of(dialect(), text), *([GPT.eos_token_ids[0]] if ends else [])])


def test_a_forced_call_may_follow_reasoning_and_obeys_its_schema():
    for choice in ("required", {"type": "tool", "name": "f"}):
        constraint = dialect().turn(STRICT, choice).constraint(prompt_of())
        for right in (
            RIGHT, THOUGHT + RIGHT, RIGHT.removesuffix("<|call|>"), RIGHT.replace(" <|constrain|>", " "),
            ' to=functions.f<|channel|>commentary json<|message|>{"count": 1}<|call|>',
        ):  # fmt: skip
            assert accepts(constraint, right), right
        for wrong in (
            "", "So.", f"{FINAL}So.", f"{THOUGHT}{FINAL}So.", RIGHT.replace("1}", '"1"}'),
            RIGHT.replace(".f", ".nope"), RIGHT + RIGHT, RIGHT + "So.",
        ):  # fmt: skip
            assert not accepts(constraint, wrong), wrong
    named = dialect().turn(STRICT, {"type": "tool", "name": "g"}).constraint(prompt_of())
    assert not accepts(named, RIGHT) and accepts(named, RIGHT.replace(".f", ".g"))


def test_headers_alone_need_masks_in_a_free_answer():
    constraint = dialect().turn(STRICT).constraint(prompt_of())
    assert constraint.lazy is not None
    matcher, masked = GRAMMARS.matcher(constraint), []
    for token in tokens_of(dialect(), f"{THOUGHT}{FINAL}So."):
        masked.append(matcher.masks)
        assert matcher.accept([token])
    assert sum(masked) == len("analysis") + 1 + len("assistant") + 1 + len("final") + 1
    assert accepts(constraint, f"{THOUGHT}{RIGHT}")
    for wrong in ('{"count": "1"}', '{"count": 1, "more": 2}'):
        assert not accepts(constraint, RIGHT.replace('{"count": 1}', wrong))
    for wrong in ("<|channel|>commentary to=functions.nope", "<|channel|>other", " to=functions.nope"):
        assert not accepts(constraint, wrong, ends=False)


def test_a_text_of_a_form_stands_in_the_final_channel():
    """Reasoning before it is free, and a call may replace it."""
    form = SamplingParams(structured=Structured(json_schema={"enum": ["Ulm"]}))
    alone = dialect().turn().constrain(form, prompt_of()).structured
    both = dialect().turn(STRICT).constrain(form, prompt_of()).structured
    for constraint in (alone, both):
        assert accepts(constraint, f'{FINAL}"Ulm"') and accepts(constraint, f'{THOUGHT}{FINAL}"Ulm"')
        assert not accepts(constraint, '"Ulm"') and not accepts(constraint, f'{FINAL}"Oslo"')
    assert accepts(both, THOUGHT + RIGHT) and not accepts(alone, RIGHT)
    assert json.loads(read(f'{THOUGHT}{FINAL}"Ulm"').text) == "Ulm"


def test_a_text_that_the_prompt_has_begun_is_constrained_as_it_stands():
    form = SamplingParams(structured=Structured(regex="lm"))
    begun = [*prompt_of(), *GPT.encode("<|channel|>final<|message|>U", special_tokens=False)]
    assert dialect().turn().constrain(form, begun) is form
    inside = [*prompt_of(), *GPT.encode("<|channel|>analysis<|message|>Hm", special_tokens=False)]
    constraint = dialect().turn().constrain(form, inside).structured
    assert accepts(constraint, f"m.<|end|><|start|>assistant{FINAL}lm") and not accepts(constraint, "lm")


# -- the front end -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "said"),
    [("none", "low"), ("minimal", "low"), ("low", "low"), ("medium", "medium"), ("xhigh", "high"), ("max", "high")],
)
def test_an_effort_that_the_model_does_not_know_is_the_nearest_that_it_does(asked, said):
    front_end = FrontEnd(GPT, ModelLimits(300, 4096), "model", lambda *_: ())
    text = GPT.decode(front_end.chat_prompt([USER], reasoning_effort=asked), skip_special=False)
    assert f"Reasoning: {said}\n" in text
