"""The lines that a check of an open task prints."""

from collections.abc import Iterator

from gradus.course.open.attempt import Found, share
from gradus.course.open.declaration import Open
from gradus.course.student.ladder import Best


def lines(task: Open, found: Found, best: Best | None) -> Iterator[str]:
    """The result of an attempt. best: the phase's best so far, this attempt included if it is that."""
    seeds = ", ".join(map(str, found.seeds))
    if found.error:
        yield f"does not count: {found.error}"
        yield f"seeds      {seeds}"
        return
    assert found.mine is not None and found.base is not None
    mine, base = found.mine[task.counts], found.base[task.counts]
    yield f"goal       {task.goal}"
    yield f"measured   {mine:,.1f} {task.unit}; the beginning has {base:,.1f}"
    spread = f" ({min(found.ratios):.2f} to {max(found.ratios):.2f})" if task.clocked else ""
    yield f"score      {found.ratio:.2f}{spread}, the goal is {task.target}"
    for name, most in task.bounds.items():
        ratio = share(found.mine[name], found.base[name])
        verdict = "kept" if ratio <= most else "exceeded"
        yield f"{name:10} {ratio:.2f} of the beginning's, {most:.2f} at most: {verdict}"
    for name, most in task.needs.items():
        ratio = share(found.mine[name], found.base[name])
        verdict = "; above 1.00 a score does not count" if ratio > 1 else ""
        yield f"{name:10} {ratio:.2f} of the beginning's, the goal is {most:.2f} or less{verdict}"
    yield f"verified   every answer of {len(found.seeds)} workloads, drawn anew; seeds {seeds}"
    if best is not None:
        yield f"your best  {shown(best)}"
    yield f"\n{verdict_of(task, found)}"


def verdict_of(task: Open, found: Found) -> str:
    if found.beyond(task):
        return "Not yet: a bound is exceeded, so this score does not count."
    if task.reached(found.ratio) and (missing := found.above(task.needs)):
        return f"Not yet: the score is enough, and {' and '.join(missing)} must become smaller."
    return "Reached." if found.reached(task) else "Not yet."


def shown(best: Best) -> str:
    """A best attempt in a few words: "0.72, reached, 2026-05-01, file 3f9a12c0"."""
    reached = "reached" if best.reached else "not reached"
    return f"{best.ratio:.2f}, {reached}, {best.day}, file {best.sha256[:8]}"
