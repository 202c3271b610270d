"""Find the function behind each kind of event, in the parts that this engine runs. No torch here."""

import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gradus import phases
from gradus.engine.engine import Engine
from gradus.exercises.declaration import repository

SCHEDULER, CACHE, RUNNER, SAMPLER = "scheduler", "cache", "runner", "sampler"
STARTS = ((SCHEDULER, "let_in"), (SCHEDULER, "admit"), (SCHEDULER, "schedule"))

PLACES: dict[str, tuple[tuple[str, str], ...]] = {
    "admission": STARTS,
    "waiting": ((SCHEDULER, "may_start"), (SCHEDULER, "start_next"), *STARTS),
    "hit": ((CACHE, "admit"),),
    "chunk": ((SCHEDULER, "end_of_span"), (SCHEDULER, "place")),
    "preemption": ((SCHEDULER, "make_room"),),
    "drafts": ((SCHEDULER, "record"), (SCHEDULER, "_commit_decodes")),
    "grammar": ((SAMPLER, "drafts"),),
    "split": ((CACHE, "publish"),),
    "fetch": ((CACHE, "admit"),),
    "lost": ((CACHE, "evict"),),
    "eviction": ((CACHE, "evict"), (CACHE, "_evict")),
    "padding": ((RUNNER, "prepare"),),
    "vain": ((SCHEDULER, "record"), (SCHEDULER, "commit_span")),
    "ending": ((SCHEDULER, "release"),),
}
"""Candidates for each kind of event: a part of the engine, and its method. The first that exists is the place."""


def places(engine: Engine, kinds: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The place of each kind of event: name of the function, line, and path in the repository.

    path: None for a file outside of it, as a student's may be; name then says which file.
    """
    scheduler, runner = engine.scheduler, engine.runner
    parts = {SCHEDULER: scheduler, CACHE: getattr(scheduler, "cache", None), RUNNER: runner}
    parts |= {SAMPLER: getattr(runner, "sampler", None)}
    found = {}
    for kind in kinds:
        methods = [getattr(type(parts[part]), method, None) for part, method in PLACES.get(kind, ())]
        if method := next(filter(inspect.isfunction, methods), None):
            found[kind] = place(method)
    return found


def place(function: Any) -> dict[str, Any]:
    code = inspect.unwrap(function).__code__
    file, root = Path(code.co_filename).resolve(), repository(phases.find("p00"))
    line = code.co_firstlineno
    if file.is_relative_to(root):
        return {"name": function.__qualname__, "path": file.relative_to(root).as_posix(), "line": line}
    return {"name": f"{function.__qualname__} in {file.name}", "path": None, "line": line}
