"""p04: pages as they are needed, all of them returned, and preemption when there are none left. Pages have 4 positions.

A drive checks in every step that tables are as long as their sequences need, and that the pool's pages add up.
"""

from gradus.course.foreign.drive import Bench, Drive, require

SMALL = 6  # pages in which two requests start and only one can end


def a_request_holds_the_pages_that_its_positions_need(bench: Bench) -> None:
    drive = bench.drive(sequences=3, pages=32)
    drive.run(*(drive.oracle.ask(length, 7) for length in (1, 4, 13)))


def no_page_belongs_to_two(bench: Bench) -> None:
    drive = bench.drive(sequences=3, pages=32)
    drive.run(*(drive.oracle.ask(length, 5) for length in (6, 9, 2)))
    for report in drive.steps:
        owners: dict[int, str] = {}
        for id, table in report.tables.items():
            for page in table:
                require(page not in owners, f"step {report.number}: page {page} is in the tables of {owners.get(page)} and {id}")  # fmt: skip # noqa: E501
                owners[page] = id


def pages_return_when_a_request_ends(bench: Bench) -> None:
    drive = bench.drive(sequences=2, pages=10)
    for _ in range(3):  # 27 pages in all
        drive.run(drive.oracle.ask(17, 3), drive.oracle.ask(14, 2))
    report = drive.step()
    require(
        report.free + report.idle == 10,
        f"all requests have ended, so 10 pages are free or idle; yours says {report.free} and {report.idle}",
    )


def what_an_empty_pool_cannot_hold_is_refused(bench: Bench) -> None:
    drive = bench.drive(sequences=2, pages=SMALL)
    large = drive.oracle.ask(20, 16)
    refusal = drive.refusal("large", large)
    require(
        refusal is not None,
        f"20 prompt tokens and 16 more need 9 pages of 4, and the pool has {SMALL}: a refusal; yours accepts them",
    )
    drive.run(drive.oracle.ask(5, 4), drive.oracle.ask(12, 12))  # and the next ones, the second as large as the pool


def requests_that_fit_now_start_now(bench: Bench) -> None:
    drive = contended(bench)
    report = drive.steps[0]
    require(
        {"a", "b"} <= set(report.names),
        f"a needs 2 of {SMALL} pages and b needs 2, so both start; yours computed in step 1: {report.computed}",
    )


def a_preempted_request_resumes_with_the_same_tokens(bench: Bench) -> None:
    drive = contended(bench)
    starts = {id: [span.start for span in drive.spans_of(id)] for id in "abc"}
    again = [id for id, each in starts.items() if each.count(0) > 1]
    require("a" not in again, "a came first and may not be preempted; yours started it again")
    require(
        bool(again), f"a and b cannot both grow to 4 pages in {SMALL}: one is preempted; yours shows no second start"
    )


def a_preempted_request_resumes_before_later_ones_start(bench: Bench) -> None:
    drive = contended(bench)
    early = next(report.number for report in drive.steps if report.of("c"))
    again = [report.number for report in drive.steps if (span := report.of("b")) and span.start == 0]
    require(
        early >= again[-1],
        f"b came before c, so it resumes before c starts; yours resumed b in step {again[-1]}, and started c in step "
        f"{early}",
    )


def contended(bench: Bench) -> Drive:
    """Two requests of 4 pages each in a pool of 6, and a third that waits."""
    drive = bench.drive(sequences=3, pages=SMALL)
    drive.run(drive.oracle.ask(6, 11), drive.oracle.ask(5, 12), arrivals=[(3, drive.oracle.ask(7, 3))])
    return drive


P04 = (
    a_request_holds_the_pages_that_its_positions_need,
    no_page_belongs_to_two,
    pages_return_when_a_request_ends,
    what_an_empty_pool_cannot_hold_is_refused,
    requests_that_fit_now_start_now,
    a_preempted_request_resumes_with_the_same_tokens,
    a_preempted_request_resumes_before_later_ones_start,
)
