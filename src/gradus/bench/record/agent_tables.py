"""The tables of docs/agents.md, from benchmarks/agents.json: what became of each agent's sessions."""

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from gradus.bench.record.metrics import shown
from gradus.bench.record.study import Part
from gradus.bench.statistics import median

Session = dict[str, Any]

HEADER = ["agent", "model", "calls", "sessions", "passed", "command ran, of those told to", "calls made", "invalid"]
HEADER += ["calls as text", "first prompt, tokens", "first call, s", "session, s (longest)", "out of time", "failed"]


def agent_tables(found: dict[str, Any], samples: str) -> list[Part]:
    """Show one row per agent, model and kind of calls, then what became of each task."""
    sessions = sorted(found["sessions"], key=_kind)
    versions = {session["agent"]: session["version"] for session in sessions if session["agent"] != "own"}
    commits = ", ".join(dict.fromkeys(session["commit"] for session in found["sessions"]))
    hardware = found["hardware"]
    rows = [_row(kind, list(those)) for kind, those in groupby(sessions, _kind)]
    return [
        f"**{hardware['processor']}**, {hardware['cores']} cores; "
        f"{', '.join(f'{name} {version}' for name, version in sorted(versions.items()))}. Commit {commits}. {samples}",
        (HEADER, rows),
        _by_task(sessions),
        *_never_passed(sessions),
    ]


def _kind(session: Session) -> tuple[str, str, str]:
    return session["agent"], session["model"], "constrained" if session["constrained"] else "free"


def _row(kind: tuple[str, str, str], sessions: list[Session]) -> list[str]:
    told = [session["command_ran"] for session in sessions if session["command_ran"] is not None]
    seconds = [session["seconds"] for session in sessions]
    out_of_time = sum(session["ended"] == "out of time" for session in sessions)
    by_itself = sum(session["ended"] == "by itself" for session in sessions)
    return [
        *kind,
        str(len(sessions)),
        _share(session["passed"] for session in sessions),
        _share(told),
        *(str(sum(session[name] for session in sessions)) for name in ("calls", "invalid", "as_text")),
        *(_middle(session[name] for session in sessions) for name in ("prompt_tokens", "first_call_s")),
        f"{shown(median(seconds))} ({shown(max(seconds))})",
        str(out_of_time),
        str(len(sessions) - out_of_time - by_itself),
    ]


def _share(results: Iterable[bool]) -> str:
    found = list(results)
    return f"{sum(found)} of {len(found)}" if found else ""


def _middle(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return shown(median(known)) if known else ""


def _by_task(sessions: list[Session]) -> Part:
    """Passed sessions of each task, for each agent, over all of its models and kinds of calls."""
    agents = sorted({session["agent"] for session in sessions})
    results = {(session["task"], session["agent"]): list[bool]() for session in sessions}
    for session in sessions:
        results[session["task"], session["agent"]].append(session["passed"])
    tasks = dict.fromkeys(task for task, _ in results)
    return ["passed", *agents], [[task, *(_share(results.get((task, name), ())) for name in agents)] for task in tasks]


def _never_passed(sessions: list[Session]) -> list[Part]:
    passed = {session["task"] for session in sessions if session["passed"]}
    never = sorted({session["task"] for session in sessions} - passed)
    return [f"No session passed: {', '.join(never)}."] if never else []
