"""Our server and vLLM's on one GPU: tokens and requests per second over HTTP, an event a token; ours, vLLM's, ours.

    PYTHONPATH=src:. python3 benchmarks/server_beside_vllm.py --vllm DIR --shape smollm2-135m --tokenizer smollm2-135m \
        --out "$OUT"/server.json
    PYTHONPATH=src:. python3 benchmarks/server_beside_vllm.py --kept --shape qwen3-0.6b --tokenizer qwen2.5-coder-0.5b \
        --out "$OUT"/kept.json

Both are started as their users start them, `gradus serve` and `python -m vllm.entrypoints.openai.api_server`, each a
front end and an engine in processes of their own. They read the same folder: a shape's random weights and a real
tokenizer (see random_folder.py), so both turn the same number of tokens into text. Prompts are token ids, and no two
begin alike; temperature and length are equal, end-of-sequence is ignored, access logs are off. Everything else is as
each has it by default, its prefix cache and vLLM's CUDA graphs and torch.compile included; vLLM's front end is the
default one, in Python. Each row is run once to warm up, then timed. DIR is vLLM as for beside_vllm.py; without it, ours
is measured alone.

With --kept, the same requests run in turns through HTTP and through `LLM.generate` in this process: what a server keeps
of the engine's rate. Results are written after each block. `--quick` is a rehearsal.
"""

import argparse
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from gradus.bench.record.metrics import METRICS, middle, shown, spread, values
from gradus.bench.report import markdown
from gradus.bench.run.blocks import last_words, vllm
from gradus.bench.run.script import ran
from gradus.bench.statistics import distribution, significant
from gradus.bench.workloads import burst
from gradus.load.asking.clients import Rules, crew
from gradus.load.asking.clients import run as send
from gradus.load.asking.routes import COMPLETIONS, GENERATE, Writing
from gradus.load.asking.target import Target
from gradus.load.jobs.job import Job

OURS, THEIRS, PYTHON = "gradus", "vllm", "LLM.generate"
BLOCKS = {"A1": OURS, "B": THEIRS, "A2": OURS}
PATHS = {OURS: (COMPLETIONS, GENERATE), THEIRS: (COMPLETIONS,)}
SIDES = [(engine, path) for engine in (THEIRS, OURS) for path in PATHS[engine]]

TOKENS, REQUESTS = "output_tok_s", "requests_s"


@dataclass(frozen=True)
class Load:
    """`streams` that each send `rounds` requests, one after the other."""

    streams: int
    rounds: int
    prompt: int
    output: int

    def jobs(self, vocab_size: int, seed: int) -> list[Job]:
        """Draw the requests. Different seeds share no prefix, so no cache helps."""
        arrivals = burst(self.streams * self.rounds, self.prompt, self.output, seed).arrivals(vocab_size)
        return [Job(0.0, arrival.prompt, arrival.max_tokens) for arrival in arrivals]


@dataclass(frozen=True)
class Row:
    """A load, and what is asked of our server: `must` times vLLM's value of `metric`."""

    load: Load
    metric: str
    must: float


ROWS = {
    "256 streams": Row(Load(256, 4, 64, 128), TOKENS, 2.0),
    "64 streams": Row(Load(64, 8, 64, 128), TOKENS, 2.0),
    "1 stream": Row(Load(1, 16, 64, 128), TOKENS, 3.5),
    "256 streams, short": Row(Load(256, 8, 64, 8), REQUESTS, 2.0),
}
KEPT_LOAD, KEPT_MUST = Load(256, 4, 64, 128), 0.85
QUICK = {"streams": 3, "rounds": 2, "prompt": 8, "output": 4}

TEMPERATURE = 0.6
CONTEXT, SEQUENCES = 512, 256
FIRST_IDS = 49_000  # prompts are drawn from these: all tokenizers here have them
VLLM_MEMORY = 0.85
KEPT_TOKENS = 2 * SEQUENCES * 192  # so that two engines have room on one GPU
READY_S, STOP_S = 400, 30
COLUMNS = (TOKENS, REQUESTS, "ttft_ms", "ttft_ms_p99")


# -- servers -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Command:
    """How a server is started. ready: the path that answers with 200 once requests are taken."""

    arguments: Sequence[str]
    ready: str
    environment: Mapping[str, str] = field(default_factory=dict)


def our_command(folder: Path, port: int, options: argparse.Namespace, *more: str) -> Command:
    arguments = [
        sys.executable, "-m", "gradus", "serve", "--model", str(folder), "--port", str(port),
        "--device", options.device, "--dtype", options.dtype, "--context-length", str(options.context),
        "--max-sequences", str(options.sequences), "--max-waiting", "4096", "--log-level", "warning", *more,
    ]  # fmt: skip
    return Command(arguments, "/health/ready")


def vllm_command(folder: Path, port: int, options: argparse.Namespace) -> Command:
    arguments = [
        *vllm(options.vllm, "-m", "vllm.entrypoints.openai.api_server").command, "--model", str(folder),
        "--served-model-name", folder.name, "--host", "127.0.0.1", "--port", str(port), "--dtype", options.dtype,
        "--max-model-len", str(options.context), "--max-num-seqs", str(options.sequences), "--gpu-memory-utilization",
        str(VLLM_MEMORY), "--disable-uvicorn-access-log", "--uvicorn-log-level", "warning",
    ]  # fmt: skip
    return Command(arguments, "/health", vllm(options.vllm).environment)


@dataclass(frozen=True)
class Server:
    process: psutil.Process
    port: int
    model: str
    ready_s: float

    def get(self, path: str) -> bytes:
        """Raises OSError or http.client.HTTPException where there is no answer, or not 200."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            if answer.status != 200:
                raise http.client.HTTPException(f"{path}: status {answer.status}")
            return answer.read()
        finally:
            connection.close()


@contextmanager
def serving(command: Command, folder: Path, port: int, log: Path) -> Iterator[Server]:
    """Run a server within the block. Raises RuntimeError with its last words if it does not start."""
    began = time.monotonic()
    with log.open("w") as said:
        process = subprocess.Popen(
            command.arguments, stdout=said, stderr=subprocess.STDOUT, env=os.environ | command.environment,
            start_new_session=True,
        )  # fmt: skip
    try:
        found = Server(psutil.Process(process.pid), port, folder.name, 0.0)
        while not _is_ready(found, command.ready):
            if process.poll() is not None or time.monotonic() - began > READY_S:
                raise RuntimeError(f"no server after {time.monotonic() - began:.0f} s: {last_words(log)}")
            time.sleep(0.1)
        yield replace(found, ready_s=round(time.monotonic() - began, 1))
    finally:
        _stop(process)


def _is_ready(server: Server, path: str) -> bool:
    try:
        server.get(path)
    except (OSError, http.client.HTTPException):
        return False
    return True


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """End the server and all that it has started, also where it has failed: the next one needs the GPU's memory."""
    family = []
    with suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(STOP_S)
    psutil.wait_procs(family, timeout=STOP_S)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# -- rows --------------------------------------------------------------------------------------------------------------


def measure_rows(
    pool: ProcessPoolExecutor | None, server: Server, engine: str, rows: Mapping[str, Row], options: argparse.Namespace
) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Measure every row on a running server, once unmeasured. Returns samples by row and path."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for number, (name, row) in enumerate(rows.items()):
        for path in PATHS[engine]:
            samples = []
            for repeat in range(options.repeats + 1):
                seed = 100 * (1000 * number + options.seeds[path]) + repeat
                samples.append(serve_load(pool, server, path, row.load, row.load.jobs(options.ids, seed)))
            found.setdefault(name, {})[path] = samples[1:]
            rates = ", ".join(f"{METRICS[row.metric].read(sample):,.0f}" for sample in samples)
            print(f"  {name}, {path}: {rates} {METRICS[row.metric].heading}, the first unmeasured", flush=True)
    return found


def serve_load(
    pool: ProcessPoolExecutor | None, server: Server, path: str, load: Load, jobs: list[Job]
) -> dict[str, Any]:
    """Run a load. Returns a sample as `gradus.bench` keeps it, with how busy the processors were.

    client_percent, server_percent: of one processor, the busiest client process and all of the server's together.
    idle_cores: of the whole machine, on average, from the writing of the requests on. Raises RuntimeError for an answer
    that failed or was too short.
    """
    idle, used, began = psutil.cpu_times(), cpu_seconds(server.process), time.monotonic()
    writing = Writing(path, server.model, TEMPERATURE)
    done = send(Target("127.0.0.1", server.port), writing, jobs, Rules(limit=load.streams), pool)
    over, after, took = psutil.cpu_times(), cpu_seconds(server.process), time.monotonic() - began
    answers = done.answers
    for one in answers:
        if one.error:
            raise RuntimeError(f"an answer failed ({one.error}): {one.detail}")
    seconds = max(one.last for one in answers) - min(one.sent for one in answers)
    events, tokens = sum(one.events for one in answers), sum(one.tokens for one in answers)
    return {
        "seconds": significant(seconds, 6),
        "completed": len(answers),
        "output_tokens": tokens,
        "prompt_tokens": sum(len(job.prompt) for job in jobs),
        "tokens_an_event": significant(tokens / events, 4),
        "ttft_ms": distribution(1e3 * one.ttft for one in answers),
        "client_percent": round(100 * max(done.cpu_s) / seconds, 1),
        "server_percent": round(100 * (after - used) / seconds, 1),
        "idle_cores": round((over.idle - idle.idle) / took, 1),
    }


def cpu_seconds(process: psutil.Process) -> float:
    """Return the processor time that a process and its descendants have taken."""
    spent = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(each.user + each.system for each in spent)


def compare(folder: Path, rows: Mapping[str, Row], options: argparse.Namespace, made: dict[str, Any]) -> str:
    """Measure the blocks one after the other, and write what there is after each. Returns the table."""
    made["blocks"] = {}
    logs = options.out.parent / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with crew() as pool:
        for block, engine in BLOCKS.items():
            if block not in options.blocks or (engine == THEIRS and options.vllm is None):
                continue
            port, log = free_port(), logs / f"server-{options.shape}-{block}.txt"
            command = (our_command if engine == OURS else vllm_command)(folder, port, options)
            kept: dict[str, Any] = {"engine": engine}
            made["blocks"][block] = kept
            try:
                with serving(command, folder, port, log) as server:
                    kept["ready_s"] = server.ready_s
                    print(f"{options.shape} {block}: {engine} is ready after {server.ready_s} s", flush=True)
                    if engine == THEIRS:
                        made["vllm"] = json.loads(server.get("/version"))["version"]
                    kept["rows"] = measure_rows(pool, server, engine, rows, options)
            except RuntimeError as error:  # the other blocks may still run
                kept["failed"] = str(error)
                print(f"{options.shape} {block}: {error}", flush=True)
            write(options.out, made)
    return table(made["blocks"], rows)


def table(blocks: Mapping[str, Any], rows: Mapping[str, Row]) -> str:
    """Format medians over all repeats, and how many times vLLM's rate each of ours is."""
    header = ["row", "engine", "path", *(METRICS[name].heading for name in COLUMNS)]
    header += [*SHARES, "by block", "to vLLM", "must", "reached"]
    lines = []
    for name, row in rows.items():
        theirs = spread(_samples(blocks, THEIRS, name, COMPLETIONS), row.metric)
        for engine, path in SIDES:
            if not (samples := _samples(blocks, engine, name, path)):
                continue
            line = [name, engine, path, *(middle(samples, column) for column in COLUMNS)]
            line += [show(median(sample[key] for sample in samples)) for key, show in SHARES.values()]
            each = [middle(_samples({block: found}, engine, name, path), row.metric) for block, found in blocks.items()]
            line.append(" · ".join(filter(None, each)))
            ours = spread(samples, row.metric)
            ratio = ours.median / theirs.median if engine == OURS and ours and theirs else None
            lines.append(line + judged(ratio, row.must, "{:.2f} ×".format))
    return markdown(header, lines)


SHARES: dict[str, tuple[str, Callable[[float], str]]] = {
    "tokens an event": ("tokens_an_event", "{:.3g}".format),
    "busiest client": ("client_percent", "{:.0f} %".format),
    "server": ("server_percent", "{:.0f} %".format),
    "idle cores": ("idle_cores", "{:.1f}".format),
}
"""Further columns, by their heading: the key in a sample, and its format."""


def judged(value: float | None, must: float, show: Callable[[float], str]) -> list[str]:
    """Format a value, what was asked for, and whether it is reached."""
    return ["", "", ""] if value is None else [show(value), show(must), "yes" if value >= must else "no"]


def _samples(blocks: Mapping[str, Any], engine: str, row: str, path: str) -> list[dict[str, Any]]:
    of_it = [block.get("rows", {}).get(row, {}).get(path, []) for block in blocks.values() if block["engine"] == engine]
    return [sample for samples in of_it for sample in samples]


# -- what HTTP keeps ---------------------------------------------------------------------------------------------------


def measure_kept(folder: Path, load: Load, options: argparse.Namespace, made: dict[str, Any]) -> str:
    """Run the same requests through `LLM.generate` and through both protocols, in turns, with one engine each."""
    from gradus import LLM, SamplingParams

    room = min(KEPT_TOKENS, 2 * options.sequences * CONTEXT)
    params = SamplingParams(max_tokens=load.output, temperature=TEMPERATURE, ignore_eos=True)
    sides = (PYTHON, GENERATE, COMPLETIONS)
    samples: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    port, log = free_port(), options.out.parent / "logs" / f"kept-{options.shape}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = our_command(folder, port, options, "--cache-tokens", str(room))
    with crew() as pool, serving(command, folder, port, log) as server, LLM(
        str(folder), device=options.device, dtype=options.dtype, context_length=CONTEXT,
        max_sequences=options.sequences, cache_tokens=room,
    ) as llm:  # fmt: skip
        for repeat in range(options.repeats + 1):
            for side in sides if repeat % 2 else sides[::-1]:
                seed = 10 * repeat + sides.index(side)  # other prompts, or the server's prefix cache would have them
                jobs = load.jobs(options.ids, seed)
                if side == PYTHON:
                    sample = _through_python(llm, params, jobs)
                else:
                    sample = serve_load(pool, server, side, load, jobs)
                if repeat:
                    samples[side].append(sample)
    made["kept"] = samples
    write(options.out, made)
    return kept_table(samples)


def _through_python(llm: Any, params: Any, jobs: list[Job]) -> dict[str, Any]:
    """All requests at once: as many run as there are streams, and the next begins where one ends, as over HTTP."""
    flat = [list(job.prompt) for job in jobs]
    began = time.perf_counter()
    done = llm.generate(flat, params)
    seconds = time.perf_counter() - began
    tokens = sum(len(each.token_ids) for each in done)
    if tokens != len(flat) * params.max_tokens:
        raise RuntimeError(f"{tokens} tokens came instead of {len(flat) * params.max_tokens}")
    return {"seconds": seconds, "completed": len(done), "output_tokens": tokens}


def kept_table(samples: Mapping[str, list[dict[str, Any]]]) -> str:
    rates = {side: found.median for side, of_it in samples.items() if (found := spread(of_it, TOKENS))}
    lines = []
    for side, rate in rates.items():
        share = None if side == PYTHON else rate / rates[PYTHON]
        each = " ".join(shown(value) for value in values(samples[side], TOKENS))
        lines.append([side, shown(rate), *judged(share, KEPT_MUST, "{:.1%}".format), each])
    return markdown(["side", METRICS[TOKENS].heading, "kept", "must", "reached", "samples"], lines)


# -- all of it ---------------------------------------------------------------------------------------------------------


def write(file: Path, made: Mapping[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def run(options: argparse.Namespace, folder: Path) -> str:
    from benchmarks.random_folder import write_folder
    from gradus.bench.measure.fingerprint import commit, fingerprint
    from gradus.models.precision import resolve_device
    from gradus.models.shapes import SHAPES

    write_folder(folder, options.shape, options.tokenizer, options.device)
    options.ids = min(SHAPES[options.shape].vocab_size, FIRST_IDS)
    options.seeds = {path: 10 * number for number, path in enumerate(PATHS[OURS])}
    options.sequences, options.context = (QUICK["streams"] if options.quick else SEQUENCES), CONTEXT
    rows = {name: row for name, row in ROWS.items() if name in options.rows}
    if options.quick:
        rows = {name: replace(row, load=Load(**QUICK)) for name, row in rows.items()}
    made: dict[str, Any] = {
        "commit": options.commit or commit(),
        **fingerprint(resolve_device(options.device), quick=True),
        "shape": options.shape,
        "tokenizer": Path(options.tokenizer).name,
        "dtype": options.dtype,
        "temperature": TEMPERATURE,
        "context": CONTEXT,
        "quick": options.quick,
        "repeats": options.repeats,
    }
    release()
    if options.kept:
        made["load"] = vars(Load(**QUICK) if options.quick else KEPT_LOAD)
        made["table"] = measure_kept(folder, Load(**QUICK) if options.quick else KEPT_LOAD, options, made)
    else:
        made["loads"] = {name: vars(row.load) for name, row in rows.items()}
        made["table"] = compare(folder, rows, options, made)
    write(options.out, made)
    return str(made["table"])


def release() -> None:
    """Give the GPU's memory back that the weights and the fingerprint have taken in this process."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", type=Path, help="the folder that vLLM was unpacked in")
    parser.add_argument("--shape", default="smollm2-135m", help="as in smollm2-135m or qwen3-0.6b")
    parser.add_argument("--tokenizer", default="smollm2-135m", help="the model, or folder, whose tokenizer both read")
    parser.add_argument("--kept", action="store_true", help="measure what HTTP keeps of Python's rate instead")
    parser.add_argument("--rows", type=lambda text: text.split(";"), default=[*ROWS], help="; between them")
    parser.add_argument("--blocks", type=lambda text: text.split(","), default=[*BLOCKS], help="as in A1,B,A2")
    parser.add_argument("--repeats", type=int, default=3)
    return run_with(parser, run)


def run_with(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace, Path], str]) -> int:
    """Add the options that benchmarks of servers have in common, run one, and print its tables. run: gets the options,
    and a folder for the checkpoint."""
    parser.add_argument("--folder", type=Path, help="where to keep the checkpoint that the servers read")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--quick", action="store_true", help="a rehearsal: a few short requests")
    parser.add_argument("--commit", help="the measured commit; by default the one checked out")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        print(run(options, options.folder or Path(scratch) / options.shape))
    return 0


if __name__ == "__main__":
    sys.exit(ran(main))
