"""A request's answer depends on its own words alone, whatever ran in its slot before."""

from typing import Any


def test_a_request_alone_is_answered(engine: Any) -> None:
    alone = engine.Engine(slots=1)
    alone.add("Ben", "hello there")
    assert alone.run() == {"Ben": "You said: hello there"}


def test_an_answer_holds_no_word_of_the_request_before_it(engine: Any) -> None:
    shared = engine.Engine(slots=1)
    shared.add("Ann", "my PIN is 4711")
    shared.add("Ben", "hello")
    answer = shared.run()["Ben"]
    assert answer == "You said: hello", f"Ben said hello after Ann, and got {answer!r}"


def test_an_answer_holds_no_word_of_a_request_that_was_cancelled(engine: Any) -> None:
    shared = engine.Engine(slots=1)
    shared.add("Ann", "my PIN is 4711")
    shared.step()
    shared.step()
    shared.cancel("Ann")
    shared.add("Ben", "hello")
    answer = shared.run()["Ben"]
    assert answer == "You said: hello", f"Ann was cancelled after two words, and Ben got {answer!r}"


def test_requests_in_other_slots_keep_their_state(engine: Any) -> None:
    shared = engine.Engine(slots=2)
    shared.add("Ann", "one two three")
    shared.add("Ben", "hello")
    shared.add("Cy", "good morning")  # enters Ben's slot while Ann is still being read
    answers = shared.run()
    assert answers["Ann"] == "You said: one two three", f"Ann's neighbor changed, and Ann got {answers['Ann']!r}"
