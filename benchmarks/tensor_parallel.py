"""Measure a model on two GPUs and on one, and the cost of the ranks' exchange.

    NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 PYTHONPATH=src:. \\
        python3 benchmarks/tensor_parallel.py --out benchmarks/tensor_parallel.json

Each part runs in processes of its own within a time limit, and is written as soon as it is measured, so a part that
fails or hangs costs no other. Logs are in `--logs`; that of a part that hung ends with its stacks.

    plan      µs for packing a step's plan and sending it to another rank, on the host
    exchange  µs for a call of all-reduce, residual addition and RMSNorm, in a CUDA graph of 64: our kernel, torch's
              one-shot all-reduce over symmetric memory, and NCCL, the last two followed by our kernel for the rest.
              Each is checked first: against torch, and for the same bits on both GPUs
    eager     the same tokens from two ranks as from one GPU, launched kernel by kernel
    graphs    the same with CUDA graphs
    two, one  tokens per second on two GPUs, and on one: decodes alone, many decodes, long prompts
    vllm      the same on two GPUs through vLLM, which reads the model's shape and makes random weights; only with
              `--vllm`, the folder that it was unpacked in (see beside_vllm.py)
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gradus.bench.run.script import ran

LIMITS_S = {"plan": 60, "exchange": 90, "eager": 90, "graphs": 120, "two": 200, "one": 150, "vllm": 400}
OURS = tuple(part for part in LIMITS_S if part != "vllm")
WORKLOADS = (("batch 1", 1, 128, 256), ("batch 64", 64, 512, 256), ("prefill", 8, 8192, 1))
"""name, prompts, tokens of each, tokens of each answer"""
QUICK_WORKLOADS = (("batch 1", 1, 128, 64), ("batch 64", 64, 512, 64), ("prefill", 8, 1024, 1))
VLLM_BLOCK = Path(__file__).with_name("vllm_block.py")
MODEL, QUICK_MODEL, SMALL = "random:llama-3.1-8b", "random:qwen3-0.6b", "random:tiny-llama"
ROWS, WIDTH, CALLS, EPS = (1, 8, 64, 256), 4096, 64, 1e-5
Found = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--logs", type=Path, help="a folder; a new one in the temporary folder by default")
    parser.add_argument("--parts", default=",".join(OURS), help="%(default)s by default")
    parser.add_argument("--vllm", type=Path, help="the folder that vLLM was unpacked in, for the part of that name")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_MODEL}, with short answers")
    parser.add_argument("--commit", help="of this code; asked of git by default")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    asked.model = QUICK_MODEL if asked.quick and asked.model == MODEL else asked.model
    if asked.part:
        return run_here(asked)
    logs = asked.logs or Path(tempfile.mkdtemp(prefix="tensor-parallel-"))
    logs.mkdir(parents=True, exist_ok=True)
    found: Found = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    found |= {"commit": asked.commit or commit(), "model": asked.model, "quick": asked.quick}
    found.setdefault("parts", {})
    for part in asked.parts.split(","):
        found["parts"][part] = in_processes(part, asked, logs)
        print(part, json.dumps(found["parts"][part]), flush=True)
        asked.out.write_text(json.dumps(found, indent=1) + "\n")
    return int(any("error" in part for part in found["parts"].values()))


def commit() -> str:
    done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


# -- a part in processes of its own ------------------------------------------------------------------------------------


def in_processes(part: str, asked: argparse.Namespace, logs: Path) -> Found:
    """Run a part, with a process for each rank where it starts its own. Returns rank 0's results."""
    start, folder = time.perf_counter(), Path(tempfile.mkdtemp(prefix=f"{part}-"))
    ranks = range(2 if part == "exchange" else 1)
    out = folder / "found.json"
    command = [sys.executable, __file__, "--part", part, "--out", str(out), "--path", str(folder / "meet")]
    command += ["--model", asked.model, *(["--quick"] if asked.quick else [])]
    command += ["--vllm", str(asked.vllm)] if asked.vllm else []
    environment = os.environ | {"PYTHONFAULTHANDLER": "1", "NCCL_DEBUG": os.environ.get("NCCL_DEBUG", "WARN")}
    files = [logs / f"{part}-{rank}.log" for rank in ranks]
    running = [
        subprocess.Popen(
            [*command, "--rank", str(rank)], env=environment, stdout=file.open("w"), stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        for rank, file in zip(ranks, files, strict=True)
    ]  # fmt: skip
    codes = wait_for(running, LIMITS_S[part])
    found: Found = json.loads(out.read_text()) if out.exists() else {}
    found["seconds"] = round(time.perf_counter() - start, 1)
    if any(codes):
        found["error"] = f"exit codes {codes}"
        found["logs"] = {file.name: file.read_text(errors="replace")[-3000:] for file in files}
    return found


def wait_for(running: list["subprocess.Popen[bytes]"], limit_s: float) -> list[int | None]:
    """Wait for processes, together at most that long, or 5 s after the first that fails. What is left is ended, with
    its stacks in the log."""
    end = time.monotonic() + limit_s
    while any(each.poll() is None for each in running) and time.monotonic() < end:
        if any(each.poll() for each in running):
            end = min(end, time.monotonic() + 5)
        time.sleep(0.1)
    codes = [each.poll() for each in running]
    for each in running:
        for sign in (signal.SIGABRT, signal.SIGKILL):  # faulthandler writes stacks at the first
            try:
                os.killpg(each.pid, sign)
            except ProcessLookupError:
                break
            time.sleep(1.5)
        each.wait()
    return codes


def run_here(asked: argparse.Namespace) -> int:
    """Run a part, and write its results. What was measured before a failure is kept."""
    found: Found = {}

    def keep(**values: Any) -> None:
        found.update(values)
        print(round(time.perf_counter() - began, 1), values, flush=True)
        if asked.rank == 0:
            asked.out.write_text(json.dumps(found))

    began = time.perf_counter()
    code = 0
    try:
        PARTS[asked.part](asked, keep)
    except BaseException:
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)  # a process group of NCCL may wait for its peers at the interpreter's end


# -- plans -------------------------------------------------------------------------------------------------------------


def plan_part(asked: argparse.Namespace, keep: Callable[..., None]) -> None:
    from gradus.cache import TableChange
    from gradus.engine.plan import Admission, Decodes, Plan, Span
    from gradus.engine.request import ModelLimits, Request, SamplingParams
    from gradus.engine.wire import pack, unpack
    from gradus.parallel.messages import Channel

    ends = socket.socketpair()
    ours, theirs = (Channel(end) for end in ends)
    threading.Thread(target=lambda: list(iter(theirs.receive, None)), daemon=True).start()

    def measured(plan: Plan, calls: int) -> Found:
        packed = pack(plan)
        return {
            "bytes": len(packed),
            "pack_us": best_us(lambda: pack(plan), calls),
            "send_us": best_us(lambda: ours.send(packed), calls),
            "unpack_us": best_us(lambda: unpack(packed), calls),
        }

    for rows in (1, 64, 256):
        decodes = Decodes(np.arange(rows), np.arange(rows) + 100, np.arange(rows) + 200)
        keep(**{f"decodes {rows}": measured(Plan(decodes=decodes), 1000)})
    tokens = [(7919 * place) % 128_000 for place in range(8000)]
    request = Request.create("a", tokens, SamplingParams(max_tokens=8), ModelLimits(128_000, 16_384))
    span = Span(None, 0, 0, tokens, 1, TableChange(0, (tuple(range(500)),)))
    keep(**{"prompt 8000": measured(Plan([span], [Admission(0, request, 0, request.prompt)]), 50)})


def best_us(call: Callable[[], Any], calls: int, rounds: int = 7) -> float:
    """Return the mean time of a call in the best of a few rounds."""
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - start) / calls)
    return round(1e6 * best, 1)


# -- the exchange ------------------------------------------------------------------------------------------------------


def exchange_part(asked: argparse.Namespace, keep: Callable[..., None]) -> None:
    import torch

    from gradus.bench.references.rows import summed_rms_norm_reference
    from gradus.kernels.core.overlap import early_launches
    from gradus.kernels.rows.norm import add_rms_norm
    from gradus.kernels.rows.summed_norm import summed_rms_norm
    from gradus.parallel.group import Group
    from gradus.parallel.symmetric import inboxes_of

    device, rank = torch.device("cuda", asked.rank), asked.rank
    torch.cuda.set_device(device)
    group = Group(asked.path, rank, 2, device)
    group.gather(torch.zeros(1, device=device))
    keep(nccl="meets")
    inboxes = inboxes_of(group, WIDTH, torch.bfloat16)
    keep(inboxes=inboxes is not None, gpu=torch.cuda.get_device_name(device), torch=torch.__version__)

    generator = torch.Generator(device).manual_seed(0)  # the same on both

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device).bfloat16()

    weight, stream = drawn(WIDTH), torch.zeros(max(ROWS), WIDTH, dtype=torch.bfloat16, device=device)
    parts = torch.zeros(2, max(ROWS), WIDTH, dtype=torch.bfloat16, device=device)

    def ours(rows: int, early: bool = False) -> torch.Tensor:
        assert inboxes is not None
        with early_launches(early):
            return summed_rms_norm(parts[rank, :rows], inboxes, stream[:rows], weight, EPS)

    def nccl(rows: int) -> torch.Tensor:
        return add_rms_norm(stream[:rows], group.sum(parts[rank, :rows].clone()), weight, EPS)

    one_shot = one_shot_of(asked.path, parts, rank, stream, weight, device) if inboxes is not None else None
    ways: dict[str, Callable[[int], torch.Tensor]] = {"nccl": nccl}
    if inboxes is not None:
        ways |= {"ours": ours, "ours, early launches": lambda rows: ours(rows, early=True)}
    if one_shot is not None:
        ways["one shot"] = one_shot
    checked: dict[str, Any] = {}
    took: dict[str, Any] = {}
    for name, way in ways.items():
        try:
            checked[name] = worst_error(way, parts, stream, weight, drawn, group, summed_rms_norm_reference)
            keep(checked=checked)
            took[name] = {rows: graph_us(way, rows, stream, group) for rows in ROWS}
        except Exception as error:  # the others may work
            took[name] = {"error": repr(error)[:300]}
        keep(us_per_call=took)


def one_shot_of(path: str, parts: Any, rank: int, stream: Any, weight: Any, device: Any) -> Any:
    """Make torch's one-shot all-reduce over symmetric memory, followed by our norm; None where torch refuses."""
    import torch
    from torch._C import _distributed_c10d as c10d
    from torch.distributed import _symmetric_memory as symmetric

    from gradus.kernels.rows.norm import add_rms_norm

    try:
        shared = symmetric.empty((max(ROWS), WIDTH), dtype=torch.bfloat16, device=device)
        c10d._SymmetricMemory.rendezvous(shared, path)
    except (RuntimeError, AttributeError) as error:
        print("no one-shot all-reduce:", error, flush=True)
        return None

    def one_shot(rows: int) -> torch.Tensor:
        shared[:rows] = parts[rank, :rows]
        total = torch.ops.symm_mem.one_shot_all_reduce(shared[:rows], "sum", path)
        return add_rms_norm(stream[:rows], total, weight, EPS)

    return one_shot


def worst_error(
    way: Any, parts: Any, stream: Any, weight: Any, drawn: Any, group: Any, reference: Any
) -> dict[str, Any]:
    """Compare five calls of each number of rows with torch. same_bits: on both GPUs."""
    import torch

    worst, same = 0.0, True
    for rows in ROWS:
        for _ in range(5):
            parts[:, :rows], stream[:rows] = drawn(2, rows, WIDTH), drawn(rows, WIDTH)
            expected = stream[:rows].clone()
            normed = reference(parts[:, :rows], expected, weight, EPS)
            found = way(rows)
            for mine, wanted in ((found, normed), (stream[:rows], expected)):
                worst = max(worst, float((mine.float() - wanted.float()).norm() / wanted.float().norm()))
                both = group.gather(mine)
                same = same and bool(torch.equal(both[0], both[1]))
    return {"worst_error": worst, "same_bits": same}


def graph_us(way: Any, rows: int, stream: Any, group: Any) -> float:
    """Measure a call's mean time in a CUDA graph of CALLS, the best of five replays of eight."""
    import torch

    stream.zero_()
    way(rows)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(CALLS):
            way(rows)
    best = float("inf")
    for _ in range(5):
        group.gather(stream[0])  # the ranks meet
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        graph.replay()
        start.record()
        for _ in range(8):
            graph.replay()
        end.record()
        end.synchronize()
        best = min(best, 1e3 * start.elapsed_time(end) / 8 / CALLS)
    return round(best, 2)


# -- whole engines -----------------------------------------------------------------------------------------------------


def small_part(asked: argparse.Namespace, keep: Callable[..., None]) -> None:
    """Two ranks have one GPU's tokens, in float32."""
    from gradus import LLM, SamplingParams

    settings: Found = {"device": "cuda", "dtype": "float32", "max_sequences": 4, "context_length": 512}
    settings |= {"cache_tokens": 4096, "switch_off": ("graphs",) if asked.part == "eager" else ()}
    prompts = [[5, 6, 7, 8], [9] * 40, [3, 4], list(range(1, 300))]
    ways = [SamplingParams(max_tokens=24), SamplingParams(max_tokens=24, temperature=0.8, seed=3)]
    answers = []
    for count in (2, 1):
        start = time.perf_counter()
        with LLM(SMALL, tensor_parallel=count, **settings) as llm:
            keep(**{f"{count} starts in": round(time.perf_counter() - start, 1)})
            answers.append([[each.token_ids for each in llm.generate(prompts, params)] for params in ways])
            keep(**{f"{count} answers": True})
            start = time.perf_counter()
        keep(**{f"{count} closes in": round(time.perf_counter() - start, 1)})
    keep(equal=answers[0] == answers[1])
    if answers[0] != answers[1]:
        keep(two=answers[0], one=answers[1])
        raise SystemExit("two ranks have other tokens than one GPU")


def speed_part(asked: argparse.Namespace, keep: Callable[..., None]) -> None:
    from gradus import LLM

    count, workloads = 2 if asked.part == "two" else 1, QUICK_WORKLOADS if asked.quick else WORKLOADS
    start = time.perf_counter()
    llm = LLM(
        asked.model, device="cuda", dtype="bfloat16", tensor_parallel=count, max_sequences=64,
        context_length=context_of(workloads), switch_off=("prefix_cache",),
    )  # fmt: skip
    keep(gpus=count, start_up_s=round(time.perf_counter() - start, 1))
    for name, prompts, length, tokens in workloads:
        timed(llm, prompts, length, min(tokens, 8))
        whole = min(timed(llm, prompts, length, tokens) for _ in range(2))
        if tokens == 1:
            keep(**{name: {"prompts": prompts, "length": length, "tok_s": round(prompts * length / whole)}})
            continue
        first = min(timed(llm, prompts, length, 1) for _ in range(2))
        decode = round(prompts * (tokens - 1) / (whole - first), 1)
        keep(**{name: {"tok_s": round(prompts * tokens / whole, 1), "decode_tok_s": decode}})
    start = time.perf_counter()
    llm.close()
    keep(close_s=round(time.perf_counter() - start, 1))


def timed(llm: Any, prompts: int, length: int, tokens: int) -> float:
    """Measure the seconds of a batch of prompts of one length with answers of one length."""
    from gradus import SamplingParams

    batch = prompts_of(prompts, length, llm.limits.vocab_size)
    start = time.perf_counter()
    llm.generate(batch, SamplingParams(max_tokens=tokens, ignore_eos=True))
    return time.perf_counter() - start


def prompts_of(count: int, length: int, vocabulary: int) -> list[list[int]]:
    size = vocabulary - 10
    return [[(7 * number + 13 * place) % size + 5 for place in range(length)] for number in range(count)]


def context_of(workloads: tuple[tuple[str, int, int, int], ...]) -> int:
    return max(length for _, _, length, _ in workloads) + 256


def vllm_part(asked: argparse.Namespace, keep: Callable[..., None]) -> None:
    """Measure vLLM with its own choices, two GPUs and the same prompts."""
    from gradus.bench.run import blocks
    from gradus.bench.studies.beside import vllm_config
    from gradus.loading import open_checkpoint

    assert asked.vllm is not None, "give --vllm"
    config, workloads = open_checkpoint(asked.model).config, QUICK_WORKLOADS if asked.quick else WORKLOADS
    folder = Path(tempfile.mkdtemp(prefix="vllm-"))
    (folder / "config.json").write_text(json.dumps(vllm_config(config)))
    case = {"sampling": {"temperature": 0.0}, "decode_alone": False, "unmeasured": 1}
    cases = [
        case | {
            "label": name, "prompts": prompts_of(prompts, length, config.vocab_size),
            "max_tokens": [tokens] * prompts, "at_once": prompts,
        }
        for name, prompts, length, tokens in workloads
    ]  # fmt: skip
    question = {
        "config": str(folder), "load_format": "dummy", "dtype": "bfloat16", "memory_share": 0.85,
        "context": context_of(workloads), "max_sequences": 64, "vllm_options": {"tensor_parallel_size": 2},
        "repeats": 2, "cases": cases,
    }  # fmt: skip
    limit = LIMITS_S["vllm"] - 20
    side = blocks.vllm(asked.vllm, str(VLLM_BLOCK), seconds=limit)
    found, why = blocks.run_block(side, question, asked.out.parent / "vllm.log")
    keep(gpus=2, version=found.get("version"), start_up_s=found.get("init_s"))
    for name, prompts, length, tokens in workloads:
        samples = found.get("cases", {}).get(name, {}).get("samples", [])
        if samples:
            rate = prompts * (length if tokens == 1 else tokens) / min(sample["seconds"] for sample in samples)
            keep(**{name: {"tok_s": round(rate, 1)}})
    if why:
        said = asked.out.parent / "vllm.log"
        raise SystemExit(f"{why}\n{said.read_text(errors='replace')[-3000:]}")


PARTS = {
    "plan": plan_part,
    "exchange": exchange_part,
    "eager": small_part,
    "graphs": small_part,
    "two": speed_part,
    "one": speed_part,
    "vllm": vllm_part,
}

if __name__ == "__main__":
    sys.exit(ran(main))
