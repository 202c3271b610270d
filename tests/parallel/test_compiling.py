"""Every rank compiles what rank 0 holds, outside its steps, and forgets what rank 0 releases."""

import time

import pytest

from gradus.engine.structured import Structured
from gradus.errors import RequestError
from gradus.parallel.compiling import Follower, SharedCompiler
from gradus.structured import grammars
from tests.structured.vocabularies import EOS, TOKENIZER, WIDTH

FIRST, SECOND = Structured(regex="ab"), Structured(json_schema={"type": "integer"}, whitespace="compact")


class Wire:
    """Hands rank 0's messages straight to another rank's thread."""

    def __init__(self, follower: Follower) -> None:
        self.tell = lambda message: follower.take(message) or pytest.fail("not taken")


@pytest.fixture
def ranks():
    zero, other = (grammars.Grammars(TOKENIZER.to_json, WIDTH, EOS) for _ in range(2))
    return SharedCompiler(zero, Wire(Follower(other))), zero, other


def eventually(holds) -> None:
    end = time.monotonic() + 20
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    assert holds()


def test_what_rank_0_holds_all_ranks_hold(ranks, monkeypatch):
    monkeypatch.setattr(grammars, "MAX_TEMPLATES", 1)
    compiler, zero, other = ranks
    for each in (FIRST, SECOND):
        compiler.hold(each)
    assert compiler.hold_compiled(FIRST) and not compiler.hold_compiled(Structured(regex="c"))
    for held in (zero, other):
        eventually(lambda held=held: sum(held._held.values()) == 3 and len(held._templates) == 2)
    for each in (FIRST, FIRST, SECOND):
        compiler.release(each)
    for held in (zero, other):
        eventually(lambda held=held: not held._held and len(held._templates) == 1)


def test_what_rank_0_refuses_no_rank_holds(ranks):
    compiler, zero, other = ranks
    with pytest.raises(RequestError, match="unclosed"):
        compiler.hold(Structured(regex="(a"))
    compiler.hold(FIRST)
    for held in (zero, other):
        eventually(lambda held=held: sum(held._held.values()) == 1)


def test_plans_are_left_to_the_rank():
    assert not Follower(grammars.Grammars(TOKENIZER.to_json, WIDTH, EOS)).take(b"gplan")


@pytest.mark.parametrize("kind", ["tensor_parallel", "pipeline_parallel"])
def test_ranks_take_constraints_between_plans(kind):
    from gradus import LLM, SamplingParams

    with LLM("random:tiny-llama", device="cpu", dtype="float32", threads=1, **{kind: 2}) as llm:
        compiler = llm.core.compiler
        assert isinstance(compiler, SharedCompiler)
        for _ in range(3):
            compiler.hold(FIRST)
            (done,) = llm.generate([[5, 6]], SamplingParams(max_tokens=3, ignore_eos=True))
            assert len(done.token_ids) == 3
            compiler.release(FIRST)
