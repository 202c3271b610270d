"""p02: the sequences of a batch advance together. p03: one that ends makes room for the next, at every step."""

from gradus.course.foreign.drive import Bench, require
from gradus.exercises.solution import listed

SLOTS = 3


def requests_advance_in_the_same_step(bench: Bench) -> None:
    drive = bench.drive(sequences=SLOTS)
    drive.run(*(drive.oracle.ask(length, 5) for length in (3, 11, 6)))
    for report in drive.steps:
        require(
            set(report.names) == {"a", "b", "c"},
            f"a, b and c have a place and 5 tokens each to make; yours computed in step {report.number}: "
            f"{report.computed}",
        )


def neighbors_of_any_length_change_no_token(bench: Bench) -> None:
    """Lengths that must be padded, in any order; the oracle answers each alone."""
    for lengths in ((1, 17), (17, 1, 9), (2, 2, 30)):
        drive = bench.drive(sequences=SLOTS)
        drive.run(*(drive.oracle.ask(length, 4 + place) for place, length in enumerate(lengths)))


def more_requests_than_places_are_all_answered(bench: Bench) -> None:
    drive = bench.drive(sequences=SLOTS)
    drive.run(*(drive.oracle.ask(3 + place, 2 + place % 3) for place in range(7)))


def a_waiting_request_joins_in_the_step_after_one_ends(bench: Bench) -> None:
    drive = bench.drive(sequences=2)
    drive.run(drive.oracle.ask(4, 2), drive.oracle.ask(6, 7), drive.oracle.ask(5, 3))
    report = drive.steps[2]
    require(
        set(report.names) == {"b", "c"},
        f"a ended in step 2, so c takes its place next to b in step 3; yours computed: {report.computed}",
    )


def a_late_request_joins_those_that_run(bench: Bench) -> None:
    drive = bench.drive(sequences=SLOTS)
    drive.run(drive.oracle.ask(4, 8), arrivals=[(3, drive.oracle.ask(12, 3)), (4, drive.oracle.ask(1, 3))])
    for number, names in ((3, "ab"), (4, "abc")):
        computed = drive.steps[number - 1]
        require(
            set(computed.names) == set(names),
            f"there are places free, so step {number} runs {listed(names)}; yours computed: {computed.computed}",
        )


def requests_start_in_the_order_of_their_arrival(bench: Bench) -> None:
    drive = bench.drive(sequences=2)
    drive.run(*(drive.oracle.ask(3 + 5 * (place % 2), 2 + place % 3) for place in range(6)))
    starts = list(dict.fromkeys(id for report in drive.steps for id in report.names))
    require(starts == sorted(starts), f"a came first, f last; yours started them in the order {', '.join(starts)}")


def a_places_next_request_sees_nothing_of_the_last_one(bench: Bench) -> None:
    """Long ones, then short ones in the same places."""
    drive = bench.drive(sequences=2)
    drive.run(*(drive.oracle.ask(length, 4) for length in (40, 35, 2, 3, 5, 1)))


P02 = (
    requests_advance_in_the_same_step,
    neighbors_of_any_length_change_no_token,
    more_requests_than_places_are_all_answered,
)
P03 = (
    a_waiting_request_joins_in_the_step_after_one_ends,
    a_late_request_joins_those_that_run,
    requests_start_in_the_order_of_their_arrival,
    a_places_next_request_sees_nothing_of_the_last_one,
)
