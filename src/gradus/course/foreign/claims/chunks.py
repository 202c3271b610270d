"""p06: no step computes more tokens than its budget, and a prompt waits, not a decode. The budget is 8 tokens."""

from gradus.course.foreign.drive import Bench, Drive, require

BUDGET = 8


def no_step_has_more_tokens_than_the_budget(bench: Bench) -> None:
    drive = chunked(bench)
    drive.run(*(drive.oracle.ask(length, 4) for length in (30, 3, 21, 8)))
    for report in drive.steps:
        count = sum(span.count for span in report.spans)
        require(
            count <= BUDGET,
            f"the budget is {BUDGET} tokens per step; yours computed {count} in step {report.number}: "
            f"{report.computed}",
        )


def a_prompt_is_computed_chunk_by_chunk(bench: Bench) -> None:
    drive = chunked(bench)
    drive.run(drive.oracle.ask(19, 3))
    mine = [(span.start, span.count) for span in drive.spans_of("a")]
    wanted = [(0, 8), (8, 8), (16, 3), (19, 1), (20, 1)]
    require(mine == wanted, f"19 tokens, at most 8 per step: spans (start, count) are {wanted}; yours are {mine}")


def a_decode_never_waits_behind_a_prompt(bench: Bench) -> None:
    drive = chunked(bench)
    drive.run(drive.oracle.ask(2, 12), drive.oracle.ask(3, 12), arrivals=[(3, drive.oracle.ask(25, 2))])
    for report in drive.steps[1:12]:
        require(
            {"a", "b"} <= set(report.names),
            f"a and b get a token in each of steps 2 to 12, whatever prompt comes; yours computed in step "
            f"{report.number}: {report.computed}",
        )


def a_prompt_gets_what_the_decodes_leave(bench: Bench) -> None:
    drive = chunked(bench)
    drive.run(drive.oracle.ask(2, 12), drive.oracle.ask(3, 12), arrivals=[(3, drive.oracle.ask(25, 2))])
    chunks = [(report.number, span.count) for report in drive.steps if (span := report.of("c"))][:4]
    wanted = [(number, BUDGET - 2) for number in (3, 4, 5, 6)]
    require(chunks == wanted, f"c gets the other 6 tokens, (step, tokens): {wanted}; yours are {chunks}")


def what_a_prompt_leaves_goes_to_the_next_one(bench: Bench) -> None:
    drive = chunked(bench)
    drive.run(drive.oracle.ask(11, 2), drive.oracle.ask(9, 1))
    report = drive.steps[1]
    spans = {span.id: (span.start, span.count) for span in report.spans}
    wanted = {"a": (8, 3), "b": (0, 5)}
    require(spans == wanted, f"a's last 3 tokens leave 5 for b in step 2: {wanted}; yours: {spans}")


def chunked(bench: Bench) -> Drive:
    return bench.drive(sequences=4, pages=64, token_budget=BUDGET)


P06 = (
    no_step_has_more_tokens_than_the_budget,
    a_prompt_is_computed_chunk_by_chunk,
    a_decode_never_waits_behind_a_prompt,
    a_prompt_gets_what_the_decodes_leave,
    what_a_prompt_leaves_goes_to_the_next_one,
)
