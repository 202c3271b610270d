"""One answer's place in its grammar: rows, ends, and drafts."""

import numpy as np
import pytest

from gradus.engine.structured import Structured
from gradus.loading.tokenizer import Tokenizer
from gradus.structured import Grammars, Matcher
from gradus.structured.vocabulary import row_words
from tests.loading import builders
from tests.structured import vocabularies
from tests.structured.vocabularies import EOS, TOKENIZER, WIDTH, encode, ids, legal, legal_behind

CATS = Structured(choice=["the cat", "the cat sat"])


def matcher(structured: Structured = CATS, stop_ids: tuple[int, ...] = ()) -> Matcher:
    return vocabularies.matcher(structured, stop_ids)


def test_only_the_grammars_tokens_are_legal_and_ends_only_where_it_accepts():
    made = matcher()
    assert legal(made) == encode("the")  # both choices begin so, and the tokenizer writes it so
    assert not made.accepting
    assert made.accept(encode("the cat"))
    assert set(EOS) < set(legal(made)) and made.accepting
    assert made.accept(encode(" sat"))
    assert legal(made) == sorted(EOS)


def test_after_an_end_only_ends_are_legal():
    made = matcher()
    assert made.accept([*encode("the cat"), 2])
    assert legal(made) == sorted(EOS) and made.forced(4) == []
    assert not made.accept(encode(" sat")) and made.fault is not None


def test_a_stop_token_is_illegal_until_the_grammar_accepts_and_then_ends_the_answer():
    """Otherwise JSON is cut in the middle by a stop token that the grammar takes for text (vLLM #42403)."""
    (quote,) = encode('"')
    made = matcher(Structured(json_schema={"type": "string"}), (quote,))
    assert quote not in legal(made)
    many = matcher(Structured(regex="a+"), (encode("a")[0],))
    assert legal(many) == [], "the only way to begin is a token that would end the answer"
    assert many.fault == "the grammar allows no token here, except for stop tokens"
    made = matcher(stop_ids=(50,))
    assert 50 not in legal(made)
    made.accept(encode("the cat"))
    assert 50 in legal(made) and made.accept([50])
    assert legal(made) == sorted({*EOS, 50})


def test_a_model_without_an_end_token_finishes_with_the_grammar():
    grammars = Grammars(Tokenizer.of_bytes().to_json, 256)
    made = grammars.matcher(Structured(choice=["ab"]))
    row = np.zeros(row_words(256), np.int32)
    made.accept(b"ab")
    made.fill(row)
    assert made.accepting and made.fault is None and ids(row) == []


def test_an_end_may_follow_an_end_and_nothing_else():
    made = matcher(stop_ids=(50,))
    assert made.accept([*encode("the cat sat"), 2, 50, 0])
    assert legal(made) == sorted({*EOS, 50}) and not made.accept(encode(" sat"))


@pytest.mark.parametrize("token", [-1, 1, WIDTH - 1, WIDTH, 10**6, 2**31, 2**32, 2**63, 2**200])
def test_a_token_that_is_none_is_a_fault_and_raises_nothing(token):
    made = matcher()
    assert not made.accept([token])
    assert made.fault == f"token {token} is not legal here"
    assert legal(made) == [] and made.forced(3) == [] and not made.accepting
    assert not made.accept(encode("the"))
    assert legal(matcher()) == encode("the"), "only that answer has failed"


@pytest.mark.parametrize("token", [-1, 1, WIDTH - 1, WIDTH, 2**32, 2**200])
def test_a_draft_that_is_no_token_repeats_the_row_before_it(token):
    """A drafter's padding and control tokens must not reach the matcher (CVE-2026-105757)."""
    made = matcher()
    the, cat = encode("the"), encode(" cat")
    rows = legal_behind(made, [*the, token, *cat])
    assert rows[len(the) :] == [rows[len(the)]] * (len(cat) + 2)
    assert made.fault is None and legal(made) == the


def test_drafts_leave_the_matcher_where_it_was():
    made = matcher()
    drafts = [*encode("the cat"), 2, 0, *encode("the")]
    rows = legal_behind(made, drafts)
    alone = matcher()
    for place, token in enumerate(drafts[:-1]):
        assert rows[place] == legal(alone)
        alone.accept([token])
    assert rows[-2] == rows[-1] == sorted(EOS)
    assert legal(made) == legal(matcher()) and made.fault is None


def test_drafts_after_the_end():
    made = matcher()
    made.accept([*encode("the cat"), 2])
    assert legal_behind(made, [0, 5, 0]) == [sorted(EOS)] * 4


def test_control_tokens_and_padding_are_never_legal():
    """Neither in strings nor as what a regular expression's dot matches (vLLM #60580)."""
    for structured in (Structured(regex="(?s:.*)"), Structured(json=True)):
        made = matcher(structured)
        if structured.json:
            made.accept(encode('"'))
        allowed = set(legal(made))
        assert 1 not in allowed and not allowed & set(range(builders.TOKENS, WIDTH))
        assert set(encode("a<|")) <= allowed


def test_the_text_of_a_control_token_is_legal_as_text():
    made = matcher(Structured(choice=["<|im_start|>"]))
    assert 1 not in legal(made) and not made.accept([1])
    made = matcher(Structured(choice=["<|im_start|>"]))
    assert (
        made.forced(99) == encode("<|im_start|>") and made.accept(encode("<|im_start|>")) and legal(made) == sorted(EOS)
    )


def test_forced_tokens_are_the_only_legal_ones():
    made = matcher(Structured(json_schema={"type": "object", "properties": {"the cat": {"type": "integer"}},
                                           "required": ["the cat"], "additionalProperties": False},
                              whitespace="compact"))  # fmt: skip
    forced = made.forced(99)
    assert TOKENIZER.decode(forced).startswith('{"the cat"') and made.forced(2) == forced[:2]
    for token in forced:
        assert legal(made) == [token]
        made.accept([token])
    assert made.fault is None


def test_a_width_that_is_no_multiple_of_32_keeps_its_spare_bits_clear():
    for width in (builders.TOKENS, builders.TOKENS + 1, 319, 320, 321):
        made = Grammars(TOKENIZER.to_json, width, EOS).matcher(Structured(regex="(?s:.*)"))
        row = np.full(row_words(width), -1, np.int32)
        made.fill(row)
        assert max(ids(row)) < builders.TOKENS


def test_a_tokenizer_with_more_tokens_than_the_model_allows_only_the_models():
    grammars = Grammars(TOKENIZER.to_json, 280, EOS)
    made = grammars.matcher(Structured(regex="(?s:.*)"))
    row = np.zeros(row_words(280), np.int32)
    made.fill(row)
    assert max(ids(row)) == 279
    assert not made.accept([280])


def test_a_panic_ends_one_answer(monkeypatch):
    """Others die with the thread (vLLM #21204)."""

    class Panic(BaseException):
        pass

    class Broken:
        def __getattr__(self, name):
            def broken(*_arguments):
                raise Panic("assertion failed: depth\nat src/toktrie.rs:7")

            return broken

    made = matcher()
    monkeypatch.setattr(made, "_inner", Broken())
    assert not made.accept([5]) and made.fault == "Panic: assertion failed: depth at src/toktrie.rs:7"
    for act in (lambda made: legal(made), lambda made: legal_behind(made, [5, 6])):
        made = matcher()
        monkeypatch.setattr(made, "_inner", Broken())
        act(made)
        assert made.fault is not None
    made = matcher()
    monkeypatch.setattr(made, "_inner", Broken())
    assert made.forced(3) == [] and not made.accepting
