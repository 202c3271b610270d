"""Where an answer with calls ends: read as a text, found token by token, and ended in an engine."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus import LLM
from gradus.engine.logprobs import Logprobs
from gradus.engine.request import ModelLimits, SamplingParams
from gradus.engine.sequence import Output, Timings
from gradus.errors import RequestError
from gradus.text.front_end import FrontEnd
from gradus.text.tools.calls import MAX_CALLS, MOST_CALLS
from gradus.text.tools.dialect import Dialect
from gradus.text.tools.events import Answer, joined
from tests.pairwise import each_once, pairwise
from tests.text.tools.builders import FAMILIES, TOOLS, called, family, tokens_of
from tests.text.tools.test_cuts import answers

TIMINGS = Timings(queued_s=0.0, ttft_s=0.1, total_s=0.2, tokens=3)


def call(**arguments):
    return f'<tool_call>\n{{"name": "f", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


def read(text, choice="auto", name="hermes", **options):
    """Read a text. Returns the answer, and whether it was over before its end."""
    dialect = family(name)
    stream = dialect.turn(TOOLS, choice, **options).stream([], seed="x")
    events = stream.push(tokens_of(dialect, text))
    return Answer.of([*events, *stream.finish()], "stop"), stream.over


# -- reading -----------------------------------------------------------------------------------------------------------


def test_a_call_that_repeats_the_one_before_ends_the_answer_and_is_not_reported():
    answer, over = read("\n".join([call(count=1), call(count=2), call(count=2), call(count=3), "text"]))
    assert called(answer) == [("f", '{"count": 1}'), ("f", '{"count": 2}')]
    assert over and answer.text == "" and answer.finish_reason == "tool_calls"


def test_a_call_that_repeats_the_one_before_in_other_words_is_reported_and_ends_the_answer():
    answer, over = read("\n".join([call(count=1, text="é"), call(text="\u00e9", count=1), call(count=2)]))
    assert over and [json.loads(each.arguments) for each in answer.calls] == [{"count": 1, "text": "é"}] * 2


def test_a_call_that_comes_again_later_is_another_call():
    answer, over = read("\n".join([call(count=1), call(count=2), call(count=1)]))
    assert len(answer.calls) == 3 and not over


def test_another_function_with_the_same_arguments_is_another_call():
    other = call().replace('"f"', '"g"')
    answer, over = read(f"{call()}\n{other}")
    assert called(answer) == [("f", "{}"), ("g", "{}")] and not over
    assert called(read(f"{call()}\n{other}\n{other}")[0]) == called(answer)


@pytest.mark.parametrize("name", [name for name in FAMILIES if family(name).format.layout.between is not None])
def test_a_repetition_ends_the_answer_in_every_format_that_has_several_calls(name):
    text = family(name).format.layout.write([("f", {"text": "a"}), ("f", {"text": "a"}), ("f", {"text": "b"})])
    answer, over = read(text, name=name)
    assert called(answer) == [("f", '{"text": "a"}')] and over and answer.text == ""


def test_a_call_that_may_still_repeat_the_one_before_waits_and_is_reported_when_it_differs():
    dialect = family("hermes")
    stream = dialect.turn(TOOLS).stream([], seed="x")
    stream.push(tokens_of(dialect, call(text="Ulm") + '\n<tool_call>\n{"name": "f", "arguments": {"text": "Ul'))
    late = stream.push(tokens_of(dialect, "m"))
    assert late == []
    start, arguments = stream.push(tokens_of(dialect, "!"))
    assert (start.name, arguments.delta) == ("f", '{"text": "Ulm!')


@pytest.mark.parametrize("cut", ['{"te', '{"text": "Ul', '{"text": "Ulm"'])
def test_a_call_that_waits_where_the_answer_breaks_off_is_an_incomplete_call(cut):
    answer, _ = read(call(text="Ulm") + '\n<tool_call>\n{"name": "f", "arguments": ' + cut)
    assert [each.complete for each in answer.calls] == [True, False] and answer.text == ""


@pytest.mark.parametrize("cut", ["<tool_call>", '<tool_call>\n{"na', '<tool_call>\n{"name": "f", "arguments": {'])
def test_a_second_call_that_breaks_off_before_its_arguments_is_no_call(cut):
    for first in (call(count=1), call()):
        answer, _ = read(f"{first}\n{cut}")
        assert len(answer.calls) == 1 and answer.calls[0].complete and answer.text.strip() == cut


def test_a_call_that_waits_and_goes_wrong_is_text():
    answer, over = read(call(count=12) + '\n<tool_call>\n{"name": "f", "arguments": {"count": oops}}\n</tool_call>')
    assert len(answer.calls) == 1 and "oops" in answer.text and not over


def test_the_last_permitted_call_ends_the_answer():
    text = "\n".join(call(count=number) for number in range(40))
    for options, most in (({}, MAX_CALLS), ({"max_calls": 3}, 3), ({"max_calls": 99}, 40), ({"parallel": False}, 1)):
        answer, over = read(text, **options)
        assert len(answer.calls) == most and answer.text == "" and over == (most < 40)
    assert MAX_CALLS == 16


@pytest.mark.parametrize("most", [0, MOST_CALLS + 1, True, "3"])
def test_the_limit_of_calls_is_bounded(most):
    with pytest.raises(RequestError, match="max_calls must be a whole number between 1 and 128"):
        family("hermes").turn(TOOLS, max_calls=most)


def test_text_behind_a_call_ends_an_answer_that_must_be_calls_and_no_other():
    text = f"{call(count=1)}\n{call(count=2)}\nThat is all.\n{call(count=3)}"
    answer, over = read(text, "required")
    assert len(answer.calls) == 2 and answer.text == "" and over
    answer, over = read(text)
    assert len(answer.calls) == 3 and answer.text.strip() == "That is all." and not over


def test_behind_a_forced_call_only_what_its_grammar_knows_is_a_call():
    answer, over = read(call(count=1) + '\n{"name": "f", "arguments": {"count": "x"}}', "required", "qwen2.5-coder")
    assert called(answer) == [("f", '{"count": 1}')] and over
    assert len(read(call(count=1) + '\n{"name": "f", "arguments": {}}', "auto", "qwen2.5-coder")[0].calls) == 2


# -- tokens ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, choice", each_once([*FAMILIES], ["auto", "required", "one"]))
@given(data=st.data())
def test_the_tokens_up_to_the_end_say_all_that_the_answer_says(name, choice, data):
    dialect = family(name)
    if not dialect.format.free:
        choice = "required"
    turn = dialect.turn(TOOLS, "auto" if choice == "one" else choice, parallel=choice != "one")
    tokens = tokens_of(dialect, data.draw(answers(name)))
    ending = turn.ending([])
    count = next((at + 1 for at, token in enumerate(tokens) if ending(token)), None)

    def heard(tokens):
        stream = turn.stream([], seed="x")
        return stream, joined([*stream.push(tokens), *stream.finish()])

    stream, events = heard(tokens)
    if count is not None:
        assert stream.over and heard(tokens[:count])[1] == events
        before = turn.stream([], seed="x")
        before.push(tokens[: count - 1])
        assert not before.over, "no token earlier"


# -- the front end -----------------------------------------------------------------------------------------------------


class Elsewhere:
    """A front end whose core runs elsewhere, and hears of samples that are to end."""

    def __init__(self, **options):
        self.dialect = family("hermes")
        limits = ModelLimits(400, 4096, (257,), structured=True)
        self.ended = []
        self.front_end = FrontEnd(self.dialect.tokenizer, limits, "m", lambda *one: self.ended.append(one) or ())

    def begin(self, turn=None, **params):
        turn = turn or self.dialect.turn(TOOLS)
        request = self.front_end.request([1], SamplingParams(**params), None, "r", turn)
        self.front_end.open(request, turn=turn)
        return request

    def say(self, text, **ending):
        tokens = tuple(tokens_of(self.dialect, text)) if isinstance(text, str) else text
        (delta,) = self.front_end.read([Output("r", 0, tokens, **ending)])
        return delta


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_a_sample_ends_with_the_token_that_ends_its_calls_however_many_a_step_brings(size):
    core = Elsewhere()
    core.begin()
    text = f"So: {call(count=1)}\n{call(count=1)} and more"
    tokens = tokens_of(core.dialect, text)
    end = text.rindex("}") + 1 - 2 * (len("<tool_call>") - 1) - (len("</tool_call>") - 1)  # markers are tokens
    said = []
    for at in range(0, len(tokens), size):
        said += core.say(tuple(tokens[at : at + size])).token_ids
    assert said == tokens[:end] and core.ended == [("r", 0, "stop")]
    done = core.say("", finish_reason="stop", timings=TIMINGS).completion
    assert (done.finish_reason, done.stop_reason, list(done.token_ids)) == ("stop", None, tokens[:end])
    assert done.text == text[: text.rindex("}") + 1]


def test_a_sample_that_the_engine_ended_in_the_same_step_ended_with_its_calls():
    core = Elsewhere()
    core.begin(core.dialect.turn(TOOLS, parallel=False), logprobs=0)
    text = call(count=1)
    tokens = (*tokens_of(core.dialect, text), 257)
    logprobs = Logprobs(tuple(bytes([at]) for at in range(len(tokens))))
    (last,) = core.front_end.read(
        [Output("r", 0, tokens, logprobs, finish_reason="stop", stop_reason=257, timings=TIMINGS)]
    )
    assert (last.completion.finish_reason, last.completion.stop_reason) == ("stop", None)
    assert last.completion.token_ids == last.token_ids == tokens[: len(tokens) - 3]
    assert len(last.completion.logprobs) == len(last.logprobs) == len(last.token_ids) and core.ended == []
    answer = core.dialect.turn(TOOLS, parallel=False).answer(last.completion, [1])
    assert called(answer) == [("f", '{"count": 1}')] and answer.finish_reason == "tool_calls"


def test_an_answer_that_is_cut_says_so():
    core = Elsewhere()
    core.begin()
    done = core.say(call(count=1) + "\n<tool", finish_reason="length", timings=TIMINGS).completion
    assert done.finish_reason == "length"


def test_no_sample_ends_before_its_least_number_of_tokens():
    core = Elsewhere()
    core.begin(min_tokens=100)
    text = f"{call(count=1)}\n{call(count=1)}" + " and more" * 20
    delta = core.say(text)
    assert len(delta.token_ids) == 100 and core.ended == [("r", 0, "stop")]


def test_a_stop_string_within_a_call_comes_first():
    core = Elsewhere()
    core.begin(core.dialect.turn(TOOLS, parallel=False), stop=["count"])
    delta = core.say(call(count=1))
    assert delta.text.endswith('{"') and core.ended == [("r", 0, "stop")]


@pytest.mark.parametrize("choice", ["required", "auto"])
def test_parameters_that_have_the_grammar_already_stay_as_they_are(choice):
    turn = family("hermes").turn([{**TOOLS[1], "strict": True, "type": "custom"}], choice, envelope=True)
    params = turn.constrain(SamplingParams(), [1])
    assert params.structured is not None and turn.constrain(params, [1]) is params


def test_what_is_no_turn_is_refused_in_one_line():
    core = Elsewhere()
    with pytest.raises(RequestError, match=r"turn must be what front_end.dialect.turn\(…\) returns, or None, got 'au"):
        core.front_end.request([1], turn="auto")


# -- an engine ---------------------------------------------------------------------------------------------------------

PLACES = {
    "type": "object",
    "properties": {"place": {"enum": ["Ulm", "Bonn"]}},
    "required": ["place"],
    "additionalProperties": False,
}


DRAFTS = {"speculate": "ngram", "drafts": 3}


@pytest.fixture(scope="module", params=[{}, DRAFTS], ids=["plain", "drafts"])
def llm(request):
    with LLM("random:tiny-llama", device="cpu", **request.param) as made:
        yield made


@pytest.mark.parametrize(
    "llm, choice, temperature",
    pairwise([{}, DRAFTS], ["required", {"type": "tool", "name": "go"}], [0.0, 1.0]),
    indirect=["llm"],
)
def test_a_forced_answer_of_a_model_that_knows_no_end_ends_by_itself(llm, choice, temperature):
    """Random weights never end by themselves: here it is the reader that ends the samples."""
    dialect = Dialect(llm.tokenizer, "hermes")
    turn = dialect.turn([{"name": "go", "input_schema": PLACES}], choice)
    prompt = llm.tokenizer.encode("go")
    params = SamplingParams(max_tokens=200, n=3, seed=3, temperature=temperature)
    whole = llm.generate([prompt], params, turn=turn)
    for completion in whole:
        answer = turn.answer(completion, prompt, params, seed="x")
        assert completion.finish_reason == "stop" and len(completion.token_ids) < 200
        assert answer.finish_reason == "tool_calls" and answer.text == ""
        assert all(json.loads(each.arguments)["place"] in ("Ulm", "Bonn") for each in answer.calls)
    last = [delta.completion for delta in llm.stream(prompt, params, turn=turn) if delta.completion]
    assert {each.index: each.token_ids for each in last} == {each.index: each.token_ids for each in whole}
    assert not llm.front_end.open_requests
    for _ in range(3):  # the device may still be busy with a step of theirs
        assert llm.step() == []
    assert not llm.has_work
    llm.check()


def test_a_submitted_request_ends_with_its_calls(llm):
    turn = Dialect(llm.tokenizer, "hermes").turn([{"name": "go", "input_schema": PLACES}], "required")
    llm.submit("go", SamplingParams(max_tokens=200), turn=turn)
    last = [delta.completion for _ in range(200) if llm.has_work for delta in llm.step() if delta.completion]
    assert [each.finish_reason for each in last] == ["stop"]
