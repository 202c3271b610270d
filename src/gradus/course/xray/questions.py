"""Questions for a reader who predicts the next step: at most one per step, with answers and reason. No torch here.

A question is asked only where there is something to choose: a page is evicted, a sequence loses its place, a prompt is
cut, a waiting sequence starts or does not, a prefix is found, the number of rows changes.
"""

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Ordered
from typing import Any

from gradus.course.xray.reasons import Bounds, Frame, held, walk
from gradus.course.xray.words import count
from gradus.exercises.solution import listed

Question = dict[str, Any]
"""ask: the question; answers: to choose from, as text; right: the index of the one that holds; why: the reason."""

MOST_ANSWERS = 4


def question(frame: Frame, before: Frame | None, bounds: Bounds) -> Question | None:
    """The most telling question about a frame; None where there is nothing to ask. before: the frame before it."""
    if before is None or frame["plan"] is None or "failed" in frame:
        return None
    return next(_questions(frame, before, bounds), None)


def _questions(frame: Frame, before: Frame, bounds: Bounds) -> Iterator[Question]:
    why = {event["kind"]: event["why"] for event in reversed(frame["events"])}
    if frame["preempted"]:
        names = frame["before"]["running"]
        yield asked("Pages run out. Which sequence is preempted?", names, frame["preempted"][0], why["preemption"])
    if frame["evicted"]:
        page, others = frame["evicted"][0], _kept(frame)
        yield asked("Room is needed. Which page is evicted?", _some(others, page), page, why["eviction"])
    for span in frame["spans"]:
        if span["kind"] == "chunk" and not _repeated(span, before):
            yield _taken(span, before, bounds, why["chunk"])
        if span["id"] in frame["admitted"] and span["start"]:
            yield _found(span, bounds, why["hit"])
    yield from _starts(frame, before)
    if frame["rows"] and frame["rows"] != before["rows"]:
        tokens = sum(len(span["tokens"]) for span in frame["spans"])
        spans = [f"{span['id']} has {len(span['tokens'])} from position {span['start']}" for span in frame["spans"]]
        reason = f"one per token: {listed(spans)}" + ("; the rest is padding" if frame["rows"] > tokens else "")
        near = [before["rows"] or 0, len(frame["spans"]), frame["rows"] + 1, tokens]
        yield asked("How many rows does the step compute?", _some(near, frame["rows"]), frame["rows"], reason)


def _kept(frame: Frame) -> list[int]:
    """Pages that could have been evicted, and were not; those that could not, where there are none."""
    now = held(frame["tables"])
    idle = [page for page in frame["before"]["idle"] if page not in frame["evicted"] and page not in now]
    return idle or sorted(held(frame["before"]["tables"]) & {p for n in walk(frame["tree"] or ()) for p in n["pages"]})


def _taken(span: Frame, before: Frame, bounds: Bounds, why: str) -> Question:
    took = len(span["tokens"])
    end = f"the {took} are the rest of its prompt" if span["logits"] else ""
    near = [bounds.budget or 2 * took, took + 2, max(1, took - 2), 2 * took]
    reason = "; ".join(filter(None, [why, end]))
    return asked(f"How many tokens of {span['id']}'s prompt does the step take?", _some(near, took), took, reason)


def _repeated(span: Frame, before: Frame) -> bool:
    """Whether the step before took as many: then there is nothing new to predict."""
    last = (one for one in before["spans"] if one["id"] == span["id"] and one["kind"] == "chunk")
    return any(len(one["tokens"]) == len(span["tokens"]) for one in last)


def _found(span: Frame, bounds: Bounds, why: str) -> Question:
    start, length, size = span["start"], span["start"] + len(span["tokens"]), bounds.page_size or 1
    ask = f"{span['id']} starts, with {count(length, 'token')}. How many does it find in the prefix tree?"
    return asked(ask, _some([0, length, start + size, start - size], start, most=length), start, why)


def _starts(frame: Frame, before: Frame) -> Iterator[Question]:
    """Whether those that waited start, after a sequence has ended, or where some do."""
    queue = [name for name in before["waiting"] if name not in frame["ended"]]
    if not queue or not (before["ended"] or frame["admitted"]):
        return
    started = [name for name in queue if name in frame["admitted"]]
    sets = [queue[:number] for number in range(len(queue) + 1)][:MOST_ANSWERS]
    if started not in sets:
        sets[-1] = started
    texts = [listed(names) if names else "none" for names in sets]
    whys = [event["why"] for event in frame["events"] if event["kind"] in ("admission", "waiting") and event["why"]]
    reasons = [f"{name} waits: {why}" for name, why in frame["waits"].items() if why][:1] or whys[-1:]
    wait = "waits" if len(queue) == 1 else "wait"
    yield {
        "ask": f"{listed(queue)} {wait}. Which of them starts?",
        "answers": texts,
        "right": sets.index(started),
        "why": "; ".join(reasons),
    }


def asked(ask: str, answers: Iterable[object], right: object, why: str) -> Question:
    texts = list(map(str, answers))
    return {"ask": ask, "answers": texts, "right": texts.index(str(right)), "why": why}


def _some(others: Ordered[int], right: int, most: int | None = None) -> list[int]:
    """The right number among a few others, in their order."""
    fit = [n for n in dict.fromkeys(others) if n != right and n >= 0 and (most is None or n <= most)]
    return sorted([right, *fit[: MOST_ANSWERS - 1]])
