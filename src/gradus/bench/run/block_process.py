"""Run blocks of a comparison as processes: each engine needs most of a GPU's memory, and its own environment.

A block's process reads one JSON file and writes another (see `gradus.bench.run.block`). Its first two arguments are
their names. No torch here.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Found = dict[str, Any]


def run_block(
    name: str,
    command: Sequence[str],
    asked: Mapping[str, Any],
    work: Path,
    log: Path,
    more: Mapping[str, str],
    seconds: int,
) -> tuple[Found, str | None]:
    """Run one block. Returns the results it wrote, and the reason if they are incomplete.

    work: a folder for the two files. log: a file for its output. more: environment variables. seconds: the time limit.
    """
    question, answer = work / f"{name}-asked.json", work / f"{name}-found.json"
    question.write_text(json.dumps(asked))
    log.parent.mkdir(parents=True, exist_ok=True)
    why: str | None = None
    with log.open("w") as said:
        try:
            done = subprocess.run(
                [*command, str(question), str(answer)], stdout=said, stderr=subprocess.STDOUT, timeout=seconds,
                env=os.environ | more, check=False,
            )  # fmt: skip
            if done.returncode:
                why = f"exit code {done.returncode}: {_last_line(log)}"
        except subprocess.TimeoutExpired:
            why = f"not done after {seconds} s"
    return (json.loads(answer.read_text()) if answer.exists() else {}), why


def run_vllm(
    name: str, vllm: Path, script: Path, asked: Mapping[str, Any], work: Path, log: Path, seconds: int
) -> tuple[Found, str | None]:
    """Run vLLM's block. vllm: the folder that vLLM was unpacked in. script: benchmarks/vllm_block.py.

    -P: vLLM must not find the script's neighbors among its own modules.
    """
    parts = [str(vllm.resolve() / part) for part in ("site", "deps", "stubs")]
    more = {"PYTHONPATH": os.pathsep.join(parts), "VLLM_USE_FLASHINFER_SAMPLER": "0"}
    return run_block(name, [sys.executable, "-P", str(script.resolve())], asked, work, log, more, seconds)


def _last_line(log: Path) -> str:
    """The last line of a process's output: the error, if it ended with one."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line]
    return (errors or lines or ["it said nothing"])[-1][:200]
