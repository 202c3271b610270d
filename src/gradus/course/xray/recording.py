"""An engine driven through a scene, and each of its steps as plain dicts: what the page draws.

A frame is one call of `Engine.step`, counted from 1: the plan that it made, and the plan whose result it recorded. They
are the same one unless the engine plans ahead. The state (tables, pages, tree) is the probe's, from when the plan had
been made. The rows come from the timeline. The same run gives the same frames, byte for byte: no clock is in them.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

import torch

from gradus.bench.measure.timeline import Timeline
from gradus.cache.inspection import TreeNode
from gradus.course.probe import EngineProbe, Holding, Id, SpanView, Step, Tiers
from gradus.course.xray.choices import ExpertWatch, MaskWatch
from gradus.course.xray.events import Teller
from gradus.course.xray.questions import question
from gradus.course.xray.reasons import Bounds
from gradus.engine.engine import Engine
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.engine.structured import Structured
from gradus.exercises.solution import blamed

MOST_STEPS = 200
"""A longer run is cut there: the page would grow past what a browser shows with ease."""

Frame = dict[str, Any]
Kernels = Callable[[], AbstractContextManager[Mapping[str, Any] | None]]


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request with its prompt's token ids. at: the step in which it can first run; cancelled: the one before which
    it is given up.

    whole: all of its output comes, and the model cannot end it before.
    structured: what its answer must be, for engines that keep to it; it then ends where it is complete.
    """

    name: str
    prompt: tuple[int, ...]
    output: int
    at: int = 1
    cancelled: int | None = None
    whole: bool = True
    structured: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Recording:
    """title: what ran. about: what to look at. settings: the engine's, by name. context: positions that a sequence
    may have. words: the text of each token id. cut: whether the run went on after its last frame. code: where
    each kind of event is done. panels: what a small page shows. failed: the exception that ended it, in words; None if
    none did.
    """

    title: str
    about: str
    model: str
    settings: Mapping[str, Any]
    context: int
    sequences: Sequence[Mapping[str, Any]]
    frames: Sequence[Frame]
    words: Mapping[int, str]
    cut: bool
    code: Mapping[str, Mapping[str, Any]]
    panels: Sequence[str]
    failed: str | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def record(
    engine: Engine,
    arrivals: Sequence[Arrival],
    limits: ModelLimits,
    most: int = MOST_STEPS,
    *,
    tolerant: bool = False,
    word: Callable[[int], str] = "token {}".format,
    kernels: Kernels = nullcontext,
) -> list[Frame]:
    """Run the requests to their ends, or for `most` steps.

    word: how the sentences write a token.
    kernels: counts the kernels that run in its block; by default none are.
    tolerant: an exception ends the recording, and the last frame has it as "failed": a student wants to see what led
    to it. Otherwise it is raised.
    """
    probe = EngineProbe(engine, kept=most + 1)
    masks, experts = MaskWatch(engine), ExpertWatch(engine)
    timeline = Timeline(torch.device("cpu"), kept=most + 1)  # the host's clock alone: a GPU is not waited for
    probe.record()
    timeline.watch(engine)
    try:
        frames = _Run(engine, probe, masks, experts, kernels, limits, tolerant).frames(arrivals, most)
    finally:
        timeline.leave(engine)
        masks.leave()
        probe.stop()
    rows = {record.number + 1: record.rows for record in timeline.records}
    for frame in frames:
        frame["rows"] = rows.get(frame["plan"])
    if len(frames) < most and "failed" not in frames[-1]:
        frames.append(_after(probe, len(frames) + 1))
    tell(frames, Teller(arrivals, bounds_of(engine), word), bounds_of(engine))
    return frames


def tell(frames: Sequence[Frame], teller: Teller, bounds: Bounds) -> None:
    """Add to each frame what happened and why, and what a reader may predict of it."""
    before: Frame | None = None
    for frame in frames:
        frame["events"] = teller.of(frame)
        frame["question"] = question(frame, before, bounds)
        before = frame
    for frame in frames:
        del frame["before"], frame["names"]  # parts of the frames before it, and not drawn


def bounds_of(engine: Engine) -> Bounds:
    """The limits on the engine's plans, by the names that every phase's scheduler and cache have for them.

    A sequence takes pages in every layer group. Where there are several, the sentences do not count pages.
    """
    scheduler: Any = engine.scheduler
    groups = len(getattr(scheduler.cache, "windows", (None,)))
    size = getattr(scheduler.cache, "page_size", None) if groups == 1 else None
    return Bounds(getattr(scheduler, "max_sequences", 1), size, getattr(scheduler, "token_budget", None))


class _Run:
    """The loop over a scene's steps."""

    def __init__(
        self,
        engine: Engine,
        probe: EngineProbe,
        masks: MaskWatch,
        experts: ExpertWatch,
        kernels: Kernels,
        limits: ModelLimits,
        tolerant: bool,
    ) -> None:
        self.engine, self.probe, self.limits, self.tolerant = engine, probe, limits, tolerant
        self.masks, self.experts, self.kernels = masks, experts, kernels
        self.queue: list[str] = []  # has arrived and not ended
        self.in_flight: list[int] = []

    def frames(self, arrivals: Sequence[Arrival], most: int) -> list[Frame]:
        coming = sorted(arrivals, key=lambda arrival: arrival.at)
        frames: list[Frame] = []
        while (coming or self.engine.has_work) and len(frames) < most:
            try:
                self.submit(coming, len(frames) + 1)
                frames.append(self.frame(arrivals, len(frames) + 1))
            except Exception as error:
                if not self.tolerant:
                    raise
                frames.append(self.failed(error, frames))
                break
        return frames

    def submit(self, coming: list[Arrival], number: int) -> None:
        """Submit the requests that arrive before this step. If the engine is idle, the next arrival comes early."""
        while coming and (coming[0].at <= number or not self.engine.has_work):
            arrival = coming.pop(0)
            self.engine.submit(request(arrival, self.limits))
            self.queue.append(arrival.name)

    def failed(self, error: Exception, frames: list[Frame]) -> Frame:
        """The frame in which the engine broke: its plan, if it was made, and else what the frame before showed."""
        shown = [frame["plan"] for frame in frames if frame["plan"] is not None]
        made = self.probe.steps[-1] if self.probe.steps and _plan(self.probe.steps[-1]) not in shown else None
        if made is not None:
            state = _state(self.probe, made) | {"plan": _plan(made)}
        else:
            kept = ("running", "tables", "pages", "tree", "names", "host")
            state = {name: frames[-1][name] for name in kept} if frames else _nothing()
            state["before"] = _holding(self.probe.holding())
            state |= {"plan": None, "spans": [], "admitted": [], "preempted": []}
        waiting = [name for name in self.queue if name not in state["running"]]
        said = blamed(error) or f"{type(error).__name__}: {error}"
        ends: Frame = {"number": len(frames) + 1, "committed": None, "in_flight": [], "outputs": {}, "ended": {}}
        ends |= {"masks": [], "drafts": {}, "experts": None, "kernels": []}
        return state | ends | {"waiting": waiting, "failed": " ".join(str(said).split())}

    def frame(self, arrivals: Sequence[Arrival], number: int) -> Frame:
        ended: dict[str, str] = {}
        for arrival in arrivals:
            if arrival.cancelled == number:
                ended |= {out.request_id: out.finish_reason or "" for out in self.engine.cancel(arrival.name)}
        made = self.probe.steps[-1].number if self.probe.steps else -1
        with self.kernels() as seen:
            outputs = self.engine.step()
        step = self.probe.steps[-1] if self.probe.steps and self.probe.steps[-1].number > made else None
        if step is not None:
            self.in_flight.append(_plan(step))
        committed = self.in_flight.pop(0) if len(self.in_flight) > len(self.engine.in_flight) else None
        ended |= {output.request_id: output.finish_reason for output in outputs if output.finish_reason}
        frame = _state(self.probe, step) | {
            "number": number,
            "plan": None if step is None else _plan(step),
            "committed": committed,
            "in_flight": list(self.in_flight),
            "outputs": {output.request_id: list(output.tokens) for output in outputs if output.tokens},
            "ended": ended,
            "kernels": [] if seen is None else list(map(_kernel, seen.values())),
        }
        frame |= self.masks.take(frame["spans"]) | self.experts.take(step is not None)
        frame["waiting"] = [name for name in self.queue if name not in frame["running"] and name not in ended]
        self.queue = [name for name in self.queue if name not in ended]
        return frame


def _plan(step: Step) -> int:
    """Its plan's number. The first is 1, as in the lessons."""
    return step.number + 1


def request(arrival: Arrival, limits: ModelLimits) -> Request:
    if arrival.structured is not None and limits.structured:
        # a model without an end gets one: its last token, which in the course's random models is no text
        ends = () if limits.eos_token_ids else (limits.vocab_size - 1,)
        structured = Structured.of(arrival.structured)
        params = SamplingParams(max_tokens=arrival.output, stop_token_ids=ends, structured=structured)
        return Request.create(arrival.name, arrival.prompt, params, limits)
    # a scene's output has its length whatever the model says; a token that ends the text would look odd in its middle
    params = SamplingParams(max_tokens=arrival.output, min_tokens=arrival.output if arrival.whole else 0)
    return Request.create(arrival.name, arrival.prompt, params, limits)


def _state(probe: EngineProbe, step: Step | None) -> Frame:
    """The engine's state when the plan had been made; without a plan, its state now."""
    running = probe.running() if step is None else step.running
    tables = {id: probe.tables(*id) for id in running} if step is None else step.tables
    pages, tree = (probe.pages(), probe.tree()) if step is None else (step.pages, step.tree)
    names, host = _tiers(probe.tiers() if step is None else step.tiers)
    return {
        "spans": [] if step is None else [_span(span) for span in step.spans],
        "admitted": [] if step is None else list(map(name_of, step.admitted)),
        "preempted": [] if step is None else list(map(name_of, step.preempted)),
        "running": list(map(name_of, running)),
        "tables": {name_of(id): list(map(list, table)) for id, table in tables.items()},
        "pages": None if pages is None else pages._asdict(),
        "tree": None if tree is None else list(map(_node, tree)),
        "names": names,
        "host": host,
        "before": _holding(probe.holding() if step is None else step.before),
    }


def _holding(before: Holding) -> Frame:
    """The state that a plan was made from, as plain data."""
    names, host = _tiers(before.tiers)
    return {
        "running": list(map(name_of, before.running)),
        "tables": {name_of(id): list(map(list, table)) for id, table in before.tables.items()},
        "pages": None if before.pages is None else before.pages._asdict(),
        "idle": list(before.idle),
        "names": names,
        "host": host,
    }


def _tiers(tiers: Tiers | None) -> tuple[dict[int, str], list[dict[str, Any]] | None]:
    """The name of each page in the tree, and the pages below as plain data: names are short digests here."""
    if tiers is None:
        return {}, None
    names, host = tiers
    below = [{"name": _short(name), "tokens": list(name[1][1])} for name in host]
    return {page: _short(name) for page, name in names.items()}, below


def _short(name: Any) -> str:
    return blake2b(repr(name).encode(), digest_size=6).hexdigest()


def _nothing() -> Frame:
    """The state of an engine that did not come to its first plan."""
    return {"running": [], "tables": {}, "pages": None, "tree": None, "names": {}, "host": None}


def _after(probe: EngineProbe, number: int) -> Frame:
    """The last frame: nothing runs, and the cache shows its remaining pages."""
    nothing: Frame = {
        "plan": None,
        "committed": None,
        "in_flight": [],
        "outputs": {},
        "ended": {},
        "masks": [],
        "drafts": {},
        "experts": None,
        "kernels": [],
        "waiting": [],
        "rows": None,
    }
    return _state(probe, None) | nothing | {"number": number}


def name_of(id: Id) -> str:
    """A sequence's name: its request's, with its index if it is not the request's first sample."""
    name, index = id
    return f"{name}.{index}" if index else name


def _span(span: SpanView) -> dict[str, Any]:
    return {
        "id": name_of(span.id),
        "slot": span.slot,
        "start": span.start,
        "tokens": list(span.tokens),
        "logits": span.logits,
    }


def _kernel(seen: Any) -> dict[str, Any]:
    """A kernel's launches and programs in a step; bytes that its programs read, all together and the most of one."""
    counts = {"launches": seen.launches, "programs": seen.programs}
    return {"name": seen.name, **counts, "read": sum(seen.read), "most": max(seen.read, default=0)}


def _node(node: TreeNode) -> dict[str, Any]:
    pages = [page for group in node.pages for page in group if page]
    return {"tokens": list(node.tokens), "pages": pages, "children": list(map(_node, node.children))}
