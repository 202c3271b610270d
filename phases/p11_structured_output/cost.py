"""The cost of masks: the tokens of a real vocabulary, sorted out for every state of an expression's automaton.

    python -m phases.p11_structured_output.cost --model smollm2-135m

*cold* is a state's first mask: the walk through the tree and the automaton. *warm* is the same mask once it is kept.
*each* tries every token on its own, as one would without a tree, in the state where the most may come.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

from gradus.engine.structured import Structured
from gradus.loading import open_checkpoint
from phases.p11_structured_output.dfa import dfa_of
from phases.p11_structured_output.grammars import expression_of
from phases.p11_structured_output.masks import TokenMasks, TreeNode, tree_of

EXPRESSIONS: dict[str, dict[str, Any]] = {
    "one of three words": {"choice": ["Paris", "London", "Rome"]},
    "a date": {"regex": r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"},
    "an e-mail address": {"regex": r"[a-z0-9._]+@[a-z0-9]+(\.[a-z0-9]+)+"},
    "name and age as JSON": {"regex": r'\{"name": "[A-Z][a-z]{1,15}", "age": [1-9]\d?\}'},
    "a quoted string": {"regex": r'"([^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"'},
    "at most 100 characters": {"regex": r"[^\n]{0,100}"},
}
REPEATS = 5


def vocabulary_of(model: str) -> list[bytes]:
    checkpoint = open_checkpoint(model)
    assert checkpoint.vocabulary is not None, "a model that reads text"
    return list(checkpoint.vocabulary())


def microseconds(work: Callable[[], object]) -> float:
    """Time the work by this thread's own clock: other programs on the machine hardly count."""
    start = time.thread_time()
    work()
    return 1e6 * (time.thread_time() - start)


def measured(structured: dict[str, Any], vocabulary: Sequence[bytes], tree: Sequence[TreeNode]) -> dict[str, Any]:
    """Times in µs: of the automaton, and of each state's first mask, in `cold`; medians of a few, in `warm` and `each`.

    legal: how many tokens may come in each state.
    """
    node = expression_of(Structured(**structured))
    compiling = median(microseconds(lambda: dfa_of(node)) for _ in range(REPEATS))
    masks = TokenMasks(dfa_of(node), vocabulary, tree)
    states = range(len(masks.dfa.steps))
    cold = [microseconds(partial(masks.mask, state)) for state in states]
    warm = [microseconds(partial(masks.mask, state)) for state in states for _ in range(REPEATS)]
    legal = [int(masks.mask(state).sum()) for state in states]
    widest = legal.index(max(legal))
    each = [microseconds(lambda: [masks.dfa.follow(widest, text) for text in vocabulary]) for _ in range(REPEATS)]
    found = {"states": len(states), "compiling": compiling, "cold": cold, "warm": median(warm), "each": median(each)}
    return found | {"legal": legal}


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of masks, for some expressions.")
    parser.add_argument("--model", default="smollm2-135m")
    vocabulary = vocabulary_of(parser.parse_args().model)
    start = time.thread_time()
    tree = tree_of(vocabulary)
    print(f"{len(vocabulary):,} tokens in a tree: {time.thread_time() - start:.1f} s, once\n")
    print(f"{'':24}states  automaton ms  cold µs (largest)  warm µs  each µs  legal tokens")
    for name, structured in EXPRESSIONS.items():
        found = measured(structured, vocabulary, tree)
        cold, legal = found["cold"], found["legal"]
        print(
            f"{name:24}{found['states']:6}{found['compiling'] / 1e3:14.1f}{median(cold):9.0f} ({max(cold):,.0f})"
            f"{found['warm']:9.0f}{found['each']:11,.0f}  {min(legal):,} to {max(legal):,}"
        )


if __name__ == "__main__":
    main()
