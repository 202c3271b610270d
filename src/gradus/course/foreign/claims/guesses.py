"""p08: drafts change the number of steps, and nothing else. At most 4 drafts per step.

A drive checks in every step that it makes one token more than its right drafts.
"""

from gradus.course.foreign.drive import Bench, Drive, require

DRAFTS = 4
LONG, MOST_STEPS = 60, 45  # tokens of an answer that repeats itself, and the steps that it may take


def drafts_change_no_token(bench: Bench) -> None:
    drive = drafting(bench)
    repeated = drive.oracle.ask(5, 1).prompt * 4
    drive.run(drive.oracle.ask(9, 10), drive.oracle.ask(3, 10, after=repeated), drive.oracle.ask(1, 6))


def drafts_change_no_token_that_is_drawn_with_a_seed(bench: Bench) -> None:
    drive = drafting(bench)
    repeated = drive.oracle.ask(5, 1).prompt * 4
    drive.run(drive.oracle.ask(3, 12, after=repeated, temperature=0.5, seed=3))


def no_more_drafts_than_the_limit_and_none_behind_the_end(bench: Bench) -> None:
    drive = drafting(bench)
    drive.run(drive.oracle.ask(4, LONG))
    for report in drive.steps:
        for span in report.spans:
            require(len(span.drafts) <= DRAFTS, f"at most {DRAFTS} drafts per step; step {report.number} has {len(span.drafts)}")  # fmt: skip # noqa: E501
    last = next(span for report in reversed(drive.steps) for span in report.spans)
    end = 4 + LONG
    require(last.end <= end, f"the request ends with position {end - 1}; the last span computes to {last.end - 1}")


def a_text_that_repeats_itself_takes_fewer_steps_than_tokens(bench: Bench) -> None:
    drive = drafting(bench)
    drive.run(drive.oracle.ask(4, LONG))
    steps = sum(bool(span.tokens) for span in drive.spans_of("a"))
    answer = drive.asked["a"].answer
    require(
        steps <= MOST_STEPS,
        f"the answer repeats itself ({list(answer[-8:])} at its end), so {LONG} tokens take at most "
        f"{MOST_STEPS} steps; yours took {steps}",
    )


def wrong_drafts_leave_no_page_behind(bench: Bench) -> None:
    """A pool that is just large enough: what wrong drafts held must have returned."""
    drive = bench.drive(sequences=2, pages=12, drafts=DRAFTS)
    repeated = drive.oracle.ask(5, 1).prompt * 3
    drive.run(drive.oracle.ask(2, 8, after=repeated), drive.oracle.ask(6, 9))
    report = drive.step()
    require(report.free + report.idle == 12, f"all requests have ended, and {12 - report.free - report.idle} pages are missing")  # fmt: skip # noqa: E501


def drafting(bench: Bench) -> Drive:
    return bench.drive(sequences=3, pages=64, drafts=DRAFTS)


P08 = (
    drafts_change_no_token,
    drafts_change_no_token_that_is_drawn_with_a_seed,
    no_more_drafts_than_the_limit_and_none_behind_the_end,
    a_text_that_repeats_itself_takes_fewer_steps_than_tokens,
    wrong_drafts_leave_no_page_behind,
)
