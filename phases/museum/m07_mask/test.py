"""A mask belongs to a request and not to a slot: those with a grammar keep it, and those without have none."""

from typing import Any


def test_a_grammar_is_kept(engine: Any) -> None:
    request = engine.Request("Ann", "year 2026", engine.DIGITS)
    assert engine.Engine(slots=1).run([request]) == {"Ann": "000002026"}


def test_a_request_next_to_a_grammar_is_free(engine: Any) -> None:
    requests = [engine.Request("Ann", "2026", engine.DIGITS), engine.Request("Ben", "hello")]
    assert engine.Engine(slots=2).run(requests) == {"Ann": "2026", "Ben": "hello"}


def test_a_request_after_a_grammar_is_free(engine: Any) -> None:
    requests = [engine.Request("Ann", "2026", engine.DIGITS), engine.Request("Cy", "hello")]
    answer = engine.Engine(slots=1).run(requests)["Cy"]
    assert answer == "hello", f"Cy follows a request for digits in its slot, and gets {answer!r}"


def test_each_request_has_a_grammar_of_its_own(engine: Any) -> None:
    requests = [engine.Request("Ann", "2026", engine.DIGITS), engine.Request("Ben", "4b", "ab")]
    assert engine.Engine(slots=1).run(requests) == {"Ann": "2026", "Ben": "ab"}
