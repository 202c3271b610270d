"""Speculation changes how many steps an answer takes, and nothing of the answer."""

from typing import Any


def test_drafts_save_steps(engine: Any) -> None:
    plain, drafting = engine.Engine(drafts=0), engine.Engine(drafts=4)
    plain.generate(stop=" eight")
    drafting.generate(stop=" eight")
    assert drafting.steps <= 4 < plain.steps, f"{drafting.steps} steps with drafts, {plain.steps} without"


def test_the_text_ends_before_the_stop_string(engine: Any) -> None:
    assert engine.Engine(drafts=4).generate(stop=" five").text == "one two three, four"


def test_the_tokens_end_where_they_would_without_drafts(engine: Any) -> None:
    for stop in (" two", ",", " five", "never said"):
        wanted = engine.Engine(drafts=0).generate(stop)
        for drafts in (1, 4, 8):
            found = engine.Engine(drafts).generate(stop)
            said = f"stop {stop!r} with {drafts} drafts: {found.tokens}, and without: {wanted.tokens}"
            assert (found.tokens, found.text) == (wanted.tokens, wanted.text), said


def test_a_stop_string_across_two_tokens_is_found(engine: Any) -> None:
    answer = engine.Engine(drafts=4).generate(stop="o th")
    assert (answer.text, answer.tokens) == ("one tw", ["one", " two", " three"]), f"{answer.text!r}: {answer.tokens}"
