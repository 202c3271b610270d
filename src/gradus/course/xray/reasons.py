"""The reason for each event: a sentence made from recorded facts, or "" where that does not show the reason.

A sentence never repeats a rule on trust. "It came last" is said of a sequence that did come last, "idle the longest" of
a page that was. A student's engine may choose otherwise, and then the sentence says what it chose. No torch here.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import Any, Protocol

from gradus.course.xray.words import count, none_or, pages_named, quoted, was
from gradus.exercises.solution import listed

Frame = dict[str, Any]
Span = dict[str, Any]


class Arrived(Protocol):
    """A request. output: the most tokens that it may get."""

    @property
    def name(self) -> str: ...
    @property
    def prompt(self) -> tuple[int, ...]: ...
    @property
    def output(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits on a plan; None where the engine has no such limit. slots: sequences that run at once."""

    slots: int | None = None
    page_size: int | None = None
    budget: int | None = None


class Reasons:
    """Follows a run's frames: for which sequence a page was computed, since when it is idle, when a slot became free.

    texts: the tokens known of each sequence, which the caller keeps up to date. word: how a token is written.
    """

    def __init__(self, bounds: Bounds, arrivals: Ordered[Arrived], word: Callable[[int], str]) -> None:
        self.bounds, self.word = bounds, word
        self.texts = {arrival.name: list(arrival.prompt) for arrival in arrivals}
        self.prompts = {arrival.name: len(arrival.prompt) for arrival in arrivals}
        self.wanted = {arrival.name: arrival.output for arrival in arrivals}
        self.computed_by: dict[int, str] = {}  # the sequence that a page was taken for
        self.makers: dict[str, str] = {}  # the same by the page's name, which it keeps in host memory
        self.held_in: dict[int, int] = {}  # the latest step in which a page was held
        self.left: dict[int, tuple[str, int]] = {}  # by slot: the sequence that was there last, and until which step
        self.slots: dict[str, int] = {}  # of the sequences that run
        self.batch: dict[str, int] = {}  # the step in which a running sequence started

    def follow(self, frame: Frame) -> None:
        """Go on to the frame's end, once its sentences are made."""
        known = held(frame["before"]["tables"]) | set(frame["before"]["idle"]) - set(frame["evicted"])
        for page, named in frame["before"]["names"].items():
            if page in self.computed_by:
                self.makers.setdefault(named, self.computed_by[page])
        for name, tables in frame["tables"].items():
            self.computed_by |= dict.fromkeys(pages_in(tables) - known, name)
        self.computed_by |= {page: self.makers[name] for page, name in frame["names"].items() if name in self.makers}
        for page in held(frame["tables"]):
            self.held_in[page] = frame["number"]
        for span in frame["spans"]:
            self.slots[span["id"]] = span["slot"]
        for name in frame["admitted"]:
            self.batch[name] = frame["number"]
        for name in (*frame["ended"], *frame["preempted"]):
            if name in self.slots:
                self.left[self.slots.pop(name)] = name, frame["number"]

    # -- who starts, and who waits -------------------------------------------------------------------------------------

    def admission(self, span: Span, frame: Frame) -> str:
        """The slot was free, and the pages were there."""
        reason, before = self._place(span["slot"], frame), frame["before"]
        if before["pages"] is None or self.bounds.page_size is None:
            return reason
        had, tokens = held(before["tables"]), count(len(span["tokens"]), "token")
        earlier = frame["spans"][: frame["spans"].index(span)]
        taken = {page for other in earlier for page in pages_in(frame["tables"].get(other["id"], ()))} - had
        taken |= set(span_pages(frame, span, 0, span["start"], self.bounds.page_size)) - had  # found, and idle till now
        idle = before["pages"]["idle"]
        room = before["pages"]["free"] + idle - len(taken)
        needed = self.pages_for(span["start"] + len(span["tokens"])) - self.pages_for(span["start"])
        need = "needs" if len(span["tokens"]) == 1 else "need"
        return f"{reason}, and its {tokens} {need} {needed} of the {room} {'free or idle' if idle else 'free'} pages"

    def _place(self, slot: int, frame: Frame) -> str:
        who, step = self.left.get(slot, ("", 0))
        last, latest = max(self.left.values(), key=lambda leaver: leaver[1], default=("", 0))
        if frame["before"]["pages"] is None and not frame["before"]["running"] and last:
            alone = ", and one sequence runs at a time" if self.bounds.slots == 1 else ""
            return f"nothing runs since {last} ended in step {latest}{alone}"
        if self.bounds.slots == 1:
            return "nothing else runs"
        return f"the slot is free since {who} left it in step {step}" if who else "the slot is free"

    def waiting(self, name: str, frame: Frame) -> tuple[str, str]:
        """The reason to wait, as a word and as a sentence; ("", "") if the recording does not show it."""
        running, ahead = frame["running"], frame["waiting"][: frame["waiting"].index(name)]
        if frame["plan"] is None:
            return "", ""
        if frame["preempted"]:
            if name in frame["preempted"]:
                return "preempted", "its pages were just given up"
            return "preemption", f"{listed(frame['preempted'])} just gave pages up, so nothing starts in this step"
        if ahead:
            return "queue", f"{ahead[0]} came before it, and waits as well"
        if self.bounds.slots is not None and len(running) >= self.bounds.slots:
            if self.bounds.slots == 1:
                return "slots", f"{running[0]} runs, and one sequence runs at a time"
            every = "both" if self.bounds.slots == 2 else f"all {self.bounds.slots}"
            return "slots", f"{listed(running)} have {every} slots"
        return self._without_room(name, frame) or self._behind_a_batch(frame)

    def _without_room(self, name: str, frame: Frame) -> tuple[str, str] | None:
        """Too few tokens left in the budget, or too few pages."""
        left, length = self.length_left(frame), len(self.texts[name])
        if left == 0:
            return "budget", f"the step's budget of {self.bounds.budget} tokens is used up"
        if frame["pages"] is None or self.bounds.page_size is None:
            return None
        found = self._known_pages(name, frame)
        idle = [page for page in found if page not in held(frame["tables"])]
        end = length if left is None else min(length, len(found) * self.bounds.page_size + left)
        needed, spare = self.pages_for(end) - len(found), len(frame["running"])
        room = frame["pages"]["free"] + frame["pages"]["idle"] - len(idle)
        if needed + spare <= room:
            return None
        kinds = "free or idle" if frame["pages"]["idle"] else "free"
        if needed > room:
            return "pages", f"it needs {count(needed, 'page')}, and {none_or(room)} {kinds}"
        grow = f"{spare} for the running {'sequence' if spare == 1 else 'sequences'} to grow into"
        return "pages", f"it needs {count(needed, 'page')} plus {grow}, and {none_or(room)} {kinds}"

    def _known_pages(self, name: str, frame: Frame) -> list[int]:
        """Pages of the tree that its prompt would find."""
        return self.prefix(frame["tree"] or (), self.texts[name][:-1])

    def prefix(self, nodes: Iterable[Frame], tokens: Ordered[int]) -> list[int]:
        size = self.bounds.page_size or 1
        for node in nodes:
            pages = []
            for place, page in enumerate(node["pages"]):
                part = list(tokens[place * size : (place + 1) * size])
                if len(part) < size or part != node["tokens"][place * size : (place + 1) * size]:
                    break
                pages.append(page)
            if pages:
                whole = len(pages) == len(node["pages"])
                return pages + (self.prefix(node["children"], tokens[len(pages) * size :]) if whole else [])
        return []

    def _behind_a_batch(self, frame: Frame) -> tuple[str, str]:
        """A free slot, no pages to wait for: sequences that started together are not joined."""
        if frame["pages"] is None and frame["running"]:
            verb = "runs" if len(frame["running"]) == 1 else "run"
            return "batch", f"{listed(frame['running'])} of the batch before still {verb}"
        return "", ""

    # -- what a span takes ---------------------------------------------------------------------------------------------

    def hit(self, span: Span, frame: Frame) -> str:
        pages = span_pages(frame, span, 0, span["start"], self.bounds.page_size)
        if not pages:
            return ""
        makers = self.computed_by | {page: self.makers.get(name, "") for page, name in frame["names"].items()}
        owners = list(dict.fromkeys(makers[page] for page in pages if makers.get(page)))
        whose = f", computed for {listed(owners)}" if owners else ""
        verb = "holds" if len(pages) == 1 else "hold"
        return f"{pages_named(pages)} {verb} the same {span['start']}{whose}"

    def chunk(self, span: Span, frame: Frame) -> str:
        """The tokens of the budget that the spans before this one left."""
        if self.bounds.budget is None:
            return ""
        before = frame["spans"][: frame["spans"].index(span)]
        decodes = sum(1 for other in before if other["kind"] in ("decode", "verify"))
        others = sum(len(other["tokens"]) for other in before if other["kind"] not in ("decode", "verify"))
        left = self.bounds.budget - decodes - others
        beside = [count(decodes, "decode")] if decodes else []
        beside += [f"{others} tokens of other prompts"] if others else []
        if not beside:
            return f"the step's budget is {self.bounds.budget} tokens"
        return f"the step's budget of {self.bounds.budget} has {left} left after {listed(beside)}"

    def length_left(self, frame: Frame) -> int | None:
        """Tokens of the budget left for a sequence that waits. Drafts come after it, so they do not count."""
        if self.bounds.budget is None:
            return None
        took = sum(1 if span["kind"] == "verify" else len(span["tokens"]) for span in frame["spans"])
        return max(0, self.bounds.budget - took)

    def padding(self, frame: Frame) -> str:
        """The rectangle is as wide as its widest span, and as high as its batch."""
        widest = max(frame["spans"], key=lambda span: len(span["tokens"]))
        width = len(widest["tokens"])
        if frame["rows"] % width:
            return ""
        high = frame["rows"] // width
        short = [f"{span['id']} has {len(span['tokens'])}" for span in frame["spans"] if len(span["tokens"]) < width]
        reasons = [f"the longest span, of {widest['id']}, has {width} tokens; {listed(short)}"] if short else []
        if empty := high - len(frame["spans"]):
            started = [name for name, _ in self.left.values()]
            gone = [name for name in started if self.batch.get(name) == self.batch.get(widest["id"])]
            who = listed(sorted(gone)) if len(gone) == empty else count(empty, "sequence")
            have = "has" if empty == 1 else "have"
            reasons.append(f"{who} {have} ended, and the batch keeps {'its row' if empty == 1 else 'their rows'}")
        return "; ".join(reasons)

    # -- pages that are given up ---------------------------------------------------------------------------------------

    def preemption(self, name: str, frame: Frame) -> str:
        """The sequence that found no page, and whether the preempted one came last."""
        before = frame["before"]
        if before["pages"] is None:
            return ""
        needing, running = self.needing(frame), before["running"]
        later = [other for other in running[running.index(name) + 1 :] if other not in frame["preempted"]]
        came = f"although {listed(later)} came later" if later else f"and {name} came last"
        if needing is None:
            return came.removeprefix("and ")
        return f"{'it' if needing == name else needing} needs a page, none is left, {came}"

    def needing(self, frame: Frame) -> str | None:
        """The first sequence, in the order of the plan, for whose next span the pages were not enough."""
        before, size = frame["before"], self.bounds.page_size
        if size is None:
            return None
        room = before["pages"]["free"] + before["pages"]["idle"]
        ends = {span["id"]: span["start"] + len(span["tokens"]) for span in frame["spans"]}
        for name in before["running"]:
            has = max(map(len, before["tables"].get(name) or [[]]))
            room -= max(0, self.pages_for(ends.get(name, len(self.texts[name]))) - has)
            if room < 0:
                return str(name)
        return None

    def eviction(self, gone: Ordered[int], frame: Frame) -> str:
        """The sequences that take the room, and how long the pages were idle."""
        return "; ".join(filter(None, [self._taken(gone, frame), self._idle(gone, frame)]))

    def _taken(self, gone: Ordered[int], frame: Frame) -> str:
        before = frame["before"]
        known = held(before["tables"]) | set(before["idle"]) - set(gone)
        tables = sorted(frame["tables"].items())
        takers = {name: new for name, held_by in tables if (new := pages_in(held_by) - known)}
        wanted, free = sum(map(len, takers.values())), before["pages"]["free"]
        if not takers:
            return "room is made ahead of need" if frame["plan"] is not None else ""
        if wanted <= free:
            return f"{listed(takers)} left too few free pages for what grows next"
        verb = "takes" if len(takers) == 1 else "take"
        return f"{listed(takers)} {verb} {count(wanted, 'page')}, and {none_or(free)} free"

    def _idle(self, gone: Ordered[int], frame: Frame) -> str:
        since = sorted({self.held_in[page] for page in gone if page in self.held_in})
        when = f", since {'step' if len(since) == 1 else 'steps'} {listed(since)}" if since else ""
        it = f"{pages_named(gone) if len(gone) == 1 else 'they'} {was(len(gone))}"
        order = [page for page in frame["before"]["idle"] if page not in held(frame["tables"]) - set(gone)]
        last = max((order.index(page) for page in gone if page in order), default=0)
        longer = sorted(set(order[:last]) - set(gone))
        if not order:
            return f"{it} idle{when}"
        if longer:
            return f"{it} idle{when}, although {pages_named(longer)} {was(len(longer))} idle for longer"
        return f"{it} idle the longest{when}" if len(order) > len(gone) else f"no other page was idle{when}"

    def split(self, upper: Ordered[int], lower: Ordered[int], nodes: Iterable[Frame], frame: Frame) -> str:
        """The sequence whose text leaves the node's path."""
        node = next((one for one in nodes if one["pages"] == list(upper)), None)
        if node is None or self.bounds.page_size is None:
            return ""
        new = next((child for child in node["children"] if child["pages"][0] != lower[0]), None)
        if new is None:
            return ""
        who = next((name for name, tables in frame["tables"].items() if new["pages"][0] in pages_in(tables)), None)
        whose = f"the text of {who}" if who else "a new text"
        return f"{whose} differs from there on: {pages_named(new['pages'])} follows {pages_named(upper[-1:])}, too"

    # -- results -------------------------------------------------------------------------------------------------------

    def drafts(self, span: Span, new: Ordered[int]) -> str:
        """The first draft that is not what the model sampled, or that all were."""
        drafts, kept = span["tokens"][1:], max(0, len(new) - 1)
        if kept == len(drafts):
            more = f", and {quoted(self.word(new[-1]))} after them" if len(new) > len(drafts) else ""
            return f"the model samples the same{more}"
        wrong, right = quoted(self.word(drafts[kept])), quoted(self.word(new[-1])) if new else "an end"
        rest = len(drafts) - kept - 1
        return f"draft {kept + 1} is {wrong}, the model samples {right}" + (
            f"; the {count(rest, 'draft')} after it followed a wrong text" if rest else ""
        )

    def forced(self, tokens: Ordered[int], verified: int) -> str:
        """The text that leaves no choice, and how much of it the step verifies."""
        text = quoted("".join(map(self.word, tokens)))
        room = "" if verified == len(tokens) else f", and has room for {verified or 'none'} of them"
        return f"only {text} may come next; the step verifies it as {'a draft' if len(tokens) == 1 else 'drafts'}{room}"

    def cut(self, token: int) -> str:
        """The first draft that is not verified."""
        return f"{quoted(self.word(token))} may not come there"

    def ending(self, name: str, reason: str) -> str:
        """How many of its tokens it has."""
        made, wanted = len(self.texts[name]) - self.prompts[name], self.wanted[name]
        if reason == "length":
            said = f"it asked for {count(wanted, 'token')} and has them"
        elif reason == "stop":
            said = f"the model sampled its end after {made} of at most {count(wanted, 'token')}"
        else:
            said = f"with {made} of {count(wanted, 'token')}"
        return said

    def vain(self, name: str, plan: int, ended: Mapping[str, int]) -> str:
        return f"plan {plan} was in flight when {name} ended in step {ended[name]}" if name in ended else ""

    def pages_for(self, length: int) -> int:
        return -(-length // (self.bounds.page_size or 1))


def pages_in(tables: Iterable[Iterable[int]]) -> set[int]:
    return {page for table in tables for page in table if page}


def held(tables: Mapping[str, Iterable[Iterable[int]]]) -> set[int]:
    return {page for each in tables.values() for page in pages_in(each)}


def span_pages(frame: Frame, span: Span, start: int, end: int, size: int | None) -> list[int]:
    """The pages of a sequence's positions [start, end), of all its layer groups."""
    tables = frame["tables"].get(span["id"], ())
    return [page for table in tables for page in table[start // size : -(-end // size)] if page] if size else []


def walk(tree: Iterable[Frame]) -> Iterator[Frame]:
    for node in tree:
        yield node
        yield from walk(node["children"])
