"""The events of a step, each with its reason: the page lists them, and jumps from one of a kind to the next.

Also says what each waiting sequence waits for, and marks each span with its kind, which says what its tokens are:
"prefill", "chunk", "decode", "verify", "recompute". No torch here.
"""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Ordered
from typing import Any

from gradus.course.xray.reasons import Arrived, Bounds, Frame, Reasons, span_pages, walk
from gradus.course.xray.words import are, count, pages_named
from gradus.exercises.solution import listed

Event = dict[str, Any]
"""kind; text: what happened; why: the reason, "" if the recording does not show it; pages: those it is about."""

ENDINGS = {"length": "ends", "stop": "stops", "cancelled": "is cancelled", "error": "fails"}


class Teller:
    """Describes frames in order, since the meaning of a step depends on the ones before it."""

    def __init__(self, arrivals: Ordered[Arrived], bounds: Bounds, word: Callable[[int], str]) -> None:
        self.reasons = Reasons(bounds, arrivals, word)
        self.cut: set[str] = set()  # a chunk of its prompt ran, and not yet the last one
        self.seen: set[str] = set()  # has started before
        self.plans: dict[int, Ordered[dict[str, Any]]] = {}  # spans by plan, until they are committed
        self.tree: list[tuple[int, ...]] = []  # the nodes of the frame before: their pages
        self.waits: dict[str, str] = {}  # what each sequence waits for, in a word
        self.ended: dict[str, int] = {}  # in which step
        self.down: dict[str, int] = {}  # by page name: the step in which it moved down to host memory

    def of(self, frame: Frame) -> list[Event]:
        """The frame's events, in their order: plan, then result. Sets the kind of each span, `evicted` and `waits`."""
        for span in frame["spans"]:
            span["kind"] = self._kind(span, frame)
        frame["evicted"] = self._evicted(frame)
        events = [
            *self._given_up(frame),
            *self._preemptions(frame),
            *self._splits(frame),
            *self._evictions(frame),
            *self._host(frame),
            *self._spans(frame),
            *self._waiting(frame),
            *self._grammars(frame),
            *self._rows(frame),
            *self._results(frame),
            *([event("failure", frame["failed"])] if "failed" in frame else []),
        ]
        self.tree = self._nodes(frame)
        self.reasons.follow(frame)
        return events

    # -- the plan ------------------------------------------------------------------------------------------------------

    def _preemptions(self, frame: Frame) -> Iterator[Event]:
        for name in frame["preempted"]:
            self.cut.discard(name)
            pages = [page for table in frame["before"]["tables"].get(name, ()) for page in table if page]
            yield event("preemption", f"{name} is preempted", self.reasons.preemption(name, frame), pages)

    def _spans(self, frame: Frame) -> Iterator[Event]:
        for span in frame["spans"]:
            if span["id"] in frame["admitted"]:
                yield from self._admission(span, frame)
            if span["kind"] == "chunk":
                yield self._chunk(span, frame)

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
        name, start = span["id"], span["start"]
        starts, why = "starts", self.reasons.admission(span, frame)
        if name in self.seen:
            starts, why = "resumes", f"{why}; its prompt and output so far are its prompt now"
        self.seen.add(name)
        pages = span_pages(frame, span, 0, start, self.reasons.bounds.page_size)
        yield event("admission", f"{name} {starts} in slot {span['slot']}", why, pages)
        if start:
            left = len(self.reasons.texts[name]) - start
            rest = "the last one, which is never reused" if left == 1 else f"the other {left}"
            said = f"{name} reuses {count(start, 'token')} and computes {rest}"
            yield event("hit", said, self.reasons.hit(span, frame), pages)

    def _chunk(self, span: dict[str, Any], frame: Frame) -> Event:
        name, took, end = span["id"], len(span["tokens"]), span["start"] + len(span["tokens"])
        (self.cut.add if span["logits"] == 0 else self.cut.discard)(name)
        left = len(self.reasons.texts[name]) - end
        said = (
            f"a chunk of {count(took, 'token')} and has {left} left"
            if left
            else f"its last chunk, of {count(took, 'token')}"
        )
        pages = span_pages(frame, span, span["start"], end, self.reasons.bounds.page_size)
        return event("chunk", f"{name} runs {said}", self.reasons.chunk(span, frame), pages)

    def _waiting(self, frame: Frame) -> Iterator[Event]:
        """Why each waiting sequence waits: `waits` of the frame. An event where the reason is a new one."""
        before, self.waits, frame["waits"] = self.waits, {}, {}
        for name in frame["waiting"]:
            self.waits[name], why = self.reasons.waiting(name, frame)
            frame["waits"][name] = why
            if why and self.waits[name] != before.get(name) and name not in frame["preempted"]:
                yield event("waiting", f"{name} waits", why)

    def _grammars(self, frame: Frame) -> Iterator[Event]:
        """Report how grammars changed their sequences' drafts."""
        for name, drafts in frame["drafts"].items():
            proposed, forced, verified = drafts["proposed"], drafts["forced"], drafts["verified"]
            if forced:
                said = f"{name}'s grammar forces {count(len(forced), 'token')}"
                rows = sum(len(span["tokens"]) for span in frame["spans"] if span["id"] == name)
                yield event("grammar", said, self.reasons.forced(forced, rows - 1))
            elif cut := len(proposed) - len(verified):
                said = f"{cut} of {count(len(proposed), 'draft')} for {name} {are(cut)} cut"
                yield event("grammar", said, self.reasons.cut(proposed[len(verified)]))

    def _rows(self, frame: Frame) -> Iterator[Event]:
        tokens = sum(len(span["tokens"]) for span in frame["spans"])
        if (frame["rows"] or 0) > tokens:
            padding = frame["rows"] - tokens
            said = f"{padding} of {count(frame['rows'], 'row')} {are(padding)} padding"
            yield event("padding", said, self.reasons.padding(frame))

    # -- the tree ------------------------------------------------------------------------------------------------------

    def _nodes(self, frame: Frame) -> list[tuple[int, ...]]:
        return [tuple(node["pages"]) for node in walk(frame["tree"] or ())]

    def _evicted(self, frame: Frame) -> list[int]:
        """Pages that were in the tree and no longer are. Over host memory, another one may have come to its place."""
        if frame["host"] is not None:
            left = set(frame["names"].values())
            return sorted(page for page, name in frame["before"]["names"].items() if name not in left)
        now = {page for pages in self._nodes(frame) for page in pages}
        return sorted(page for pages in self.tree for page in pages if page not in now)

    def _evictions(self, frame: Frame) -> Iterator[Event]:
        if gone := frame["evicted"]:
            why = self.reasons.eviction(gone, frame)
            below = {page["name"] for page in frame["host"] or ()}
            moved = [page for page in gone if frame["before"]["names"].get(page) in below]
            where = ""
            if moved:
                which = "" if moved == gone else f"{pages_named(moved)} "
                where = f", {which}to host memory"
            yield event("eviction", f"{pages_named(gone)} {are(len(gone))} evicted{where}", why, gone)

    def _host(self, frame: Frame) -> Iterator[Event]:
        """Pages that come up from host memory, and those that leave it for newer ones."""
        if frame["host"] is None:
            return
        before, now = frame["before"], frame["names"]
        was, below = ([page["name"] for page in each["host"]] for each in (before, frame))
        for name, tables in frame["tables"].items():
            pages = [page for table in tables for page in table if now.get(page) in was]
            if pages and name in frame["admitted"]:
                steps = sorted({self.down[now[page]] for page in pages if now[page] in self.down})
                why = f"moved down in {'step' if len(steps) == 1 else 'steps'} {listed(steps)}" if steps else ""
                said = f"{name} gets {count(len(pages), 'page')} back from host memory: {pages_named(pages)}"
                yield event("fetch", said, why, pages)
        lost = [name for name in was if name not in below and name not in now.values()]
        if lost:
            others = [name for name in was if name not in now.values()]
            why = "it was full, and nothing else was unused for as long" if others[: len(lost)] == lost else ""
            verb = "leaves" if len(lost) == 1 else "leave"
            yield event("lost", f"{count(len(lost), 'page')} {verb} host memory for good", why)
        self.down |= dict.fromkeys((name for name in below if name not in was), frame["number"])

    def _splits(self, frame: Frame) -> Iterator[Event]:
        nodes = self._nodes(frame)
        stayed = {page for pages in nodes for page in pages} - set(frame["evicted"])
        for pages in self.tree:
            upper = next((new for new in nodes if len(new) < len(pages) and new == pages[: len(new)]), None)
            if upper and set(pages[len(upper) :]) & stayed:
                lower = pages[len(upper) :]
                said = f"a node splits into {pages_named(upper)} and, below, {pages_named(lower)}"
                why = self.reasons.split(upper, lower, walk(frame["tree"] or ()), frame)
                yield event("split", said, why, pages)

    # -- the result ----------------------------------------------------------------------------------------------------

    def _given_up(self, frame: Frame) -> Iterator[Event]:
        for name, reason in frame["ended"].items():
            if reason == "cancelled":
                self.ended[name] = frame["number"]
                yield event("ending", f"{name} {ENDINGS[reason]}", self.reasons.ending(name, reason))

    def _results(self, frame: Frame) -> Iterator[Event]:
        if frame["plan"] is not None:
            self.plans[frame["plan"]] = frame["spans"]
        spans = self.plans.pop(frame["committed"], ())  # none where nothing was committed
        for name, new in frame["outputs"].items():
            self.reasons.texts[name] += new
        for span in spans:
            name, new = span["id"], frame["outputs"].get(span["id"], ())
            if span["logits"] and not new:
                rows = "row was" if span["logits"] == 1 else f"{span['logits']} rows were"
                why = self.reasons.vain(name, frame["committed"], self.ended)
                yield event("vain", f"{name}'s {rows} computed in vain", why)
            elif span["kind"] == "verify":
                yield self._drafts(span, new)
        for name, reason in frame["ended"].items():
            if reason != "cancelled":
                self.ended[name] = frame["number"]
                yield event("ending", f"{name} {ENDINGS.get(reason, 'ends')}", self.reasons.ending(name, reason))

    def _drafts(self, span: dict[str, Any], new: Ordered[int]) -> Event:
        drafts, kept = len(span["tokens"]) - 1, max(0, len(new) - 1)
        span["accepted"] = kept
        said = f"{span['id']} keeps {kept} of {count(drafts, 'draft')} and gets {count(len(new), 'new token')}"
        return event("drafts", said, self.reasons.drafts(span, new))


def event(kind: str, text: str, why: str = "", pages: Ordered[int] = ()) -> Event:
    return {"kind": kind, "text": text, "why": why, "pages": list(pages)}
