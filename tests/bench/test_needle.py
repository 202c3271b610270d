"""Needles in a haystack: where they are, how answers are judged, and what keys and values of 8 bits change."""

from dataclasses import replace
from random import Random

import pytest
import torch

from gradus.attention.whole import WholeSequence
from gradus.bench.record.needle_tables import needle_parts, needle_rows, verdict
from gradus.bench.statistics import paired, wilson
from gradus.bench.studies.needle import answer_all, is_found, read_all, stretched, tail_nll
from gradus.bench.studies.needle_text import CITIES, DEPTHS, ROOM, Hay, Question
from gradus.errors import ConfigError
from gradus.loading import Tokenizer, load_model, open_checkpoint
from gradus.models.config import Rope, Yarn
from gradus.models.families.records import read_config, write_config
from gradus.text.llm import LLM

TEXT = "\n\n".join(f"Chapter {n}.\nIt rained on day {n}, and\nnobody left the house." for n in range(400))
LENGTH, TAIL = 2048, 128


@pytest.fixture(scope="module")
def hay() -> Hay:
    return Hay.of("rain", TEXT, Tokenizer.of_bytes())


def test_a_haystack_has_its_exact_length_and_the_tail_is_text_alone(hay):
    for length in (1024, 2047, 8192):
        found = hay.haystack(length, 0, tail=TAIL)
        assert len(found.token_ids) == length - ROOM
        assert hay.tokenizer.decode(found.token_ids[-TAIL:]) in hay.tokenizer.decode(hay.token_ids)
        assert all(len(each.token_ids) + len(each.answer) <= ROOM for each in found.questions)


def test_needles_stand_behind_a_sentence_near_their_depths_once_each(hay):
    found = hay.haystack(8192, 0, tail=TAIL)
    text = hay.tokenizer.decode(found.token_ids)  # a byte per token
    for question in found.questions:
        needle = hay.tokenizer.decode((*question.token_ids, *question.answer)).strip()
        before, _ = text.split(f" {needle}.")
        assert before.endswith(".")
        assert abs(len(before) / (len(text) - TAIL) - question.depth) < 0.02
    assert [question.depth for question in found.questions] == [*DEPTHS]
    assert len({question.token_ids for question in found.questions}) == len(DEPTHS)


def test_without_the_needles_it_is_the_text(hay):
    found = hay.haystack(4096, 0, tail=TAIL)
    text = hay.tokenizer.decode(found.token_ids)
    for question in found.questions:
        needle = hay.tokenizer.decode((*question.token_ids, *question.answer)).strip()
        text = text.replace(f" {needle}.", "")
    assert hay.tokenizer.decode(hay.token_ids).startswith(text)
    assert not any(city in text for city in CITIES)


def test_haystacks_are_the_same_in_every_process_and_differ_from_each_other(hay):
    again = Hay.of("rain", TEXT, Tokenizer.of_bytes())
    first, second = (hay.haystack(2048, number, 2, tail=TAIL) for number in (0, 1))
    assert first == again.haystack(2048, 0, 2, tail=TAIL)
    assert first.token_ids[-TAIL:] != second.token_ids[-TAIL:] and first.questions != second.questions
    late = hay.haystack(8192, 9, 10, tail=TAIL)  # past the text's end, it begins again
    assert len(late.token_ids) == 8192 - ROOM


@pytest.mark.parametrize(("length", "said"), [(300, "give at least"), (200_000, "give a longer text")])
def test_a_length_that_cannot_be_had_is_refused(hay, length, said):
    with pytest.raises(ConfigError, match=said):
        hay.haystack(length, 0, tail=TAIL)


def test_only_the_whole_number_counts():
    question = Question(0.5, (1, 2), (7, 8, 9))
    assert is_found(question, (7, 8, 9)) and is_found(question, (7, 8, 9, 4))
    assert not is_found(question, (7, 8)) and not is_found(question, (7, 8, 4)) and not is_found(question, (4, 7, 8, 9))


# -- reading -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint():
    """A tiny model with positions for a long text."""
    tiny = open_checkpoint("random:tiny-qwen2")
    return replace(tiny, config=replace(tiny.config, context_length=LENGTH))


@pytest.fixture(scope="module")
def haystack(hay, checkpoint):
    """The last question's answer is what the model says."""
    found = hay.haystack(LENGTH, 0, tail=TAIL)
    asked = found.questions[-1]
    ids = [*found.token_ids, *asked.token_ids]
    for _ in asked.answer:
        ids.append(int(predictions(checkpoint, ids, fp8=False)[-1].argmax()))
    return replace(found, questions=(*found.questions[:2], replace(asked, answer=tuple(ids[-len(asked.answer) :]))))


def predictions(checkpoint, ids, fp8: bool) -> torch.Tensor:
    """Log-probabilities [N, V] after each token, of a whole pass without a cache."""
    model = load_model(checkpoint, dtype=torch.float32, device="cpu")
    with torch.inference_mode():
        hidden = model(torch.tensor(ids), torch.arange(len(ids)), WholeSequence(model.config, fp8))
        return model.logits(hidden).double().log_softmax(-1)


@pytest.mark.parametrize("kv_dtype", ["auto", "fp8"])
def test_a_reading_is_what_one_pass_over_the_whole_text_says(checkpoint, haystack, kv_dtype):
    [reading] = read_all(checkpoint, [haystack], kv_dtype, device="cpu", dtype="float32")
    tolerance = {"auto": 1e-4, "fp8": 5e-3}[kv_dtype]  # sums in another order put some values across a step of 8 bits
    for question, answer in zip(haystack.questions, reading.answers, strict=True):
        ids = [*haystack.token_ids, *question.token_ids, *question.answer]
        log_p = predictions(checkpoint, ids, kv_dtype == "fp8")[-len(question.answer) - 1 : -1]
        assert answer.found == (log_p.argmax(-1).tolist() == [*question.answer])
        right = log_p.gather(1, torch.tensor(question.answer)[:, None]).sum()
        assert answer.log_p == pytest.approx(float(right), abs=tolerance * len(question.answer))
    log_p = predictions(checkpoint, haystack.token_ids, kv_dtype == "fp8")[:-1]
    tail = log_p.gather(1, torch.tensor(haystack.token_ids)[1:, None])[-TAIL:]
    assert reading.nll == pytest.approx(-float(tail.mean()), abs=tolerance)
    assert [answer.found for answer in reading.answers][:2] == [False, False]
    assert reading.answers[-1].found or kv_dtype == "fp8"


def test_questions_read_what_the_cache_kept(checkpoint, haystack):
    """Otherwise they would be computed with keys and values that were never stored."""
    with LLM(checkpoint, kv_dtype="fp8", device="cpu", dtype="float32", max_sequences=4) as llm:
        tail_nll(llm, haystack)
        before = llm.metrics().cached_tokens
        asked = len([*answer_all(llm, haystack)])
        assert llm.metrics().cached_tokens - before >= asked * (LENGTH - ROOM - 32)


# -- positions ---------------------------------------------------------------------------------------------------------


def test_a_long_context_takes_the_published_yarn():
    plain = open_checkpoint("random:qwen2.5-0.5b")
    found = stretched(plain, 131_072).config
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}
    raw = write_config(plain.config) | {"rope_theta": 1e6, "rope_scaling": scaling}
    del raw["rope_parameters"]
    published = read_config(raw)
    assert (found.ropes, found.context_length) == (published.ropes, published.context_length)
    assert found.ropes[0] == Rope(1e6, Yarn(4.0, 32_768, amplitude=found.ropes[0].scaling.amplitude))
    assert replace(found, ropes=plain.config.ropes, context_length=32_768) == plain.config
    assert stretched(plain, 32_768) is plain


def test_positions_of_another_kind_are_not_stretched():
    with pytest.raises(ConfigError, match="ask for at most"):
        stretched(open_checkpoint("random:tiny-gpt2"), 1 << 17)


# -- tables ------------------------------------------------------------------------------------------------------------


def row(length: int, kv_dtype: str, found: list[list[int]]) -> dict:
    log_p = [[-0.5 for _ in each] for each in found]
    return {"length": length, "kv_dtype": kv_dtype, "rope": "as trained", "found": found, "log_p": log_p,
            "nll": [2.0 + 0.1 * (kv_dtype == "fp8")] * len(found), "seconds": [1.0]}  # fmt: skip


def test_the_table_pairs_answers_and_the_verdict_counts_points():
    plain, fewer = [[1, 1, 1, 0], [1, 1, 1, 1]], [[1, 1, 0, 1], [1, 0, 1, 1]]
    found = {"rows": [row(32768, "auto", plain), row(32768, "fp8", fewer)]}
    header, rows = needle_rows(found)
    assert [cells[header.index("lost, gained")] for cells in rows] == ["", "2, 1"]
    assert rows[0][header.index("found (95 %)")] == "87.5 % (53 to 98)"
    assert rows[1][header.index("ratio")] == "1.1052"
    assert "At 32,768 tokens: 12.5 points (95 %: -28.7 to 48.7), open, since 8 questions cannot show 2" in verdict(
        found
    )
    about = {"hardware": {"processor": "A", "cores": "2"}, "model": "m", "dtype": "bfloat16", "text": "rain"}
    caption, table, said = needle_parts(about | found | {"depths": [*range(4)], "tail": 16, "commit": "c"}, "Here.")
    assert caption == (
        "**A, 2 cores**, m in bfloat16, rain, haystacks per length: 2, with 4 needles each, perplexity of the last 16 "
        "tokens. Commit c. Here."
    )
    assert table == (header, rows) and said == verdict(found)


def test_the_goal_is_met_or_missed_where_the_whole_interval_says_so():
    all_found, none_found = [[1] * 9] * 30, [[0] * 9] * 30
    for fewer, judgment in ((all_found, "met"), (none_found, "missed")):
        found = {"rows": [row(131072, "auto", all_found), row(131072, "fp8", fewer)]}
        assert verdict(found).startswith("The goal is at most 2 points of needles lost. At 131,072 tokens: ")
        assert verdict(found).endswith(f"), {judgment}.")
    few = {"rows": [row(131072, "auto", [[1] * 9]), row(131072, "fp8", [[1] * 9])]}
    assert (
        "0.0 points (95 %: -17.8 to 17.8), open, since 9 questions cannot show 2 points; about 710 would."
        in verdict(few)
    )


def test_a_run_that_was_cut_off_is_compared_over_what_both_read():
    plain, fewer = [[1, 1, 1, 0], [0, 0, 0, 0]], [[1, 1, 1, 0]]
    found = {"rows": [row(131072, "auto", plain), row(131072, "fp8", fewer)]}
    header, rows = needle_rows(found)
    assert rows[1][header.index("lost, gained")] == "0, 0"
    assert "At 131,072 tokens, cut off after 1 of 2 haystacks: 0.0 points" in verdict(found)
    assert verdict({"rows": found["rows"][:1]}).endswith("were not measured.")


def test_an_interval_holds_at_the_ends():
    assert wilson(0, 10) == (0.0, pytest.approx(0.2775, abs=1e-3))
    assert wilson(10, 10) == (pytest.approx(0.7225, abs=1e-3), 1.0)
    low, high = wilson(50, 100)
    assert (low + high) / 2 == pytest.approx(0.5) and high - low == pytest.approx(0.1923, abs=1e-3)
    with pytest.raises(ValueError):
        wilson(0, 0)


def test_the_interval_of_a_paired_difference_covers_it_as_often_as_it_says():
    """Draw pairs with known chances again and again: the difference is outside about one interval in twenty."""
    draw = Random("pairs")
    for lose, gain, pairs in ((0.02, 0.02, 45), (0.15, 0.12, 45), (0.1, 0.02, 90)):
        missed = 0
        for _ in range(1000):
            outcomes = [draw.random() for _ in range(pairs)]
            lost, gained = sum(x < lose for x in outcomes), sum(lose <= x < lose + gain for x in outcomes)
            low, high = paired(lost, gained, pairs)
            missed += not low <= lose - gain <= high
        assert missed < 65
    assert paired(0, 0, 45)[1] > 0.02, "45 pairs that agree say little"
    low, high = paired(3, 5, 100)
    assert paired(5, 3, 100) == (-high, -low)
