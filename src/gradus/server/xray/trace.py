"""The last steps of a watched engine as a Chrome trace, which https://ui.perfetto.dev and chrome://tracing draw.

The format is "Trace Event Format" (JSON object form). Times are microseconds. The engine's host and its device have a
track each, with complete events ("X"); requests are async slices ("b", "n", "e"), as they overlap; the batch and the
queue are counters ("C").
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gradus.server.engine.messages import EVENT, EVENTS, STEP

PROCESS, HOST, DEVICE = 1, 1, 2
ADMITTED, ENDED = map(EVENTS.index, ("admitted", "ended"))

Event = dict[str, Any]


def trace(
    steps: Iterable[list[int]], events: Iterable[list[int]], names: Mapping[int, str], model: str
) -> dict[str, Any]:
    """Make a trace. steps, events: see STEP and EVENT. names: of samples by their handles, where the reader may know
    them; the others are numbered."""
    taken = [dict(zip(STEP, step, strict=True)) for step in steps]
    found = [*_names(model), *(event for step in taken for event in _of_step(step)), *_of_samples(events, names)]
    begins = min((event["ts"] for event in found if "ts" in event), default=0)
    for event in found:
        if "ts" in event:
            event["ts"] -= begins
    return {"traceEvents": found, "displayTimeUnit": "ms"}


def _names(model: str) -> Iterator[Event]:
    yield {"ph": "M", "pid": PROCESS, "tid": 0, "name": "process_name", "args": {"name": f"gradus: {model}"}}
    for thread, name in ((HOST, "host"), (DEVICE, "device")):
        yield {"ph": "M", "pid": PROCESS, "tid": thread, "name": "thread_name", "args": {"name": name}}


def _of_step(step: dict[str, int]) -> Iterator[Event]:
    counts = {name: step[name] for name in STEP[STEP.index("rows") :]} | {"step": step["number"]}
    kind = "mixed" if step["prefill"] and step["decode"] else "prefill" if step["prefill"] else "decode"
    yield _slice(HOST, "plan", step["start"], step["planned"], counts)
    yield _slice(HOST, "launch", step["planned"], step["launched"], {"step": step["number"]})
    yield _slice(HOST, "commit", step["ready"], step["end"], {"step": step["number"]})
    yield _slice(DEVICE, kind, step["device"], step["ready"], counts)
    for name, values in (
        ("sequences", {"running": step["sequences"], "waiting": step["waiting"]}),
        ("tokens", {"prefill": step["prefill"], "decode": step["decode"]}),
    ):
        yield {"ph": "C", "pid": PROCESS, "tid": HOST, "name": name, "ts": step["start"], "args": values}


def _slice(track: int, name: str, begin: int, end: int, args: dict[str, int]) -> Event:
    return {
        "ph": "X", "pid": PROCESS, "tid": track, "name": name, "cat": "step", "ts": begin, "dur": max(0, end - begin),
        "args": args,
    }  # fmt: skip


def _of_samples(events: Iterable[list[int]], names: Mapping[int, str]) -> Iterator[Event]:
    """Yield the slices of samples. One that was admitted before the first event begins with it; one that still runs
    has no end, and is drawn to the end."""
    numbers: dict[int, int] = {}  # by handle, which would count all clients' requests
    open_: set[int] = set()
    first = 0
    for each in events:
        event = dict(zip(EVENT, each, strict=True))
        first = first or event["time"]
        handle = event["handle"]
        number = numbers.setdefault(handle, len(numbers) + 1)
        base = {"cat": "request", "id": number, "pid": PROCESS, "tid": HOST, "name": names.get(handle, f"#{number}")}
        if event["kind"] == ADMITTED:
            yield base | {"ph": "n" if handle in open_ else "b", "ts": event["time"], "args": {"what": "admitted"}}
            open_.add(handle)
        else:
            if handle not in open_:
                yield base | {"ph": "b", "ts": first}
            yield base | {"ph": "e", "ts": event["time"]}
            open_.discard(handle)
