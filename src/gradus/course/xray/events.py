"""What happened in a step, in words: the page lists it, and jumps from one event of a kind to the next.

Also marks each span with its kind, which says what its tokens are: "prefill", "chunk", "decode", "verify", "recompute".
No torch here.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Ordered
from typing import Any, Protocol

Frame = dict[str, Any]
Event = dict[str, str]

ENDINGS = {
    "length": "has all the tokens it asked for",
    "stop": "stopped: the model ended it",
    "cancelled": "is cancelled",
    "error": "failed",
}


class Arrived(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def prompt(self) -> tuple[int, ...]: ...
    @property
    def at(self) -> int: ...


class Teller:
    """Tells frames in their order: what a step means depends on the ones before it."""

    def __init__(self, arrivals: Ordered[Arrived]) -> None:
        self.prompts = {arrival.name: len(arrival.prompt) for arrival in arrivals}
        self.lengths = dict(self.prompts)  # tokens known of each sequence
        self.cut: set[str] = set()  # a chunk of its prompt ran, and not yet the last one
        self.seen: set[str] = set()  # has started before
        self.plans: dict[int, Ordered[dict[str, Any]]] = {}  # spans by plan, until they are committed
        self.tree: dict[tuple[int, ...], bool] = {}  # the nodes of the frame before, by their pages
        self.preempted: set[str] = set()

    def of(self, frame: Frame) -> list[Event]:
        """The frame's events, most telling first in time: plan, then result. Sets the kind of each of its spans."""
        return [
            *self._given_up(frame),
            *self._preemptions(frame),
            *self._tree(frame),
            *self._spans(frame),
            *self._rows(frame),
            *self._results(frame),
            *([event("failure", frame["failed"])] if "failed" in frame else []),
        ]

    # -- the plan ------------------------------------------------------------------------------------------------------

    def _preemptions(self, frame: Frame) -> Iterator[Event]:
        for name in frame["preempted"]:
            self.preempted.add(name)
            self.cut.discard(name)
            yield event("preemption", f"{name} is preempted: its pages are needed by sequences that came earlier")

    def _spans(self, frame: Frame) -> Iterator[Event]:
        if frame["plan"] is not None:
            self.plans[frame["plan"]] = frame["spans"]
        for span in frame["spans"]:
            span["kind"] = self._kind(span, frame)
            if span["id"] in frame["admitted"]:
                yield from self._admission(span, frame)
            if span["kind"] == "chunk":
                yield self._chunk(span)

    def _kind(self, span: dict[str, Any], frame: Frame) -> str:
        name, admitted = span["id"], span["id"] in frame["admitted"]
        if span["logits"] > 1:
            return "verify"
        if span["logits"] == 0 or name in self.cut:
            return "chunk"
        if admitted:
            return "prefill"
        return "decode" if len(span["tokens"]) == 1 else "recompute"

    def _admission(self, span: dict[str, Any], frame: Frame) -> Iterator[Event]:
        name, start, place = span["id"], span["start"], f"slot {span['slot']}"
        if name in self.seen:
            yield event("admission", f"{name} resumes in {place}: prompt and output so far are its prompt now")
        else:
            yield event("admission", f"{name} starts in {place}")
        self.seen.add(name)
        self.preempted.discard(name)
        if start:
            left = self.lengths[name] - start
            rest = "only the last token is" if left == 1 else f"{left} tokens are"
            yield event("hit", f"{name} finds {count(start, 'token')} in the prefix tree; {rest} left to compute")

    def _chunk(self, span: dict[str, Any]) -> Event:
        name, end = span["id"], span["start"] + len(span["tokens"])
        left = self.lengths[name] - end
        (self.cut.add if span["logits"] == 0 else self.cut.discard)(name)
        said = f"{count(left, 'token')} left" if left else "the last one, so it samples a token"
        return event("chunk", f"{name}: a chunk of {count(len(span['tokens']), 'token')}; {said}")

    def _rows(self, frame: Frame) -> Iterator[Event]:
        tokens = sum(len(span["tokens"]) for span in frame["spans"])
        if (frame["rows"] or 0) > tokens:
            padding = frame["rows"] - tokens
            verb = "is" if padding == 1 else "are"
            yield event(
                "padding", f"{padding} of {count(frame['rows'], 'row')} {verb} padding, computed and thrown away"
            )

    # -- the tree ------------------------------------------------------------------------------------------------------

    def _tree(self, frame: Frame) -> Iterator[Event]:
        nodes = {tuple(node["pages"]): True for node in walk(frame["tree"] or ())}
        before, self.tree = self.tree, nodes
        now = {page for pages in nodes for page in pages}
        gone = sorted(page for pages in before for page in pages if page not in now)
        if gone:
            are = "is" if len(gone) == 1 else "are"
            yield event("eviction", f"{pages_named(gone)} {are} evicted: idle the longest, and room is needed")
        for pages in before:
            upper = next((new for new in nodes if len(new) < len(pages) and new == pages[: len(new)]), None)
            if upper and set(pages[len(upper) :]) & now:
                lower = pages[len(upper) :]
                yield event("split", f"a node splits: {pages_named(upper)} above, {pages_named(lower)} below")

    # -- the result ----------------------------------------------------------------------------------------------------

    def _given_up(self, frame: Frame) -> Iterator[Event]:
        for name, reason in frame["ended"].items():
            if reason == "cancelled":
                yield event("ending", f"{name} {ENDINGS[reason]}")

    def _results(self, frame: Frame) -> Iterator[Event]:
        for span in self.plans.pop(frame["committed"], ()):  # none where nothing was committed
            name, new = span["id"], frame["outputs"].get(span["id"], ())
            if span["kind"] == "verify":
                yield self._drafts(span, new)
            elif span["logits"] and not new:
                yield event("vain", f"{name} had ended when its result came: that row was computed in vain")
        for name, new in frame["outputs"].items():
            self.lengths[name] += len(new)
        for name, reason in frame["ended"].items():
            if reason != "cancelled":
                yield event("ending", f"{name} {ENDINGS.get(reason, f'ends: {reason}')}")

    def _drafts(self, span: dict[str, Any], new: Ordered[int]) -> Event:
        drafts, kept = len(span["tokens"]) - 1, max(0, len(new) - 1)
        span["accepted"] = kept
        return event(
            "drafts", f"{span['id']}: {kept} of {count(drafts, 'draft')} accepted, {count(len(new), 'new token')}"
        )


def walk(tree: Ordered[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for node in tree:
        yield node
        yield from walk(node["children"])


def event(kind: str, text: str) -> Event:
    return {"kind": kind, "text": text}


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def listed(numbers: Ordered[int]) -> str:
    """1, 2 and 5"""
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last


def pages_named(numbers: Ordered[int]) -> str:
    return f"{'page' if len(numbers) == 1 else 'pages'} {listed(numbers)}"
