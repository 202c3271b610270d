"""Let coding agents work on small tasks with small models, and judge them by what is on disk afterwards.

    python -m tests.clients.installing codex claude-code opencode
    PYTHONPATH=src:. python benchmarks/agents.py --out benchmarks/agents.json --minutes 10

A session is an agent, a model, a task, and whether calls are constrained by a grammar. Agents are set up as
docs/clients.md says, by its own blocks; `own` is the loop in agent_loop.py. Each session has a new folder, home and
environment. If this script runs as root, sessions run as the user nobody: a model may write any command. A server is
started as the page says, with the model's own sampling; nothing is seeded. Sessions that the file has already are
skipped, so the evaluation can be run in slices.
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.agent_tasks import AS_NOBODY, TASKS, Task
from benchmarks.agent_wire import Recorder, Turn
from gradus.bench.measure.fingerprint import commit
from gradus.bench.run.script import ran
from gradus.doctor import machine
from gradus.errors import ConfigError
from tests.clients import installing, page

ROOT = Path(__file__).parents[1]
MODELS = ("qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")
ON_PAGE = "qwen2.5-coder-1.5b"
"""The model in the page's blocks."""
PROMPT = '"Run the tests"'
"""The page's prompt for each agent, replaced by the task."""
OWN = "own"
KEY = ("agent", "model", "task", "constrained", "repeat")
ENDS = 200  # characters kept of a failed agent's last line

Record = dict[str, Any]


@dataclass(frozen=True)
class Agent:
    """script: for bash; $TASK is the task. files: to write below the home, by path. bins: folders for the path."""

    name: str
    version: str
    script: str
    files: Mapping[str, str] = field(default_factory=dict)
    bins: tuple[Path, ...] = ()


def known_agents() -> list[str]:
    """The coding agents that the page sets up to run a task, and our own loop."""
    return [*(name for name, client in page.read().items() if _prompts(client)), OWN]


def _prompts(client: page.Client) -> int:
    return sum(text.count(PROMPT) for _, text in client.runs)


def agent_named(name: str) -> Agent:
    """Raises ConfigError if the agent is not installed."""
    if name == OWN:
        return Agent(OWN, commit(), f'python3 ~/agent_loop.py {page.ADDRESS} {ON_PAGE} "$TASK"', {
            "agent_loop.py": (ROOT / "benchmarks/agent_loop.py").read_text(encoding="utf-8")
        })  # fmt: skip
    if (missing := installing.obstacle(name)) is not None:
        raise ConfigError(f"{missing} (python -m tests.clients.installing {name})")
    client, folder = page.read()[name], installing.folder(name)
    script = "\n".join(line for _, text in client.runs for line in page.commands(text))
    version = installing.versions(client).rpartition("@")[2]
    return Agent(name, version, script.replace(PROMPT, '"$TASK"'), client.files, (folder / "bin", folder / "venv/bin"))


# -- one session ---------------------------------------------------------------------------------------------------


def session(agent: Agent, model: str, task: Task, port: int, seconds: float) -> tuple[Record, list[Turn]]:
    """Let an agent work on a task, for `seconds` at most. Returns its record without the key, and its turns."""
    with tempfile.TemporaryDirectory(prefix="gradus-agent-") as made:
        folders = {name: Path(made) / name for name in ("home", "work", "tmp")}
        for folder in folders.values():
            folder.mkdir()
        task.lay_out(folders["work"])
        with Recorder(port) as recorder:
            _set_up(agent, folders["home"], model, recorder.address)
            _hand_over(Path(made))
            began = time.monotonic()
            ended = _run(agent, folders, _addressed(agent.script, model, recorder.address), task.instruction, seconds)
            took = time.monotonic() - began
        turns = recorder.turns
        judged = {
            "passed": task.judge(folders["work"], _last_words(turns)),
            "command_ran": task.command_ran(folders["work"]),
        }
        return {**judged, **_summary(turns, began), "seconds": round(took, 1), "ended": ended}, turns


def _set_up(agent: Agent, home: Path, model: str, address: str) -> None:
    for name, text in agent.files.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_addressed(text, model, address), encoding="utf-8")


def _addressed(text: str, model: str, address: str) -> str:
    return text.replace(page.ADDRESS, address).replace(ON_PAGE, model)


def _hand_over(folder: Path) -> None:
    """Give everything to the user who runs the session."""
    if AS_NOBODY:
        for path in [folder, *folder.rglob("*")]:
            os.chown(path, AS_NOBODY["user"], AS_NOBODY["group"])


def _run(agent: Agent, folders: Mapping[str, Path], script: str, instruction: str, seconds: float) -> str:
    """Run the agent to its end. Returns how it ended: "by itself", "out of time", or its exit code and last words."""
    node = shutil.which("node")
    bins = [*agent.bins, *([Path(node).parent] if node else []), "/usr/bin", "/bin"]
    environment = {
        "HOME": str(folders["home"]), "TMPDIR": str(folders["tmp"]), "PATH": os.pathsep.join(map(str, bins)),
        "LANG": "C.UTF-8", "TASK": instruction,
    }  # fmt: skip
    said = folders["tmp"] / "stderr"
    with said.open("wb") as errors:
        process = subprocess.Popen(
            ["bash", "-euc", f"ulimit -f 1000000\n{script}"], cwd=folders["work"], env=environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True, **AS_NOBODY,
        )  # fmt: skip
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return "out of time"
        finally:
            _end(process)
    if code == 0:
        return "by itself"
    lines = said.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"exit code {code}: {lines[-1][:ENDS] if lines else ''}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the session's processes, commands with sessions of their own among them."""
    left = []
    with contextlib.suppress(psutil.NoSuchProcess):
        left = psutil.Process(process.pid).children(recursive=True)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for child in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    process.wait()


def _last_words(turns: Sequence[Turn]) -> str:
    return next((turn.answer.text for turn in reversed(turns) if turn.body.get("tools") and turn.answer.text), "")


def _summary(turns: Sequence[Turn], began: float) -> Record:
    """Count calls and find the first ones. Requests without tools, for a title or the like, count as turns alone."""
    acting = [turn for turn in turns if turn.body.get("tools")]
    calls = [at for turn in acting if (at := turn.answer.first_call) is not None]
    return {
        "ran": any(turn.results() for turn in acting),
        "turns": len(turns),
        "refused": sum(turn.status >= 400 for turn in turns),
        "calls": sum(len(turn.answer.calls) for turn in acting),
        "invalid": sum(turn.invalid_calls() for turn in acting),
        "as_text": sum(turn.answer.looks_like_a_call() for turn in acting),
        "prompt_tokens": next((found for turn in acting if (found := turn.answer.prompt_tokens)), None),
        "first_call_s": round(calls[0] - began, 1) if calls else None,
    }


# -- servers -------------------------------------------------------------------------------------------------------


def serving_command() -> list[str]:
    """The page's command that starts a server, without its model."""
    text = page.PAGE.read_text(encoding="utf-8")
    found = re.search(r"^\$ gradus (serve .*)$", text, re.MULTILINE)
    assert found is not None
    return shlex.split(found[1].replace(f"--model {ON_PAGE}", ""))


@contextlib.contextmanager
def served(model: str, options: Sequence[str]) -> Iterator[int]:
    """Serve the model as the page says, on a port that the system chooses, which is yielded.

    Raises ConfigError if the server does not start.
    """
    command = [sys.executable, "-m", "gradus", *serving_command(), "--model", model, "--port", "0", *options]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            assert process.stdout is not None
            address = re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())  # once the model is loaded
            if address is None:
                process.wait()
                errors.seek(0)
                raise ConfigError(f"the server did not start: {errors.read().decode(errors='replace').strip()[-ENDS:]}")
            yield int(address[1])
        finally:
            process.terminate()
            process.wait()


# -- the evaluation ------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _options().parse_args(arguments)
    found = _read(asked.out)
    done = {tuple(record[name] for name in KEY) for record in found["sessions"]}
    agents, until = {name: agent_named(name) for name in asked.agent}, time.monotonic() + 60 * asked.minutes
    _check_that_nobody_reads(agents.values())
    tasks = [task for task in TASKS if task.name in asked.task]
    for model, calls in itertools.product(asked.model, asked.calls):
        keys = itertools.product(range(asked.repeats), tasks, agents)
        left = [
            (name, task, repeat) for repeat, task, name in keys
            if (name, model, task.name, calls == "constrained", repeat) not in done
        ]  # fmt: skip
        if not left or time.monotonic() > until:
            continue
        options = shlex.split(asked.serve) + (shlex.split(asked.free) if calls == "free" else [])
        with served(model, options) as port:
            for name, task, repeat in left:
                if time.monotonic() > until:
                    break
                key = dict(zip(KEY, (name, model, task.name, calls == "constrained", repeat), strict=True))
                record = key | {"version": agents[name].version, "commit": commit()}
                result, turns = session(agents[name], model, task, port, asked.seconds)
                record |= result
                print(json.dumps(record), flush=True)
                if asked.bodies is not None:
                    _append(asked.bodies, key, turns)
                found["sessions"].append(record)
                _write(asked.out, found)
    return 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names, tasks = known_agents(), [task.name for task in TASKS]
    parser.add_argument("--agent", nargs="+", choices=names, default=["codex", "claude-code", "opencode", OWN])
    parser.add_argument("--model", nargs="+", default=list(MODELS))
    parser.add_argument("--task", nargs="+", choices=tasks, default=tasks)
    parser.add_argument("--calls", nargs="+", choices=("constrained", "free"), default=["constrained", "free"])
    parser.add_argument("--repeats", type=int, default=1, help="sessions of each kind")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no session after so many")
    parser.add_argument("--seconds", type=float, default=300, help="limit of a session")
    parser.add_argument("--serve", default="", help="more options of `gradus serve`")
    parser.add_argument("--free", default="--tool-schemas strict", help="options that leave calls free")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--bodies", type=Path, help="append every request and answer to this file, as JSON lines")
    return parser


def _check_that_nobody_reads(agents: Iterable[Agent]) -> None:
    """Raises ConfigError if the user nobody cannot reach the agents' programs."""
    for folder in [folder for agent in agents for folder in agent.bins if AS_NOBODY and folder.is_dir()]:
        closed = [path for path in (folder, *folder.parents) if not path.stat().st_mode & 0o001]
        if closed:
            raise ConfigError(f"{closed[0]} is closed to the user nobody, who runs the agents: chmod o+x, or move them")


def _read(out: Path | None) -> dict[str, Any]:
    if out is not None and out.is_file():
        return json.loads(out.read_text(encoding="utf-8"))
    hardware = machine.hardware()
    return {"hardware": {name: hardware[name] for name in ("processor", "cores")}, "sessions": []}


def _append(bodies: Path, key: Record, turns: Sequence[Turn]) -> None:
    with bodies.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(key | dataclasses.asdict(turn)) + "\n" for turn in turns)


def _write(out: Path | None, found: dict[str, Any]) -> None:
    """Write the file at once, one line per session."""
    if out is None:
        return
    lines = ",\n".join("  " + json.dumps(record, ensure_ascii=False) for record in found["sessions"])
    text = f'{{\n "hardware": {json.dumps(found["hardware"])},\n "sessions": [\n{lines}\n ]\n}}\n'
    new = out.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    new.replace(out)


if __name__ == "__main__":
    sys.exit(ran(main))
