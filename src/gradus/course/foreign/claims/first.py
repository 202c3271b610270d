"""p00: the oracle's tokens. p01: each position is computed once, and a token costs no more in a longer text."""

import time

from gradus.course.foreign.drive import Bench, Drive, require
from gradus.course.foreign.oracle import Question

SHORT, LONG = 8, 440  # positions before the tokens that are timed
TIMED = 8
MOST_SLOWDOWN = 8.0
"""Attention over 440 positions makes a token slower than over 8: 2.1 times in p01's engine, 3.8 times in the tests' C
engine. With all positions computed again for every token, the C engine takes 154 times as long (on two CPU cores)."""


def greedy_tokens_are_the_oracles(bench: Bench) -> None:
    drive = bench.drive(once=False)
    for length in (1, 7, 33):
        drive.run(drive.oracle.ask(length, 8))


def tokens_drawn_with_a_seed_are_the_oracles(bench: Bench) -> None:
    drive = bench.drive(once=False)
    for seed, temperature in ((7, 0.8), (1 << 40, 1.5)):
        drive.run(drive.oracle.ask(9, 8, temperature=temperature, seed=seed))


def requests_are_answered_in_the_order_of_their_arrival(bench: Bench) -> None:
    drive = bench.drive(once=False)
    drive.run(*(drive.oracle.ask(length, 3) for length in (9, 4, 6)))
    ends = [id for report in drive.steps for id in report.ended]
    require(ends == ["a", "b", "c"], f"a, b and c came in this order, one runs at a time; yours ended {ends}")


def each_position_is_computed_once(bench: Bench) -> None:
    drive = bench.drive()
    drive.run(drive.oracle.ask(9, 6))
    drive.run(drive.oracle.ask(33, 6))


def a_token_costs_one_row_however_long_the_text_is(bench: Bench) -> None:
    drive = bench.drive()
    short, long = (timed(drive, drive.oracle.ask(length, TIMED)) for length in (SHORT, LONG))
    require(
        long < MOST_SLOWDOWN * short,
        f"a step behind {LONG} positions takes {1000 * long:.2f} ms, one behind {SHORT} takes {1000 * short:.2f} ms: "
        f"{long / short:.0f} times as long, as if all positions were computed again",
    )


def timed(drive: Drive, question: Question) -> float:
    """Seconds of the fastest step that makes one token, behind the question's prompt."""
    drive.submit(drive.next_id(), question)
    drive.step()
    fastest = float("inf")
    while drive.left:
        begun = time.perf_counter()
        drive.step()
        fastest = min(fastest, time.perf_counter() - begun)
    return fastest


P00 = (
    greedy_tokens_are_the_oracles,
    tokens_drawn_with_a_seed_are_the_oracles,
    requests_are_answered_in_the_order_of_their_arrival,
)
P01 = (each_position_is_computed_once, a_token_costs_one_row_however_long_the_text_is)
