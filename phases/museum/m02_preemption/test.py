"""Preemption changes when a token is computed, never which one, and a resumed sequence reuses its pages."""

from typing import Any

PROMPTS = ([1, 2, 3], [4, 5, 6], [7, 8, 9, 1])


def run(engine: Any, pages: int) -> list[list[int]]:
    """Every prompt, continued to ten tokens."""
    runs = engine.Engine(pages)
    sequences = [engine.Sequence(list(prompt), 10) for prompt in PROMPTS]
    runs.run(sequences)
    assert sorted(runs.free) == list(range(pages)), f"of {pages} pages, these are free at the end: {sorted(runs.free)}"
    return [sequence.tokens for sequence in sequences]


def test_with_enough_pages_every_sequence_ends(engine: Any) -> None:
    assert [len(tokens) for tokens in run(engine, pages=15)] == [10, 10, 10]


def test_with_few_pages_the_tokens_are_the_same(engine: Any) -> None:
    wanted = run(engine, pages=15)
    for pages in (12, 9, 7, 6, 5):
        tokens = run(engine, pages)
        assert tokens == wanted, f"with {pages} pages the tokens are {tokens}, with enough of them {wanted}"


def test_a_preempted_sequence_computes_only_what_its_pages_lack(engine: Any) -> None:
    runs = engine.Engine(pages=3)
    sequence = engine.Sequence([1, 2, 3, 4, 5], 9)
    runs.forward(sequence, *runs.plan(sequence))
    runs.give_back(sequence)
    start, count = runs.plan(sequence)
    assert (start, count) == (4, 2), f"free pages hold four of its six tokens, yet it computes {count} from {start} on"
