"""Measure a model on two GPUs and on one.

    NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 PYTHONPATH=src:. \\
        python3 benchmarks/tensor_parallel.py --out benchmarks/tensor_parallel.json

Each part runs in processes of its own within a time limit, and is written as soon as it is measured, so a part that
fails or hangs costs no other. Logs are in `--logs`; that of a part that hung ends with its stacks.

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
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from gradus.bench.measure.fingerprint import commit
from gradus.bench.run.script import ran

LIMITS_S = {"eager": 90, "graphs": 120, "two": 200, "one": 150, "vllm": 400}
OURS = tuple(part for part in LIMITS_S if part != "vllm")
WORKLOADS = (("batch 1", 1, 128, 256), ("batch 64", 64, 512, 256), ("prefill", 8, 8192, 1))
"""name, prompts, tokens of each, tokens of each answer"""
QUICK_WORKLOADS = (("batch 1", 1, 128, 64), ("batch 64", 64, 512, 64), ("prefill", 8, 1024, 1))
VLLM_BLOCK = Path(__file__).with_name("vllm_block.py")
MODEL, QUICK_MODEL, SMALL = "random:llama-3.1-8b", "random:qwen3-0.6b", "random:tiny-llama"
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
        found["parts"][part] = in_process(part, asked, logs)
        print(part, json.dumps(found["parts"][part]), flush=True)
        asked.out.write_text(json.dumps(found, indent=1) + "\n")
    return int(any("error" in part for part in found["parts"].values()))


# -- a part in processes of its own ------------------------------------------------------------------------------------


def in_process(part: str, asked: argparse.Namespace, logs: Path) -> Found:
    """Run a part in a process of its own, which starts further ranks itself. Returns its results."""
    start, folder = time.perf_counter(), Path(tempfile.mkdtemp(prefix=f"{part}-"))
    out, log = folder / "found.json", logs / f"{part}.log"
    command = [sys.executable, __file__, "--part", part, "--out", str(out), "--model", asked.model]
    command += ["--quick"] if asked.quick else []
    command += ["--vllm", str(asked.vllm)] if asked.vllm else []
    environment = os.environ | {"PYTHONFAULTHANDLER": "1", "NCCL_DEBUG": os.environ.get("NCCL_DEBUG", "WARN")}
    with log.open("w") as said:
        running = subprocess.Popen(
            command, env=environment, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )
        code = wait_for(running, LIMITS_S[part])
    found: Found = json.loads(out.read_text()) if out.exists() else {}
    found["seconds"] = round(time.perf_counter() - start, 1)
    if code:
        found |= {"error": f"exit code {code}", "log": log.read_text(errors="replace")[-3000:]}
    return found


def wait_for(running: "subprocess.Popen[bytes]", limit_s: float) -> int:
    """Wait for a process, at most that long; then end it and its children, with its stacks in the log."""
    try:
        running.wait(limit_s)
    except subprocess.TimeoutExpired:
        running.send_signal(signal.SIGABRT)  # faulthandler writes its stacks
        time.sleep(1.5)
    with suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    return running.wait()


def run_here(asked: argparse.Namespace) -> int:
    """Run a part, and write its results. What was measured before a failure is kept."""
    found: Found = {}

    def keep(**values: Any) -> None:
        found.update(values)
        print(round(time.perf_counter() - began, 1), values, flush=True)
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
    "eager": small_part,
    "graphs": small_part,
    "two": speed_part,
    "one": speed_part,
    "vllm": vllm_part,
}

if __name__ == "__main__":
    sys.exit(ran(main))
