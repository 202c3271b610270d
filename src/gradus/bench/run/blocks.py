"""Blocks of a comparison in turns, as processes: each engine needs most of a GPU's memory, and its own environment.

Ours, the peer's and ours again, so that drift shows as a difference between the first and the last. A block's process
reads one JSON file and writes another (see `gradus.bench.run.block`). No torch here.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradus.bench.workloads import Arrival
from gradus.errors import ConfigError

VLLM_SECONDS = 300  # a block's limit; it compiles first

Found = dict[str, Any]
Block = tuple[str, Found, str | None]
"""A block's name, the results that it wrote, and the reason if they are incomplete."""


@dataclass(frozen=True, slots=True)
class Side:
    """How an engine runs its block. command: the names of both files follow it. seconds: the time limit.

    environment: what differs from this process's.
    """

    command: Sequence[str]
    seconds: int
    environment: Mapping[str, str] = field(default_factory=dict)


def gradus(seconds: int, source: Path | None = None) -> Side:
    """Our engine. source: another checkout's src; None is this one's.

    The block's script is always this checkout's, so that both checkouts are measured by the same meter. -P: it must
    not find its neighbors as modules. Raises ConfigError if `source` has no engine: Python would go on to this one's.
    """
    if source is not None and not (source / "gradus" / "__init__.py").exists():
        raise ConfigError(f"{source}: has no package gradus: name the folder of a checkout")
    path = [] if source is None else [str(source.resolve()), os.environ.get("PYTHONPATH", "")]
    environment = {"PYTHONPATH": os.pathsep.join(path)} if path else {}
    return Side([sys.executable, "-P", str(Path(__file__).with_name("block.py"))], seconds, environment)


def vllm(folder: Path, *script: str, seconds: int = VLLM_SECONDS) -> Side:
    """vLLM's Python. folder: where vLLM was unpacked. script: what it runs, such as benchmarks/vllm_block.py.

    -P: vLLM must not find the script's neighbors among its own modules.
    """
    environment = {
        "PYTHONPATH": os.pathsep.join(str(folder.resolve() / part) for part in ("site", "deps", "stubs")),
        "VLLM_USE_FLASHINFER_SAMPLER": "0",  # it is no part of vLLM's folder
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    return Side([sys.executable, "-P", *script], seconds, environment)


def in_turns(sides: Mapping[str, Side], asked: Mapping[str, Any], log: Callable[[str], Path]) -> Iterator[Block]:
    """Run the blocks in their order, and print each one's rates. Only the first reports the machine and its floors.

    log: a file for a block's output.
    """
    for number, (name, side) in enumerate(sides.items()):
        found, why = run_block(side, dict(asked) | {"thorough": number == 0}, log(name))
        print(f"{name}: {why or 'done'}", flush=True)
        for label, case in found.get("cases", {}).items():
            rates = [f"{sample['output_tokens'] / sample['seconds']:,.0f}" for sample in case["samples"]]
            print(f"  {label}: {case.get('failed') or ', '.join(rates) + ' tok/s'}", flush=True)
        yield name, found, why


def run_block(side: Side, asked: Mapping[str, Any], log: Path) -> tuple[Found, str | None]:
    """Run one block. Returns the results it wrote, and the reason if they are incomplete. log: for its output."""
    log.parent.mkdir(parents=True, exist_ok=True)
    why: str | None = None
    with tempfile.TemporaryDirectory() as work, log.open("w") as said:
        question, answer = Path(work) / "asked.json", Path(work) / "found.json"
        question.write_text(json.dumps(asked))
        try:
            done = subprocess.run(
                [*side.command, str(question), str(answer)], stdout=said, stderr=subprocess.STDOUT,
                timeout=side.seconds, env=os.environ | side.environment, check=False,
            )  # fmt: skip
            if done.returncode:
                why = f"exit code {done.returncode}: {last_words(log)}"
        except subprocess.TimeoutExpired:
            why = f"not done after {side.seconds} s"
        return (json.loads(answer.read_text()) if answer.exists() else {}), why


def last_words(log: Path) -> str:
    """The last line of a process's output; the error, if it ended with one."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line]
    return (errors or lines or ["it said nothing"])[-1][:200]


def case_of(label: str, arrivals: Sequence[Arrival], sampling: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Describe one of ASKED's cases, the same for every side. more: what differs from all requests at once, once."""
    return {
        "label": label,
        "prompts": [arrival.prompt for arrival in arrivals],
        "max_tokens": [arrival.max_tokens for arrival in arrivals],
        "sampling": dict(sampling),
        "at_once": len(arrivals),
        "follows": [arrival.follows for arrival in arrivals],
        "decode_alone": False,
        "new_prompts": False,
        "keep_prefixes": False,
        "watch_idle": True,
        "unmeasured": 1,
        "warm_up": len(arrivals),
    } | more
