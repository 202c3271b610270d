"""p11's automata are Python's `re`, its masks are what trying every token gives, and its answers match in any company.

Unlike the promises of its parts, these tests take whole expressions and whole engines.
"""

import re
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradus import LLM
from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.engine.structured import Structured
from gradus.errors import RequestError
from phases.p11_structured_output import engine as p11
from phases.p11_structured_output.dfa import Dfa, dfa_of
from phases.p11_structured_output.grammars import MOST_KEPT, Grammars
from phases.p11_structured_output.masks import legal, tree_of
from phases.p11_structured_output.nfa import utf8
from phases.p11_structured_output.parsing import Parser
from tests.phases.conftest import next_logits, of, tiny_model
from tests.phases.drive import run, step, submit

# -- expressions -------------------------------------------------------------------------------------------------------

ALPHABET = 'ab"-] \n0Zé€😀'
ATOMS = [*"abZ0é€😀", " ", r"\.", r"\d", r"\w", r"\s", r"\D", r"\W", r"\S", ".", r"\n", r"\x41", r"\u20ac", r"\]"]
ATOMS += [
    "[ab]",
    "[^ab]",
    "[a-z0]",
    r"[^\d\s]",
    "[é-€]",
    r"[^\u0080-\uffff]",
    r"[\-a]",
    "[-a]",
    "[a-]",
    r"[^\n]",
    "[€-😀]",
]
REPEATS = ["*", "+", "?", "{2}", "{0,2}", "{1,}", "{0}", "{1,3}"]

atoms = st.sampled_from(ATOMS)


def larger(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    grouped = st.one_of(atoms, parts.map("({})".format), parts.map("(?:{})".format))
    return st.one_of(
        st.tuples(grouped, st.sampled_from(REPEATS)).map("".join),
        st.lists(parts, min_size=1, max_size=3).map("".join),
        st.lists(parts, min_size=1, max_size=3).map("|".join),
        st.just(""),
    )


expressions = st.recursive(atoms, larger, max_leaves=8)


@cache
def automaton(expression: str) -> Dfa:
    return dfa_of(Parser(expression).whole())


def matches(dfa: Dfa, text: bytes) -> bool:
    state = dfa.follow(0, text)
    return state is not None and dfa.accepting[state]


@of("p11")
@given(expression=expressions, data=st.data())
def test_an_automaton_matches_what_the_expression_matches(phase, expression, data):
    texts = st.one_of(st.text(ALPHABET, max_size=6), st.from_regex(re.compile(expression, re.ASCII), fullmatch=True))
    text = data.draw(texts.filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text)))
    wanted = re.fullmatch(expression, text, re.ASCII) is not None
    found = matches(automaton(expression), text.encode())
    assert found == wanted, f"{expression!r} and {text!r}: re says {wanted}, the automaton {found}"


@of("p11")
@given(expression=expressions)
def test_from_every_state_some_bytes_lead_to_a_match(phase, expression):
    dfa = automaton(expression)
    good = {state for state, accepts in enumerate(dfa.accepting) if accepts}
    while more := {s for s, steps in enumerate(dfa.steps) if s not in good and good & set(steps.values())}:
        good |= more
    assert len(good) == len(dfa.steps)


@of("p11")
@given(low=st.characters(), high=st.characters())
def test_a_range_of_characters_is_its_bytes_and_no_others(phase, low, high):
    low, high = sorted((low, high))
    if low < "\ud800" <= high:
        high = "\ud7ff"
    runs = list(utf8(ord(low), ord(high)))
    count = sum(int(np.prod([last - first + 1 for first, last in each])) for each in runs)
    assert count == ord(high) - ord(low) + 1
    for each in runs:
        for text in product(*each):
            assert low <= bytes(text).decode() <= high


@of("p11")
@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("a(?=b)", "(? that is not (?: at character 2"),
        (r"\bfoo", r"\b at character 2"),
        (r"(a)\1", r"\1 at character 5"),
        ("^a$", "a ^ in this place"),
        ("(a", "a ( without its )"),
        ("a)", "a ) without its ("),
        ("[]", "a class without a character"),
        (r"[^\s\S]", "a class without a character"),
        ("[a", "an end in the middle"),
        ("a\\", "an end in the middle"),
        ("[b-a]", "a range that does not go"),
        (r"[\d-z]", "a range that does not go"),
        (r"\ud800", "half a surrogate pair at character 6"),
        ("a{3,2}", "a repetition that does not go from a number to a larger one"),
        ("a{1001}", "1000 at most"),
        ("a*?", "a second repetition"),
        ("*a", "a * in this place"),
        ("a{,3}", "a { in this place"),
        ("(" * 51 + "a" + ")" * 51, "more than 50 groups"),
        ("(a{1000}){1000}", "at most 50,000 states"),
        ("(a|b)*a(a|b){12}", "at most 4,096 states"),
    ],
)
def test_what_no_automaton_follows_is_refused_in_a_line(phase, expression, said):
    with pytest.raises(RequestError) as caught:
        Grammars([b"a"], ()).masks(Structured(regex=expression))
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert caught.value.param.startswith("structured")


# -- masks -------------------------------------------------------------------------------------------------------------

pieces = st.lists(st.sampled_from([bytes([byte]) for byte in ALPHABET.encode()]), max_size=4).map(b"".join)
vocabularies = st.lists(st.one_of(pieces, st.text(ALPHABET, max_size=3).map(str.encode)), max_size=40)


@of("p11")
@given(expression=expressions, vocabulary=vocabularies, data=st.data())
def test_a_mask_is_what_trying_every_token_gives(phase, expression, vocabulary, data):
    dfa = automaton(expression)
    state = data.draw(st.integers(0, len(dfa.steps) - 1))
    tried = [t for t, text in enumerate(vocabulary) if text and dfa.follow(state, text) is not None]
    assert sorted(legal(tree_of(vocabulary), dfa, state)) == tried


# -- engines -----------------------------------------------------------------------------------------------------------

SHAPE = "tiny-llama"
SIZE = tiny_model(SHAPE).config.vocab_size
EOS = 3
WORDS = ["ab", "abc", "cab", '"a', '", "', "12", "00", "yes", "no", "ma", "yb", "é", "🙂", "lue"]
VOCABULARY = [bytes([token]) if token != EOS else b"" for token in range(256)]
VOCABULARY += [word.encode() for word in WORDS] + [b"\xc3", "🙂".encode()[1:]]
VOCABULARY += [b""] * (SIZE - len(VOCABULARY))  # of the model's, but no token of the tokenizer
LIMITS = ModelLimits(SIZE, 128, (EOS,), structured=True)
ASKED: list[dict[str, Any]] = [
    {"regex": r'\{"id": [1-9]\d{1,3}, "tags": \["[a-cé]{1,6}"(, "[a-c]{2,5}")?\]\}'},
    {"choice": ["yes", "no", "maybe", "yes indeed", "🙂🙂"]},
    {"regex": r"[^\x00-\x1f]{5,12}"},
    {"regex": "(ab|cab|🙂){3,6}"},
]


def engine(max_sequences: int = 3, **settings: int) -> Engine:
    options = EngineOptions(LIMITS, max_sequences, vocabulary=lambda: VOCABULARY, **settings)
    return p11.build(tiny_model(SHAPE), options)


def asked(number: int, name: str | None = None, prompt: int = 4, **params: Any) -> Request:
    given = {"max_tokens": 60, "structured": ASKED[number], **params}
    return Request.create(name or f"r{number}", [65 + number] * prompt, SamplingParams(**given), LIMITS)


def text_of(tokens: tuple[int, ...]) -> str:
    return b"".join(VOCABULARY[token] for token in tokens).decode()


def is_right(number: int, tokens: tuple[int, ...]) -> bool:
    structured = ASKED[number]
    if "choice" in structured:
        return text_of(tokens) in structured["choice"]
    return re.fullmatch(structured["regex"], text_of(tokens), re.ASCII) is not None


def greedy_by_hand(request: Request, number: int) -> tuple[int, ...]:
    """The model alone, computed from scratch, and every token of the vocabulary tried at every place."""
    masks = Grammars(VOCABULARY, (EOS,)).masks(Structured(**ASKED[number]))
    tokens, state = list(request.prompt), 0
    while len(tokens) < request.longest and (not tokens[len(request.prompt) :] or tokens[-1] != EOS):
        behind = [masks.dfa.follow(state, text) if text else None for text in VOCABULARY]
        behind[EOS] = state if masks.dfa.accepting[state] else None
        illegal = torch.tensor([each is None for each in behind])
        tokens.append(int(next_logits(tiny_model(SHAPE), tokens).masked_fill(illegal, -torch.inf).argmax()))
        state = behind[tokens[-1]]
    return tuple(tokens[len(request.prompt) :])


@of("p11")
@pytest.mark.parametrize("number", range(len(ASKED)))
def test_the_answer_is_the_models_own_choice_among_the_tokens_that_may_come(phase, number):
    request = asked(number)
    ending = run(engine(), [request])[request.id, 0]
    assert ending.tokens == greedy_by_hand(request, number)
    assert ending.finish_reason == "stop" and is_right(number, ending.tokens)


@of("p11")
def test_answers_match_and_are_the_same_in_any_batch_and_after_preemption(phase):
    drawn = [{"temperature": 0.0}, {"temperature": 1.0, "seed": 5, "n": 3}, {"temperature": 2.0, "seed": 6}]
    requests = [asked(n, f"r{n}.{i}", prompt=7, **p) for n in range(len(ASKED)) for i, p in enumerate(drawn)]
    requests.append(Request.create("free", [65] * 7, SamplingParams(max_tokens=20, temperature=1.0, seed=7), LIMITS))
    alone = {sample: ending for request in requests for sample, ending in run(engine(), [request]).items()}
    for (name, _), ending in alone.items():
        assert name == "free" or (ending.finish_reason == "stop" and is_right(int(name[1]), ending.tokens)), name
    for settings in ({}, {"token_budget": 5}, {"page_size": 4, "cache_tokens": 80}):
        whole = engine(max_sequences=6, **settings)
        found = run(whole, requests)
        for sample, ending in alone.items():
            assert found[sample] == ending, f"sample {sample[1]} of {sample[0]} alone, and with {settings}"
    assert whole.metrics().preemptions > 3


@of("p11")
def test_a_request_without_structure_is_as_free_as_before(phase):
    free = Request.create("free", [65] * 4, SamplingParams(max_tokens=20, ignore_eos=True), LIMITS)
    assert run(engine(), [asked(1), free])["free", 0] == run(engine(), [free])["free", 0]


@of("p11")
def test_a_slot_s_next_owner_is_not_held_to_the_last_ones_answer(phase):
    one = engine(max_sequences=1)
    free = Request.create("free", [65] * 4, SamplingParams(max_tokens=20, ignore_eos=True), LIMITS)
    assert run(one, [asked(1), free, asked(0)])["free", 0] == run(engine(), [free])["free", 0]


@of("p11")
def test_log_probabilities_are_the_models_own_and_know_nothing_of_the_mask(phase):
    request = asked(1, logprobs=2)
    one = engine()
    submit(one, [request])
    outputs = [output for _ in range(20) if one.has_work for output in step(one)]
    tokens = list(request.prompt)
    for output in outputs:
        for token, entry in zip(output.tokens, output.logprobs, strict=True):
            wanted = next_logits(tiny_model(SHAPE), tokens).log_softmax(-1)
            assert entry.logprob == pytest.approx(float(wanted[token]), abs=1e-3)
            tokens.append(token)
    assert tokens[-1] == EOS


@of("p11")
@pytest.mark.parametrize(
    ("structured", "said"),
    [
        ({"json": True}, "regex or choice in p11; the final engine takes json_schema, json and grammar too, got json"),
        ({"json_schema": {"type": "object"}}, "got json_schema"),
        ({"grammar": "start: /a/"}, "got grammar"),
        ({"regex": "a(?!b)"}, "structured.regex must be of the subset that this phase reads"),
    ],
)
def test_what_this_phase_does_not_read_is_refused_and_nothing_is_queued(phase, structured, said):
    one = engine()
    request = Request.create("r", [65], SamplingParams(structured=structured, n=2), LIMITS)
    with pytest.raises(RequestError) as caught:
        one.submit(request)
    assert said in str(caught.value) and not one.has_work


@of("p11")
def test_an_answer_that_nothing_could_end_is_refused_and_a_stop_token_of_the_request_ends_it(phase):
    limits = ModelLimits(SIZE, 128, structured=True)
    one = p11.build(tiny_model(SHAPE), EngineOptions(limits, vocabulary=lambda: VOCABULARY))
    params = SamplingParams(max_tokens=60, structured=ASKED[1])
    with pytest.raises(RequestError, match="names no end-of-sequence token"):
        Request.create("r", [65], params, limits)
    request = Request.create("r", [65], replace(params, stop_token_ids=(SIZE - 1,)), limits)
    ending = run(one, [request])["r", 0]
    assert ending.finish_reason == "stop" and is_right(1, ending.tokens)


@of("p11")
def test_without_a_vocabulary_the_engine_says_that_it_keeps_to_nothing(phase):
    one = p11.build(tiny_model(SHAPE), EngineOptions(ModelLimits(SIZE, 64)))
    assert not one.limits.structured and engine().limits.structured
    with pytest.raises(RequestError, match="structured must be left out"):
        Request.create("r", [65], SamplingParams(structured={"regex": "a"}), one.limits)


@of("p11")
def test_a_vocabulary_that_cannot_spell_the_answer_ends_it_with_an_error(phase):
    options = EngineOptions(LIMITS, vocabulary=lambda: [b"a", b"ab", *[b""] * (SIZE - 2)])
    ending = run(p11.build(tiny_model(SHAPE), options), [asked(0)])["r0", 0]
    assert ending.finish_reason == "error"


@of("p11")
def test_only_the_automata_that_were_asked_for_last_are_kept(phase):
    grammars = Grammars(VOCABULARY, (EOS,))
    first = grammars.masks(Structured(regex="a"))
    for count in range(2, MOST_KEPT + 1):
        grammars.masks(Structured(regex=f"a{{{count}}}"))
    assert grammars.masks(Structured(regex="a")) is first
    grammars.masks(Structured(regex="b"))
    assert grammars.masks(Structured(regex="a")) is first and len(grammars.compiled) == MOST_KEPT


@of("p11")
def test_a_loaded_model_lends_its_vocabulary_and_the_engine_says_what_it_keeps_to(phase):
    settings: dict[str, Any] = {"device": "cpu", "dtype": "float32", "context_length": 64}
    with LLM("random:tiny-llama", phase="p11", **settings) as llm:
        assert llm.limits.structured and llm.options.vocabulary is not None
        vocabulary = llm.options.vocabulary()
        assert len(vocabulary) == llm.limits.vocab_size and vocabulary[65] == b"A" and vocabulary[-1] == b""
        (answer,) = llm.generate("A", SamplingParams(structured={"choice": ["yes", "no"]}))
        assert answer.text in ("yes", "no") and answer.finish_reason == "stop"
        with pytest.raises(RequestError, match="regex or choice in p11"):
            llm.generate("A", SamplingParams(structured={"json": True}))
        assert llm.engine.waiting_count == 0 and llm.generate("A", SamplingParams(max_tokens=2))
    with LLM("random:tiny-llama", phase="p10", **settings) as llm:
        assert not llm.limits.structured
