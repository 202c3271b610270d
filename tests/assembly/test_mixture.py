"""The final engine runs requests with all kinds of sampling side by side, and each gets what the reference gives it.

On a GPU, through kernels and graphs, the same requests are in tests/gpu/test_graphs.py.
"""

from dataclasses import replace

import pytest

from gradus.config.options import FINAL
from gradus.engine.request import Request
from tests.assembly.mixture import answers, assert_same, mixture
from tests.phases.conftest import build_engine, limits_of

SHAPE = "tiny-llama"


@pytest.fixture(scope="module")
def expected():
    """One request at a time, by a phase without batches."""
    return {name: answer for request in mixture(SHAPE) for name, answer in answers(lone(), [request]).items()}


def lone():
    return build_engine("p01", SHAPE, max_sequences=1)


@pytest.mark.parametrize("switches", [{}, {"overlap": False}, {"chunked": False}], ids=str)
def test_side_by_side_they_get_what_each_gets_alone(expected, switches):
    assert_same(answers(build_engine(FINAL, SHAPE, max_sequences=8, **switches), mixture(SHAPE)), expected)


def test_penalties_and_reports_survive_preemption(expected):
    engine = build_engine(FINAL, SHAPE, max_sequences=6, page_size=4, cache_tokens=60)
    assert_same(answers(engine, mixture(SHAPE)), expected)
    assert engine.metrics().preemptions > 3


@pytest.mark.parametrize(
    ("number", "off"),
    [
        (2, dict(top_k=0)),
        (3, dict(top_p=1.0)),
        (4, dict(min_p=0.0)),
        (4, dict(repetition_penalty=1.0)),
        (6, dict(logit_bias={})),
        (7, dict(frequency_penalty=0.0, presence_penalty=0.0)),
        (9, dict(min_tokens=0)),
    ],
    ids=str,
)
def test_what_is_asked_for_makes_a_difference(expected, number, off):
    """If it made none, the tests above would not notice that it is ignored."""
    request = mixture(SHAPE)[number]
    without = Request.create(request.id, request.prompt, replace(request.params, **off), limits_of(SHAPE))
    assert answers(lone(), [without])[request.id, 0].tokens != expected[request.id, 0].tokens


def test_what_is_reported_is_reported_of_every_token(expected):
    for (name, _), answer in expected.items():
        count = mixture(SHAPE)[int(name[1:])].params.logprobs
        assert [len(each.top) for each in answer.logprobs] == ([] if count is None else [count] * len(answer.tokens))
