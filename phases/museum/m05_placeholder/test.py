"""Planning ahead changes no token, and only sequences with a grammar wait for theirs."""

from typing import Any


def test_without_lag_the_grammar_is_kept(engine: Any) -> None:
    assert engine.Engine(lag=0).generate(engine.Sequence()) == "[1,2]"


def test_with_lag_the_tokens_are_the_same(engine: Any) -> None:
    for lag in (1, 2):
        found = engine.Engine(lag).generate(engine.Sequence())
        assert found == "[1,2]", f"with a lag of {lag} the answer is {found}"


def test_the_grammar_sees_every_token_once(engine: Any) -> None:
    sequence = engine.Sequence()
    engine.Engine(lag=1).generate(sequence)
    assert sequence.state == "end", f"the grammar was left in state {sequence.state!r} after {sequence.tokens}"


def test_a_sequence_without_grammar_still_overlaps(engine: Any) -> None:
    runs = engine.Engine(lag=1)
    assert runs.generate(engine.Sequence(constrained=False)) == "[1,2]"
    assert runs.most_flying == 2, f"at most {runs.most_flying} steps were in flight, where two should be"
