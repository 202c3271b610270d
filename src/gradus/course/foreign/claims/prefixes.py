"""p05: pages that were computed before are found again, whole pages only, and the least recently used is evicted.

Pages have 4 positions. Where a request's first span starts is how many positions it has found.
"""

from gradus.course.foreign.drive import Bench, Drive, require

ROOMY = 40


def computed_pages_are_not_computed_again(bench: Bench) -> None:
    drive = sharing(bench)
    first = drive.oracle.ask(10, 3)
    drive.run(first)
    found(drive, first.prompt[:8], 3, 8, "begins with a's two whole pages")


def of_a_page_all_tokens_must_agree(bench: Bench) -> None:
    drive = sharing(bench)
    first = drive.oracle.ask(10, 3)
    drive.run(first)
    found(drive, (*first.prompt[:7], (first.prompt[7] + 1) % 320), 4, 4, "agrees with a in 7 tokens: one whole page")


def the_last_token_is_always_computed(bench: Bench) -> None:
    drive = sharing(bench)
    first = drive.oracle.ask(8, 2)
    drive.run(first)
    drive.submit("b", first, (4, "has a's very prompt, two pages; the last token's row gives the logits"))
    drive.run()


def a_page_is_found_only_behind_the_same_pages(bench: Bench) -> None:
    drive = sharing(bench)
    first = drive.oracle.ask(9, 2)
    drive.run(first)
    found(drive, first.prompt[4:8] * 2, 1, 0, "begins with a's second page: the same tokens at other positions")


def answers_are_found_again_as_well(bench: Bench) -> None:
    drive = sharing(bench)
    turn = drive.oracle.ask(6, 7)
    drive.run(turn)
    found(drive, (*turn.prompt, *drive.oracle.answer(turn)), 2, 12, "begins with a's prompt and answer, 13 tokens")


def shared_pages_are_held_once(bench: Bench) -> None:
    drive = sharing(bench, sequences=2)
    first = drive.oracle.ask(10, 9)
    second = drive.oracle.ask(2, 4, after=first.prompt[:8])
    drive.submit("a", first)
    drive.step()
    drive.step()
    drive.submit("b", second, (8, "begins with the two pages of a, which still runs"))
    drive.run()
    tables = drive.steps[2].tables
    mine, other = (tables.get(id, ())[:2] for id in "ab")
    require(mine == other, f"a and b share their first two pages; yours hold {list(mine)} and {list(other)}")


def the_least_recently_used_page_is_evicted_ends_first(bench: Bench) -> None:
    """Six pages: three prompts of two pages fill them. a's are used again, then b's and c's are looked for."""
    drive = sharing(bench, pages=6)
    prompts = [drive.oracle.ask(7, 1, after=(first,)) for first in (10, 11, 12)]
    for question in prompts:
        drive.run(question)
    why = "in 6 pages a, b and c left two idle each; then a's were used again, for which the oldest page made room"
    found(drive, prompts[0].prompt, 1, 8, "begins with a's two pages, of which none had to leave")
    found(drive, prompts[1].prompt, 1, 4, f"finds one of b's pages: the end of b's path was idle longest ({why})")


def found(drive: Drive, beginning: tuple[int, ...], more: int, start: int, why: str) -> None:
    """Run a request that begins so, and require where it starts."""
    drive.submit(drive.next_id(), drive.oracle.ask(more, 2, after=beginning), (start, why))
    drive.run()


def sharing(bench: Bench, pages: int = ROOMY, sequences: int = 1) -> Drive:
    return bench.drive(sequences=sequences, pages=pages, sharing=True)


P05 = (
    computed_pages_are_not_computed_again,
    of_a_page_all_tokens_must_agree,
    the_last_token_is_always_computed,
    a_page_is_found_only_behind_the_same_pages,
    answers_are_found_again_as_well,
    shared_pages_are_held_once,
    the_least_recently_used_page_is_evicted_ends_first,
)
