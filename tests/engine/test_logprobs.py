"""Log-probabilities stay packed from the step to the reader, and say the same there."""

import pickle

import numpy as np
import pytest
import torch

from gradus.engine import logprobs as module
from gradus.engine.logprobs import NO_LOGPROBS, Logprobs, TokenLogprob
from gradus.engine.outputs import Outputs
from gradus.engine.plan import Plan, Sampled, Span
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.engine.sequence import Output, Sequence, Timings
from gradus.execution.result import packed
from gradus.sampling.sampler import DrawnLogprobs
from gradus.text.front_end import FrontEnd

LIMITS = ModelLimits(100, 64)


def rows(ids: list[list[int]], logarithms: list[list[float]], counts: list[int]) -> list[bytes]:
    return packed(DrawnLogprobs.of(torch.tensor(ids), torch.tensor(logarithms), np.array(counts)))


def step() -> list[bytes]:
    """Three rows: one asks for two alternatives, one for nothing, one for the sampled token alone."""
    logarithms = [[-0.5, -0.5, -2], [-1, -3, -4], [-1.5, -5, -6]]
    return rows([[7, 7, 3], [8, 1, 2], [9, 1, 2]], logarithms, [2, -1, 0])


def test_a_row_has_as_much_as_it_asks_for():
    first, second, third = step()
    assert second == b""
    assert list(Logprobs((first, third))) == [
        TokenLogprob(7, -0.5, ((7, -0.5), (3, -2.0))),
        TokenLogprob(9, -1.5, ()),
    ]


def test_infinities_survive():
    (row,) = rows([[1]], [[-np.inf]], [0])
    assert Logprobs((row,))[0].logprob == -np.inf


def test_they_read_like_a_tuple():
    first, _, third = step()
    both = Logprobs((first, third))
    assert len(both) == 2 and both[-1] == TokenLogprob(9, -1.5, ())
    assert both[:1] == Logprobs((first,)) == (both[0],) and both != Logprobs((third, first))
    assert not NO_LOGPROBS and NO_LOGPROBS == () and hash(both) == hash(Logprobs((first, third)))
    assert pickle.loads(pickle.dumps(both)) == both


def test_a_span_s_result_has_its_rows():
    sampled = Sampled(np.array([7, 8, 9]), [1, 1, 1], step())
    first, second, third = sampled
    assert [each.token_id for each in first.logprobs] == [7] and not second.logprobs
    assert third.logprobs[0].top == () and Sampled(np.array([7]), [1]).result(0).logprobs == ()


def test_one_row_without_a_token_makes_an_error_of_its_span():
    sampled = Sampled(np.array([7, -1, 9]), [2, 1])
    first, second = sampled
    assert "finite" in first.error and first.tokens == () and second.tokens == (9,)


def test_results_per_span_make_the_same_columns():
    plan = Plan([Span(None, slot, 0, (1,), logits) for slot, logits in enumerate((1, 0, 1))])
    given = Sampled(np.array([7, -1]), [1, 0, 1])
    assert Sampled.of(plan, given).tokens.tolist() == [7, -1]


@pytest.fixture
def made(monkeypatch) -> list[int]:
    """The tokens whose log-probabilities have been read so far."""
    read: list[int] = []
    unpack = module.unpack
    monkeypatch.setattr(module, "unpack", lambda packed: read.append(found := unpack(packed)) or found)
    return read


def test_objects_are_made_by_the_reader_alone_and_only_where_asked(made):
    front_end = FrontEnd(None, LIMITS, "model", lambda *_: ())
    requests = [Request.create(f"r{i}", [1], SamplingParams(logprobs=i - 1 if i else None), LIMITS) for i in range(3)]
    for request in requests:
        front_end.open(request)
    owners = np.array([Sequence(requests[2], 0), Sequence(requests[0], 0), Sequence(requests[1], 0)], object)
    for _ in range(4):
        outputs = Outputs(owners, np.array([[7], [8], [9]]), [], step())
        assert len(list(outputs)) == 3
        assert [len(delta.logprobs) for delta in front_end.read(outputs)] == [1, 0, 1]
    times = Timings(0, 0, 0, 4)
    ended = front_end.read([Output(request.id, 0, finish_reason="length", timings=times) for request in requests])
    none, alone, two = (delta.completion.logprobs for delta in ended)
    assert made == []
    assert none is None and [each.top for each in alone] == [()] * 4
    assert two == (TokenLogprob(7, -0.5, ((7, -0.5), (3, -2.0))),) * 4
    assert len(made) == 8
