"""A model's format follows from its template and its vocabulary, and a turn gives what a request needs."""

import pytest

from gradus import LLM
from gradus.engine.request import ModelLimits, SamplingParams
from gradus.engine.structured import Structured
from gradus.errors import ConfigError, RequestError
from gradus.text.front_end import FrontEnd
from gradus.text.tools.dialect import Dialect
from gradus.text.tools.events import Answer
from gradus.text.tools.formats import FORMATS, NAMES
from tests.text.tools.builders import CHATML, FAMILIES, PLAIN, TAGS, THINK, TOOLS, called, family, tokenizer, tokens_of

USER = {"role": "user", "content": "go"}
QWEN = tokenizer(CHATML, (*TAGS, *THINK))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_format_is_found_in_the_template(name):
    template, shown, controls = FAMILIES[name]
    found = {"qwen2.5-coder": "hermes"}.get(name, name)  # it has Qwen2.5's own template
    assert Dialect(tokenizer(template, shown, controls)).format.name == found
    assert set(FAMILIES) == set(NAMES)


@pytest.mark.parametrize(
    ("controls", "name"),
    [(("[TOOL_CALLS]",), "mistral-v3"), (("[TOOL_CALLS]", "[ARGS]"), "mistral-v11"), (("<start_of_turn>",), "gemma3")],
)
def test_the_format_is_found_in_the_vocabulary_of_a_template_without_tools(controls, name):
    assert Dialect(tokenizer(PLAIN, (), controls)).format.name == name
    assert Dialect(tokenizer(None, (), controls)).format.name == name


@pytest.mark.parametrize(
    ("model_name", "name"),
    [
        ("Qwen2.5-Coder Qwen2.5 Coder 0.5B Instruct AWQ", "qwen2.5-coder"),  # basename and name of a .gguf file
        ("Qwen/Qwen2.5-Coder-7B-Instruct", "qwen2.5-coder"),
        ("./qwen2.5_coder", "qwen2.5-coder"),
        ("Qwen2.5 0.5B Instruct", "hermes"),
        ("Qwen3-Coder-30B", "hermes"),
        ("", "hermes"),
    ],
)
def test_models_that_share_a_template_are_told_apart_by_name(model_name, name):
    assert Dialect(tokenizer(CHATML, TAGS, model_name=model_name)).format.name == name
    assert Dialect(tokenizer(PLAIN, model_name=model_name)).format.name == "grammar"


def test_the_format_can_be_named():
    assert Dialect(tokenizer(PLAIN), "hermes").format.name == "hermes"
    with pytest.raises(ConfigError, match="tool_format must be one of qwen3-coder, hermes"):
        Dialect(tokenizer(PLAIN), "herms")


def test_a_marker_is_a_token_where_the_vocabulary_has_it_and_text_otherwise():
    assert Dialect(QWEN).markers.keys() == {*TAGS, *THINK}
    assert Dialect(tokenizer(CHATML, ("<tool_call>",))).markers.keys() == {"<tool_call>"}
    for format in FORMATS:
        spelled = format.layout.opening + format.layout.call
        assert spelled.startswith(format.layout.trigger), format.name


# -- reasoning ---------------------------------------------------------------------------------------------------------


def reasoned(dialect, prompt, text):
    stream = dialect.turn(TOOLS).stream(prompt, seed="x")
    return Answer.of([*stream.push(tokens_of(dialect, text)), *stream.finish()])


def test_an_answer_begins_inside_what_the_prompt_opened():
    dialect = Dialect(QWEN)
    chat = QWEN.chat([USER])
    assert not dialect.thoughts_after(chat).inside
    assert dialect.thoughts_after([*chat, *QWEN.encode("<think>\n")]).inside
    assert not dialect.thoughts_after(QWEN.chat([USER], enable_thinking=False)).inside
    answer = reasoned(dialect, [*chat, *QWEN.encode("<think>\n")], "hm\n</think>\n\nSo.")
    assert (answer.reasoning, answer.text) == ("hm", "So.")


def test_what_a_user_writes_opens_nothing():
    dialect = Dialect(QWEN)
    for content in ("What does <think> mean?", "<think>", "</think>"):
        prompt = QWEN.chat([{"role": "user", "content": content}])
        assert not dialect.thoughts_after(prompt).inside
        assert reasoned(dialect, prompt, "It opens.") == Answer("It opens.", "", ())


def test_the_markers_are_found_by_their_text_where_they_are_no_tokens():
    made = tokenizer(CHATML, TAGS)
    dialect = Dialect(made)
    opened = [*made.chat([USER]), *made.encode("<think>\n")]
    assert dialect.thoughts_after(opened).inside and not dialect.thoughts_after(made.chat([USER])).inside
    assert not dialect.thoughts_after(made.chat([USER], enable_thinking=False)).inside
    answer = reasoned(dialect, made.chat([USER]), '<think>a < b\n</think>\n\n<tool_call>{"name": "g"}</tool_call>')
    assert answer.reasoning == "a < b" and called(answer) == [("g", "{}")]


def test_a_lone_end_of_thought_is_dropped_at_the_beginning_and_is_text_later():
    dialect = Dialect(QWEN)
    assert reasoned(dialect, [], "</think>\n\nSo.") == Answer("So.", "", ())
    assert reasoned(dialect, [], "It ends with </think>.").text == "It ends with </think>."
    assert reasoned(dialect, [], "So <think> is a tag.").text == "So <think> is a tag."


def test_thought_without_an_end_is_thought():
    dialect = Dialect(QWEN)
    assert reasoned(dialect, [], '<think>\nI could write <tool_call>{"name": "g"}</tool_call>') == Answer(
        "", 'I could write <tool_call>{"name": "g"}</tool_call>', ()
    )


def test_reasoning_then_text_then_calls():
    answer = reasoned(Dialect(QWEN), [], '<think>\nhm\n</think>\n\nNow:\n<tool_call>\n{"name": "g"}\n</tool_call>')
    assert (answer.reasoning, answer.text, called(answer)) == ("hm", "Now:", [("g", "{}")])


def test_a_model_without_the_markers_has_no_reasoning():
    dialect = Dialect(tokenizer(PLAIN))
    assert dialect.thoughts is None and dialect.thoughts_after([1, 2]) is None


# -- a turn ------------------------------------------------------------------------------------------------------------


def test_without_a_choice_of_tools_nothing_is_shown_and_nothing_is_a_call():
    dialect = Dialect(QWEN)
    turn = dialect.turn(TOOLS, "none")
    text = '<tool_call>\n{"name": "g"}\n</tool_call>'
    stream = turn.stream([])
    assert turn.shown == () and turn.constraint([]) is None
    assert Answer.of([*stream.push(tokens_of(dialect, text)), *stream.finish()]) == Answer(text, "", ())


def test_a_named_tool_is_the_only_one_that_can_be_called_and_all_are_shown():
    turn = Dialect(QWEN).turn(TOOLS, {"type": "tool", "name": "g"})
    assert [tool.name for tool in turn.callable] == ["g"] and [tool.name for tool in turn.shown] == ["f", "g"]


def test_without_parallel_calls_the_first_one_is_the_end():
    dialect = Dialect(QWEN)
    one = '<tool_call>\n{"name": "g"}\n</tool_call>'
    stream = dialect.turn(TOOLS, parallel=False).stream([], seed="x")
    answer = Answer.of([*stream.push(tokens_of(dialect, f"So:\n{one}\n{one} and text")), *stream.finish()])
    assert called(answer) == [("g", "{}")] and answer.text == "So:" and stream.over


def test_a_model_that_was_not_taught_to_call_needs_a_grammar():
    dialect = family("grammar")
    for choice in (None, "auto"):
        with pytest.raises(RequestError, match='tool_choice must be "required", "none" or') as error:
            dialect.turn(TOOLS, choice)
        assert error.value.param == "tool_choice" and "\n" not in str(error.value)
    assert dialect.turn(TOOLS, "required").constraint([]) and dialect.turn((), "auto").constraint([]) is None


def test_a_constraint_and_calls_are_both_kept_or_refused_in_one_line():
    """The constraint is on the text, and a forced answer has none."""
    params = SamplingParams(structured=Structured(json=True))
    turn = Dialect(QWEN).turn(TOOLS, "required")
    assert turn.constrain(params, []).structured.grammar == turn.constraint([]).grammar
    both = Dialect(QWEN).turn(TOOLS, "auto").constrain(params, []).structured
    assert both.kind == "grammar" and "<tool_call>" in both.grammar and "%json {}" in both.grammar
    with pytest.raises(RequestError, match="structured: this model's calls may look like its text; give tools or"):
        family("llama3-json").turn(TOOLS, "auto").constrain(params, [])
    with pytest.raises(RequestError, match="structured: a grammar constrains the whole answer; give"):
        Dialect(QWEN).turn(TOOLS).constrain(SamplingParams(structured=Structured(grammar='start: "a"')), [])


def test_a_constraint_without_calls_stays_unless_the_model_reasons():
    params = SamplingParams(structured=Structured(json=True, whitespace="compact"))
    assert family("gemma3").turn().constrain(params, []) is params
    reasoned = Dialect(QWEN).turn().constrain(params, []).structured
    assert reasoned.whitespace == "compact" and "<think>" in reasoned.grammar
    own = SamplingParams(structured=Structured(grammar='start: "a"'))
    assert Dialect(QWEN).turn().constrain(own, []) is own
    with pytest.raises(RequestError, match="this prompt begins reasoning; switch that off"):
        Dialect(QWEN).turn().constrain(own, QWEN.encode("<think>\n"))


# -- the front ends ----------------------------------------------------------------------------------------------------


def test_a_front_ends_prompt_shows_the_tools():
    front_end = FrontEnd(QWEN, ModelLimits(300, 4096), "model", lambda *_: ())
    prompt = front_end.chat_prompt([USER], tools=TOOLS, enable_thinking=False)
    text = QWEN.decode(prompt, skip_special=False)
    assert '"name": "f"' in text and text.endswith("<think>\n\n</think>\n\n")
    assert front_end.chat_prompt([USER], tools=front_end.dialect.turn(TOOLS).shown, enable_thinking=False) == prompt
    assert front_end.chat_prompt([USER], tools=[]) == front_end.chat_prompt([USER]) == QWEN.chat([USER])
    named = FrontEnd(QWEN, ModelLimits(300, 4096), "model", lambda *_: (), tool_format="gemma3")
    assert named.dialect.format.name == "gemma3"


def test_a_front_end_without_a_tokenizer_says_so():
    with pytest.raises(RequestError, match="without a tokenizer"):
        FrontEnd(None, ModelLimits(300, 4096), "model", lambda *_: ()).chat_prompt([USER], tools=TOOLS)


def test_an_engines_streamed_and_whole_answers_are_one():
    """Random weights say nothing sensible: what is streamed and what is read at the end still agree."""
    with LLM("random:tiny-llama", device="cpu") as llm:
        turn = llm.front_end.dialect.turn(TOOLS, "none")
        prompt = llm.chat_prompt([USER], tools=turn.shown)
        params = SamplingParams(max_tokens=24, temperature=1.0, seed=1, stop=["q"])
        stream, events, completion = turn.stream(prompt, params, seed="x"), [], None
        for delta in llm.stream(prompt, params):
            events += stream.read(delta)
            completion = delta.completion
        assert Answer.of(events, completion.finish_reason) == turn.answer(completion, prompt, params, seed="x")
        assert Answer.of(events).text == completion.text
