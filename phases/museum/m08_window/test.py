"""A page is free or known, never both, so a prefix that is found is the prefix that was stored."""

from typing import Any

LONG = "the vault opens at noon on Friday morning"


def check(engine: Any) -> None:
    """Between requests every page is free or known, and not both."""
    known = list(engine.known.values())
    both = set(known) & set(engine.free)
    assert not both, f"pages {sorted(both)} are known by a prefix and free for the next request"
    assert sorted(known + engine.free) == list(range(len(engine.memory))), "a page was lost, or given back twice"


def test_a_short_prompt_is_found_again(engine: Any) -> None:
    runs = engine.Engine(pages=8)
    assert runs.ask("good morning Ann") == ("good morning Ann", 0)
    assert runs.ask("good morning Ben") == ("good morning Ben", 2)
    check(runs)


def test_a_prompt_is_answered_from_its_own_words(engine: Any) -> None:
    runs = engine.Engine(pages=5)
    runs.ask(LONG)
    runs.ask("my PIN is 4711")
    answer, _ = runs.ask("the vault is where")
    assert answer == "the vault is where", f"asked 'the vault is where', the model has read {answer!r}"


def test_no_page_is_free_and_known(engine: Any) -> None:
    runs = engine.Engine(pages=9)
    for prompt in (LONG, LONG, "the vault", "the vault is where"):
        runs.ask(prompt)
        check(runs)


def test_a_known_page_is_not_given_back_by_a_window_that_leaves_it(engine: Any) -> None:
    runs = engine.Engine(pages=9)
    runs.ask("the vault is")
    assert runs.ask(LONG)[1] == 2  # begins with the known page, and slides past it
    assert runs.ask("the vault was") == ("the vault was", 2)
    check(runs)
