"""Numbers from known times: every latency by its definition, goodput by its objective."""

from array import array

import pytest

from gradus.errors import RequestError
from gradus.load.answer import Answer
from gradus.load.measurements import peak, summary
from gradus.load.objective import Objective


def known(sent: float, ttft: float, tpot: float, tokens: int, error: str = "") -> Answer:
    """An answer whose tokens come evenly."""
    first = sent + ttft
    gaps = array("f", [tpot] * (tokens - 1))
    return Answer(0, sent - 0.001, sent, first, first + tpot * (tokens - 1), tokens, 10, tokens, gaps, error)


def test_latencies_are_as_defined():
    one = known(10.0, 0.5, 0.25, 5)
    assert (one.ttft, one.e2el, one.tpot) == (0.5, 1.5, 0.25)
    assert known(0.0, 0.5, 0.25, 1).tpot is None


def test_a_run_is_summed_up():
    answers = [known(0.0, 0.1, 0.01, 11), known(0.5, 0.3, 0.03, 21), known(1.0, 0.2, 0.02, 1)]
    found = summary(answers, Objective(ttft=0.25), (50.0,))
    assert (found["requests"], found["completed"], found["output_tokens"], found["prompt_tokens"]) == (3, 3, 33, 30)
    assert found["seconds"] == pytest.approx(1.4) and found["output_tok_s"] == pytest.approx(33 / 1.4, rel=1e-3)
    assert found["requests_s"] == pytest.approx(3 / 1.4, rel=1e-3)
    assert found["ttft_ms"] == {"mean": 200.0, "p50": 200.0} and found["tpot_ms"] == {"mean": 20.0, "p50": 20.0}
    assert found["itl_ms"]["mean"] == pytest.approx((10 * 10 + 20 * 30) / 30, rel=1e-3)
    assert found["good"] == 0.6667 and found["goodput_s"] == pytest.approx(2 / 1.4, rel=1e-3)
    assert found["late_ms_p99"] == 1.0


def test_errors_are_counted_by_kind_and_refusals_apart():
    answers = [known(0, 0.1, 0.1, 2, error) for error in ("", "503", "429", "429", "timeout", "400")]
    found = summary(answers, Objective(ttft=9.0))
    assert found["errors"] == {"400": 1, "429": 2, "503": 1, "timeout": 1} and found["refused"] == 3
    assert found["completed"] == 1 and found["good"] == pytest.approx(1 / 6, rel=1e-3), "what failed is not good"
    assert found["output_tokens"] == 2 and found["ttft_ms"]["p50"] == 100.0, "and has no latency"


def test_no_answers_are_no_latency():
    assert summary([])["ttft_ms"] == {} and summary([])["requests_s"] == 0


def test_peak_counts_what_overlaps_and_not_what_follows():
    assert peak([known(0.0, 1.0, 0.0, 1), known(1.0, 1.0, 0.0, 1), known(1.5, 0.2, 0.0, 1)]) == 2
    assert peak([]) == 0


@pytest.mark.parametrize(
    ("limits", "met"),
    [(("ttft:200",), True), (("ttft:199",), False), (("tpot:20", "ttft:200"), True), (("tpot:19.9",), False),
     (("e2el:400",), True), (("e2el:399",), False), ((), True)],
)  # fmt: skip
def test_an_objective_is_met_when_every_limit_is_kept(limits, met):
    """200 ms to the first token, and ten gaps of 20 ms."""
    one = Answer(0, 0.0, sent=0.0, first=0.2, last=0.4, tokens=11)
    assert Objective.parse(limits).met(one) is met


def test_an_answer_of_one_token_keeps_any_time_per_token():
    assert Objective(tpot=0.001).met(known(0.0, 0.1, 0.0, 1))


@pytest.mark.parametrize("text", ["ttft", "ttft:x", "ttft:0", "ttft:-1", "speed:3", "ttft:inf", ""])
def test_what_is_no_limit_is_refused(text):
    with pytest.raises(RequestError, match="--goodput must be limits in ms"):
        Objective.parse([text])


def test_an_objective_says_what_it_is():
    assert str(Objective.parse(["ttft:200", "tpot:20"])) == "TTFT ≤ 200 ms, TPOT ≤ 20 ms" and not Objective.parse([])
