"""Ranks as processes: a launcher starts the same program once per rank, and reads one line of JSON from each.

    python -m phases.p12_parallelism.process '{"rank": 0, …}'

is one rank. It ends when the launcher closes its input, which is when all ranks have answered.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from gradus import phases
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.errors import ConfigError, GradusError
from gradus.loading import load_model, open_checkpoint
from phases.p12_parallelism.exchange import Exchange
from phases.p12_parallelism.place import Place

Found = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Job:
    """What a rank is given: the same for all, but for `rank`. prompts: token ids.

    path: through which the ranks meet. impl: a folder with a student's functions. watched: note what happens when.
    few_bytes: exchange candidates in place of scores.
    """

    model: str
    prompts: tuple[tuple[int, ...], ...]
    parts: int = 1
    stages: int = 1
    micro_batches: int = 1
    max_tokens: int = 16
    phase: str = "p03"
    impl: str | None = None
    watched: bool = False
    few_bytes: bool = False
    rank: int = 0
    path: str = ""

    def requests(self, limits: ModelLimits) -> list[Request]:
        params = SamplingParams(max_tokens=self.max_tokens)
        return [Request.create(f"{number}", prompt, params, limits) for number, prompt in enumerate(self.prompts)]


def launch(job: Job) -> list[Found]:
    """Run all ranks of a job, and return what each has found. Raises ConfigError with the first complaint of a rank."""
    with tempfile.TemporaryDirectory() as folder:
        job = replace(job, path=str(Path(folder) / "meeting"))
        ranks = [start(replace(job, rank=rank)) for rank in range(job.parts * job.stages)]
        try:
            lines = [rank.stdout.readline() for rank in ranks if rank.stdout]
            complaints = [rank.communicate()[1] for rank in ranks]  # closes their inputs: they may leave
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    # 2 is a rank's own complaint; others only say that they have lost it
    failed = sorted(
        (rank.returncode != 2, text) for rank, text in zip(ranks, complaints, strict=True) if rank.returncode
    )
    if failed:
        said = failed[0][1].strip() or "a rank has died, and said nothing"
        raise ConfigError(said.splitlines()[-1])
    return [json.loads(line) for line in lines]


def start(job: Job) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "phases.p12_parallelism.process", json.dumps(asdict(job))]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, encoding="utf-8")


def run(job: Job) -> tuple[Found, Exchange]:
    """Load the model, keep this rank's part, and answer all requests.

    Also returns the exchange: without it, a rank that still reads what this one has sent would lose it.
    """
    p12 = phases.find("p12") if job.impl is None else phases.solution("p12", Path(job.impl))
    whole = load_model(open_checkpoint(job.model), dtype=torch.float32, device="cpu")
    layers, place = whole.config.num_layers, Place(job.rank, job.parts, job.stages)
    watch = p12.module("watch")
    exchange = (watch.WatchedExchange if job.watched else p12.module("exchange").Exchange)(job.path, place)
    engines = p12.module("rank").engines(whole, exchange, job.phase, job.micro_batches, few_bytes=job.few_bytes)
    del whole
    model = engines[0].runner.model
    found = {
        "layers": len(place.layers(layers)),
        "heads": model.config.num_heads,
        "kv_heads": model.config.num_kv_heads,
        "weights": sum(value.numel() for value in model.parameters()),
    }
    requests = job.requests(engines[0].limits)
    if job.watched:
        found["notes"] = watch.noted(engines, exchange, requests)
    found["answers"] = list(p12.module("rank").answers(engines, requests).values())
    return found, exchange


def main() -> int:
    try:
        torch.set_num_threads(1)  # a core is a device here
        found, exchange = run(Job(**json.loads(sys.argv[1])))
    except GradusError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(found), flush=True)
    sys.stdin.read()
    exchange.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
