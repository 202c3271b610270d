"""Race the final engine against llama.cpp on a processor: decodes, prompts, and several streams at once.

    PYTHONPATH=src:. python3 benchmarks/beside_llama.py --features avx2 --threads 1 --out benchmarks/beside_llama.json

Each engine is a process of its own, and they take turns, row by row and round by round, so that whatever else the
machine does disturbs both; the best of each is kept. With --threads 1, time is the processor's time that the process
took, which other programs hardly change; with more, it is the clock's, and a busy machine spoils it: an engine waits
for the one of its threads that was stopped. SmolLM2's shape has random weights, in our scheme and in the GGUF
format with as many bits. gemma3-270m and qwen2.5-coder-0.5b are Q4_K_M files, which both keep as they are stored;
so is one of random weights with six layers and a quarter of the vocabulary of Qwen3-30B-A3B, a mixture of experts.
llama.cpp rounds activations to 8 bits in all formats but F16; so do we in int8, and where the kind says so. llama.cpp
is driven by `gradus.bench.contenders.llama_cpp`.

--features avx2: our kernels and torch's libraries use no more than AVX2. llama.cpp must have been built for the same.
--llama: a folder that holds `llama_cpp`, if it is not installed with this Python.
Every row has the features that both sides use, and the machine's load before. With --out, rows with other features or
threads stay in the file.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gradus.bench.run.script import ran
from gradus.bench.statistics import significant
from gradus.device.threads import spin_briefly

SMOL, GEMMA, CODER = "random:smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b"
MIXTURE, LAYERS, VOCABULARY = "qwen3-30b-a3b", 6, 1 << 15
STORED, STORED_ROUNDED = "as stored", "as stored, int8 activations"
ROUNDED = "int4, int8 activations"
SETTINGS: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantize": "int8"},
    "int4": {"dtype": "bfloat16", "quantize": "int4"},
    ROUNDED: {"dtype": "bfloat16", "quantize": "int4", "activations": "int8"},
    STORED: {},
    STORED_ROUNDED: {"activations": "int8"},
}
SHORT, ANSWER = 16, 32  # tokens before and in a decode that is timed
WARM = 512  # most tokens of a prompt that warms an engine up
OURS, THEIRS = "gradus", "llama.cpp"


@dataclass(frozen=True)
class Course:
    """A model's rows. streams: numbers of sequences that decode at once; prompts: lengths. context: tokens that each
    sequence has room for."""

    kinds: Sequence[str]
    streams: Sequence[int] = (1, 8)
    prompts: Sequence[int] = (64, 512, 2000)
    context: int = 2304

    def tasks(self) -> Iterator[tuple[str, int, int, int]]:
        """Each row's name, streams, tokens of a prompt and of an answer."""
        for streams in self.streams:
            yield f"decode {streams}", streams, SHORT, 1 + ANSWER
        for length in self.prompts:
            yield f"prompt {length}", 1, length, 1


COURSES = {
    SMOL: Course(("bfloat16", "int8", "int4", ROUNDED)),
    GEMMA: Course((STORED, STORED_ROUNDED)),
    MIXTURE: Course((STORED, STORED_ROUNDED)),
    CODER: Course((STORED, STORED_ROUNDED), streams=(1,), prompts=(2000, 8800), context=9216),
}

FEATURES: dict[str, dict[str, str]] = {
    "avx2": {
        "NUMBA_CPU_NAME": "znver2",
        "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+sse4.2,+sse4.1,+ssse3,+popcnt,+lzcnt",
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
    "all": {},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", choices=tuple(FEATURES), default="all")
    parser.add_argument("--llama", type=Path, help="a folder that holds llama_cpp")
    parser.add_argument("--model", action="append", choices=tuple(COURSES), help="may be repeated; all by default")
    parser.add_argument("--kind", action="append", help="may be repeated; all of the model by default")
    parser.add_argument("--row", action="append", help="may be repeated; all by default, such as 'prompt 64'")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--commit", help="the measured commit; by default the one checked out")
    parser.add_argument("--out", type=Path, help="where results go; stdout by default")
    parser.add_argument("--child", nargs=3, metavar=("ENGINE", "MODEL", "KIND"), help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.llama:
        sys.path.append(str(asked.llama))
    if asked.child:
        engine, model, kind = asked.child
        serve(engine, model, kind, asked.file, asked.threads)
        return
    with tempfile.TemporaryDirectory() as folder:
        for model in asked.model or COURSES:
            for kind in COURSES[model].kinds:
                if asked.kind is None or kind in asked.kind:
                    report(race(model, kind, file_of(model, kind, Path(folder)), asked), asked)


def report(rows: list[dict[str, Any]], asked: argparse.Namespace) -> None:
    """Write the rows into the file. They replace earlier measurements of the same rows."""
    import torch

    from gradus.bench.measure.fingerprint import commit, fingerprint

    found = {"commit": asked.commit or commit(), "features": asked.features, "threads": asked.threads}
    rows = [found | row for row in rows]
    before = json.loads(asked.out.read_text())["rows"] if asked.out and asked.out.exists() else []
    result = {**fingerprint(torch.device("cpu"), quick=True), "rows": merged(before, rows)}
    text = json.dumps(result, indent=1)
    if asked.out:
        asked.out.write_text(text + "\n")
    else:
        print(text)


def merged(before: list[dict[str, Any]], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Replace those rows that were measured again."""

    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        return row["features"], row["threads"], row["model"], row["kind"], row["row"]

    again = {key(row) for row in rows}
    return [row for row in before if key(row) not in again] + rows


# -- the race ----------------------------------------------------------------------------------------------------------


def race(model: str, kind: str, file: Path | None, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Run both engines in turns. Rates are tokens per second: of an answer, of all answers, or of a prompt."""
    load = os.getloadavg()[0]  # before these two processes add to it
    with ExitStack() as stack:
        children = {
            name: stack.enter_context(child(name, model, kind, file, asked)) for name in (OURS, THEIRS)
        }  # fmt: skip
        about = {name: ask(process, None) for name, process in children.items()}
        rows = []
        for name, streams, length, answer in COURSES[model].tasks():
            if asked.row and name not in asked.row:
                continue
            best = dict.fromkeys(children, 0.0)
            for turn in range(1 + asked.rounds):
                for each, process in children.items():
                    rate = ask(process, [streams, length if turn else min(length, WARM), answer, turn])
                    best[each] = max(best[each], rate) if turn else 0.0  # the first one warms up
            row: dict[str, Any] = {"model": model, "kind": kind, "row": name}
            row |= {f"{each}_tok_s": significant(rate, 4) for each, rate in best.items()}
            row |= {"ratio": significant(best[OURS] / best[THEIRS], 3), "load": round(load, 2)}
            rows.append(row | {f"{each}_uses": about[each] for each in children})
            print(json.dumps(row), flush=True)
        peaks = {f"{name}_peak_mb": ask(process, "memory") for name, process in children.items()}
    return [row | peaks for row in rows]


@contextmanager
def child(
    name: str, model: str, kind: str, file: Path | None, asked: argparse.Namespace
) -> Iterator["subprocess.Popen[str]"]:
    """Start an engine's process. It answers on its standard output, a line of JSON for each question."""
    command = [sys.executable, __file__, "--child", name, model, kind]
    command += ["--file", str(file)] if file else []
    command += ["--llama", str(asked.llama)] if asked.llama else []
    command += ["--threads", str(asked.threads)]
    environment = os.environ | {"OMP_NUM_THREADS": str(asked.threads)}
    if name == OURS:  # its own way of waiting; llama.cpp has its defaults
        environment |= FEATURES[asked.features]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


def ask(process: "subprocess.Popen[str]", question: object) -> Any:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(question) + "\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"an engine's process ended: {' '.join(map(str, process.args))}")  # type: ignore[arg-type]
    return json.loads(line)


def file_of(model: str, kind: str, folder: Path) -> Path | None:
    """llama.cpp's file: the checkpoint's own, random weights as they are stored, or ours written with as many bits."""
    if model == MIXTURE:
        return mixture_in(folder)
    from gradus.bench.contenders.gguf_files import GGUFFiles
    from gradus.bench.contenders.workbench import Workbench
    from gradus.loading import open_checkpoint

    if kind in (STORED, STORED_ROUNDED):
        source = open_checkpoint(model).source
        assert source is not None
        return source if source.is_file() else next(source.glob("*.gguf"))
    bench = Workbench.open(model, "cpu", "float32")
    files = GGUFFiles(bench.checkpoint, bench.model)  # its folder goes with it
    return files.path(SETTINGS[kind].get("quantize")).rename(folder / f"{kind}.gguf")


def mixture_in(folder: Path) -> Path:
    """The first layers of a mixture of experts, which both engines read."""
    from dataclasses import replace

    from gradus.bench.contenders.gguf_random import write_random
    from gradus.models import SHAPES

    path = folder / f"{MIXTURE}.gguf"
    if not path.exists():
        config = SHAPES[MIXTURE].stage(range(LAYERS))
        write_random(path, replace(config, vocab_size=VOCABULARY, bos_token_id=None, eos_token_ids=()))
    return path


# -- an engine's process -----------------------------------------------------------------------------------------------


def serve(name: str, model: str, kind: str, file: Path | None, threads: int) -> None:
    """Answer questions: None is what the engine uses, "memory" its peak in MB, else a task, by a rate."""
    if name == OURS:
        spin_briefly(os.environ)
    source = str(file) if model == MIXTURE else model
    engine = Ours(model, kind, source) if name == OURS else Theirs(model, file, source)
    clock = time.process_time if threads == 1 else time.perf_counter
    for line in sys.stdin:
        question = json.loads(line)
        if question is None:
            answer: Any = engine.uses
        elif question == "memory":
            answer = peak_mb()
        else:
            answer = rate(engine, clock, *question)
        print(json.dumps(answer), flush=True)


def rate(engine: Any, clock: Callable[[], float], streams: int, length: int, answer: int, seed: int) -> float:
    """Tokens per second: of the prompt up to the first token, if that is all; else of answers after their first."""
    prompts = [tuple(20 + (7 * i + 131 * j + 17 * seed) % 30000 for i in range(length)) for j in range(streams)]
    first = seconds(engine, clock, prompts, 1)
    if answer == 1:
        return streams * length / first
    return streams * (answer - 1) / (seconds(engine, clock, prompts, answer) - first)


def seconds(engine: Any, clock: Callable[[], float], prompts: Sequence[tuple[int, ...]], answer: int) -> float:
    from gradus.bench.workloads import Arrival

    start = clock()
    engine.run([Arrival(0.0, prompt, answer) for prompt in prompts])
    return clock() - start


class Ours:
    def __init__(self, model: str, kind: str, source: str) -> None:
        import torch

        from gradus import LLM
        from gradus.bench.contenders.workbench import forget_prefixes
        from gradus.bench.measure.drive import drive
        from gradus.kernels.cpu.byte_products import NAME
        from gradus.kernels.cpu.vectors import features

        course = COURSES[model]
        self.llm = LLM(
            source, device="cpu", context_length=course.context, max_sequences=max(course.streams), **SETTINGS[kind]
        )
        self.drive, self.forget, self.device = drive, forget_prefixes, torch.device("cpu")
        wanted = ("avx2", "fma", "f16c", "avxvnni", "avx512f", "avx512vnni", "avx512bf16", "amx-bf16", "dotprod")
        self.uses = (
            f"{self.llm.precision.title}; kernels {' '.join(name for name in wanted if name in features())}, "
            f"bytes by {NAME}; torch {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"
        )

    def run(self, arrivals: Sequence[Any]) -> None:
        self.forget(self.llm.engine)
        self.drive(self.llm.engine, arrivals, self.device)


class Theirs:
    def __init__(self, model: str, file: Path | None, source: str) -> None:
        from gradus.bench.contenders.llama_cpp import LlamaCpp
        from gradus.loading import open_checkpoint

        course = COURSES[model]
        files = SimpleNamespace(config=open_checkpoint(source).config, path=lambda scheme: file)
        self.engine = LlamaCpp("llama.cpp", files, course.context, max(course.streams))  # type: ignore[arg-type]
        self.engine.build()
        self.uses = self.engine.about.partition(" of ")[2]  # the format's name would be the contender's, not the file's

    def run(self, arrivals: Sequence[Any]) -> None:
        self.engine.run(arrivals)


def peak_mb() -> float:
    """The most memory that this process has had, in millions of bytes."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return round(int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6, 1)


if __name__ == "__main__":
    sys.exit(ran(main))
