"""`gradus phases`: the course, what each phase adds, and which phases exist."""

from dataclasses import asdict

from gradus import phases as course
from gradus.cli import options, terminal


def phases(json: options.Json = False) -> int:
    """Show the course: the one idea that each phase adds, and which phases exist.

    Examples:

      gradus phases
      gradus generate "Once upon a time" --phase p00    # run one of them
      gradus phases --json
    """
    course.highest()  # explains what to do if there are none
    found = {phase.number: phase for phase in course.available()}
    rows = [
        {"name": f"p{number:02}", **asdict(lesson), "exists": number in found}
        for number, lesson in (course.SYLLABUS | _beyond(found)).items()
    ]
    if json:
        terminal.print_json(rows)
        return 0
    statuses = ["ready" if row["exists"] else "planned" for row in rows]
    terminal.print_table(
        ["phase", "title", "the idea it adds", "study", "status"],
        [
            [row["name"], row["title"], row["idea"], f"{row['hours']:g} h", status]
            for row, status in zip(rows, statuses, strict=True)
        ],
    )
    terminal.print_note("without --phase, the final engine runs, which has every idea")
    return 0


def _beyond(found: dict[int, course.PhaseInfo]) -> dict[int, course.Lesson]:
    """Phases in the folder that are not in the syllabus, such as a reader's own."""
    own = found.keys() - course.SYLLABUS.keys()
    return {number: course.Lesson(found[number].title, found[number].idea, 0) for number in sorted(own)}
