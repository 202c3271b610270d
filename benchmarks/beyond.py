"""Gather what docs/design/beyond.md computes with: rates measured elsewhere in this repository, and the router's here.

    PYTHONPATH=src:. python benchmarks/beyond.py --out benchmarks/beyond.json
    gradus report

The page's tables follow from the file alone (`gradus.bench.predict.beyond`).
"""

import argparse
import json
import pickle
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from gradus.bench.measure.fingerprint import commit, versions
from gradus.bench.run.script import ran
from gradus.deploy.choice import Choice
from gradus.deploy.prefixes import MOST_BLOCKS, MOST_HASHES
from gradus.deploy.run import PUBLISHED_EVERY_S

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 4096 * 2  # bytes of a row in the tables of sums
TWO_SHOT_US = {1: 6.3, 8: 7.2, 64: 7.7, 256: 12.8, 2048: 57.8}
MANY_ROWS, MANY_US = 2048, {"nccl": 83.9, "pushed": 96.7}
"""All-reduces of torch 2.11 in CUDA graphs on two H200 with NVLink, without multicast, by rows. `pushed` is torch's
one-shot, which works as ours does: tensor_parallel.json goes up to 256 rows."""
GPUS = {"H200": "http_cost", "H100": "steady_state"}
REPLICAS, SEQUENCES = (1, 10, 100), (1, 64, 256)
HOST, FP8 = (
    "gpt2-124m",
    "llama-3.1-8b-fp8",
)  # tables of the comparison with vLLM; gpt2's prompts are short


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    from gradus import doctor

    machine = doctor.hardware()
    found: dict[str, Any] = {
        "commit": commit(),
        "processor": machine["processor"],
        "cores": machine["cores"],
        "versions": versions(),
    }
    found |= {"gpus": {name: gpu(script) for name, script in GPUS.items()}}
    found |= {"exchanges": exchanges(), "around": around(), "two": two_gpus(), "door": door()}
    asked.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found["around"]), json.dumps(found["door"]))


# -- measured elsewhere ------------------------------------------------------------------------------------------------


def results(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / f"{name}.json").read_text(encoding="utf-8"))


def gpu(script: str) -> dict[str, float]:
    """The rates of a GPU, and its memory in bytes, as a script found them."""
    found = results(script)
    rates, memory = found["rates"], float(found["hardware"]["gpu memory"].removesuffix(" GiB"))
    return {"read_gb_s": rates["read_gb_s"], "bfloat16_tflop_s": rates["bfloat16_tflop_s"], "gib": memory}


def exchanges() -> dict[str, Any]:
    """A sum's time by rows: ours with residual and norm, NCCL's with our norm after it, and a two-shot alone."""
    measured = results("tensor_parallel")["parts"]["exchange"]["us_per_call"]
    us = {"pushed": measured["ours, early launches"], "nccl": measured["nccl"]}
    us = {name: took | {str(MANY_ROWS): MANY_US[name]} for name, took in us.items()}
    return {"row_bytes": WIDTH, "us": us | {"two_shot": TWO_SHOT_US}}


def two_gpus() -> dict[int, Any]:
    """Decoded tokens per second on two H100, by requests."""
    measured = results("tensor_parallel")["parts"]["two"]
    return {batch: measured[f"batch {batch}"]["decode_tok_s"] for batch in (1, 64)}


def around() -> dict[str, Any]:
    """The host's time for a step and the front end's rate, on the machine of the H200."""
    host = {count: round(median(one["host_us"] for one in samples(HOST, count)), 1) for count in SEQUENCES}
    streams = next(row for row in results("http_cost")["rows"] if row["load"]["streams"] == 256)
    front_end, replica = rate(streams["samples"]["http"]), rate(samples(FP8, 64))
    plans = {count: results("tensor_parallel")["parts"]["plan"][f"decodes {count}"] for count in SEQUENCES}
    messages = {name: {count: plan[name] for count, plan in plans.items()} for name in ("pack_us", "send_us")}
    return {"host_us": host, "front_end_tok_s": front_end, "replica_tok_s": replica} | messages


def rate(found: list[dict[str, Any]]) -> int:
    """Tokens per second, the median."""
    return round(median(one["output_tokens"] / one["seconds"] for one in found))


def samples(table: str, batch: int) -> list[dict[str, Any]]:
    """The final engine's samples in a table of the comparison with vLLM on an H200."""
    file = ROOT / "reports" / "h200" / "beside-vllm" / "results.json"
    (found,) = (
        entry["samples"]
        for run in json.loads(file.read_text(encoding="utf-8"))["runs"]
        for cell in run["cells"]
        for entry in cell["entries"]
        if (cell["table"], cell["row"], entry["contender"]) == (table, f"batch {batch}", "final-prefix_cache")
    )
    return list(found)


# -- measured here -----------------------------------------------------------------------------------------------------


def door() -> dict[str, Any]:
    """The router's work, and the processors' time per token on the way to clients."""
    draw = random.Random(0)
    lists = [[draw.getrandbits(64) for _ in range(MOST_HASHES)] for _ in range(2)]
    packed = [pickle.dumps(each, protocol=5) for each in lists]
    numbers = iter(range(1 << 30))
    choice = Choice[int]()

    def publish() -> None:
        number = next(numbers)
        choice.publish(0, number, pickle.loads(packed[number % 2]))  # noqa: S301

    found: dict[str, Any] = {"publish_us": best_us(publish, 20), "list_bytes": len(packed[0])}
    found |= {"every_s": PUBLISHED_EVERY_S, "choose_us": {count: choose_us(count, draw) for count in REPLICAS}}
    return found | {"ways": ways()}


def ways() -> dict[str, dict[str, float]]:
    """Processor time per token of the processes that all tokens pass, now and through Ray's proxy as it was."""
    found = results("replicas")
    return {
        name: middle_of(row["ways"]["one door"], parts)
        for name, row, parts in (
            ("Ray's way", found["earlier"]["rows"][-1], ("Ray's proxy", "ingress")),
            ("our way", found["rows"][-1], ("front",)),
        )
    }


def choose_us(count: int, draw: random.Random) -> float:
    """Time one choice among replicas with full lists. The prompt is long, and one replica knows half of it."""
    choice = Choice[int]()
    prompt = [draw.getrandbits(64) for _ in range(MOST_BLOCKS)]
    for replica in range(count):
        known = prompt[: MOST_BLOCKS // 2] if replica == 0 else []
        choice.publish(replica, 1, [*known, *(draw.getrandbits(64) for _ in range(MOST_HASHES - len(known)))])
    names = list(range(count))

    def choose() -> None:
        ranked = choice.ranked(names, prompt)
        choice.offer(ranked[0], "request", prompt, 0.0)
        choice.begin(ranked[0], "request", prompt)
        choice.end(ranked[0], "request")

    return best_us(choose, 50)


def middle_of(samples: list[dict[str, Any]], parts: tuple[str, ...]) -> dict[str, float]:
    return {part: round(median(one["cpu_us"][part] for one in samples), 1) for part in parts}


def best_us(call: Callable[[], Any], calls: int, rounds: int = 25) -> float:
    """The mean processor time of a call in the best of a few rounds."""

    def means() -> Iterator[float]:
        for _ in range(rounds):
            began = time.thread_time()
            for _ in range(calls):
                call()
            yield (time.thread_time() - began) / calls

    return round(1e6 * min(means()), 1)


if __name__ == "__main__":
    sys.exit(ran(main))
