"""How much can a server promise? Our server and vLLM's on one GPU: the highest rate of chat requests at which 99 % have
their first token within 200 ms and the others every 20 ms; and what a crowd gains over users who wait for each other.

    PYTHONPATH=src:. python3 benchmarks/goodput.py --vllm DIR --shape qwen3-0.6b --tokenizer qwen2.5-coder-0.5b \
        --out "$OUT"/goodput.json
    PYTHONPATH=src:. python3 benchmarks/goodput.py --quick --shape tiny-llama --tokenizer random:tiny-llama \
        --device cpu --dtype float32 --out goodput.json

Both servers are started as in server_beside_vllm.py, with room for the longest request. The load is open: requests come
at random (Poisson), whatever the server does, with `gradus.load`'s chat lengths, 40 % of them behind one of four system
prompts, at temperature 0.6. From a first rate the search goes up or down by a factor of 1.3, then bisects; a rate fails
as soon as too many of its requests have. Then 1, 2, 4 … 128 users send requests of 128 tokens, each the next one when
it has the answer: the gain is the tokens per second of 128, in multiples of one user's. Every load's numbers are
written at once. Runs of other shapes that the file holds stay in it. `--quick` is a rehearsal: a few short requests,
and loose limits.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from benchmarks.server_beside_vllm import (
    FIRST_IDS,
    OURS,
    SEQUENCES,
    THEIRS,
    Server,
    free_port,
    our_command,
    run_with,
    serving,
    vllm_command,
    write,
)
from gradus.bench.record.goodput_tables import goodput_rows, users_rows
from gradus.bench.report import markdown
from gradus.bench.run.script import ran
from gradus.errors import ConfigError
from gradus.load.asking.clients import crew
from gradus.load.asking.routes import COMPLETIONS, Writing
from gradus.load.asking.target import Target
from gradus.load.jobs.arrivals import at_random
from gradus.load.jobs.lengths import Lengths
from gradus.load.jobs.mix import CHAT, Mix
from gradus.load.objective import Objective
from gradus.load.search import Search
from gradus.load.trials import Trial, Trials

BLOCKS = {"A1": OURS, "B": THEIRS, "A2": OURS}
RATE, USERS = "rate", "users"
LATE = ("ttft", "tpot")
TEMPERATURE = 0.6
OBJECTIVE = Objective(ttft=0.2, tpot=0.02)
SEARCH = Search(share=0.99, seconds=8.0, requests=100, warmup=1.0, factor=1.3, precision=0.05, budget=90.0)
FIRST = {"qwen3-0.6b": {OURS: 150.0, THEIRS: 60.0}, "qwen3-4b": {OURS: 75.0, THEIRS: 35.0}}
OTHER_FIRST = 16.0  # requests per second, for other shapes
ROOM = 40  # positions beyond the longest request
CROWDS = (1, 2, 4, 8, 16, 32, 64, 128)
CROWD = Mix(Lengths(128, 128), Lengths(128, 128))
EACH, LEAST = 4, 8  # requests per user, and in all

QUICK_OBJECTIVE = Objective(ttft=0.5, tpot=0.1)
QUICK_SEARCH = Search(share=0.9, seconds=1.0, requests=10, warmup=0.2, factor=2.0, precision=0.9, budget=15.0)
QUICK_CHAT = Mix(Lengths(4, 40, 12, 2), Lengths(2, 12, 6, 2), beginnings=4, shared=0.4, beginning=8, capped=True)
QUICK_CROWD = Mix(Lengths(8, 8), Lengths(8, 8))
QUICK_CROWDS = (1, 4)


@dataclass(frozen=True)
class Asked:
    """The loads that both servers get, and the objective."""

    objective: Objective
    search: Search
    chat: Mix
    crowd: Mix
    crowds: tuple[int, ...]

    @property
    def context(self) -> int:
        return max(self.chat.longest, self.crowd.longest) + ROOM


WHOLE = Asked(OBJECTIVE, SEARCH, CHAT, CROWD, CROWDS)
REHEARSAL = Asked(QUICK_OBJECTIVE, QUICK_SEARCH, QUICK_CHAT, QUICK_CROWD, QUICK_CROWDS)


@dataclass
class Measuring:
    """One shape's run. made: what is written after each load."""

    options: argparse.Namespace
    asked: Asked
    folder: Path
    made: dict[str, Any]

    def all_blocks(self, pool: ProcessPoolExecutor | None) -> None:
        for block, engine in BLOCKS.items():
            if block not in self.options.blocks or (engine == THEIRS and self.options.vllm is None):
                continue
            kept: dict[str, Any] = {"engine": engine}
            self.made["blocks"][block] = kept
            try:
                self._block(block, engine, kept, pool)
            except (RuntimeError, ConfigError) as error:  # the other blocks may still run
                kept["failed"] = str(error)
                print(f"{self.options.shape} {block}: {error}", flush=True)
            self.write()

    def _block(self, block: str, engine: str, kept: dict[str, Any], pool: ProcessPoolExecutor | None) -> None:
        port, logs = free_port(), self.options.out.parent / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        command = (our_command if engine == OURS else vllm_command)(self.folder, port, self.options)
        with serving(command, self.folder, port, logs / f"goodput-{self.options.shape}-{block}.txt") as server:
            kept["ready_s"] = server.ready_s
            print(f"{self.options.shape} {block}: {engine} is ready after {server.ready_s} s", flush=True)
            if engine == THEIRS:
                self.made["vllm"] = json.loads(server.get("/version"))["version"]
            trials = self._trials(server, block, pool)
            self._warm(trials, engine)
            if RATE in self.options.parts:
                self._rate(trials, engine, kept)
            if USERS in self.options.parts:
                self._users(trials, kept)

    def _trials(self, server: Server, block: str, pool: ProcessPoolExecutor | None) -> Trials:
        writing, seed = Writing(COMPLETIONS, server.model, TEMPERATURE), [*BLOCKS].index(block)
        target = Target("127.0.0.1", server.port)
        return Trials(target, writing, self.options.ids, pool, seed, timeout=120.0, objective=self.asked.objective)

    def _first(self, engine: str) -> float:
        if self.options.first_rate:
            return float(self.options.first_rate)
        return FIRST.get(self.options.shape, {}).get(engine, OTHER_FIRST)

    def _warm(self, trials: Trials, engine: str) -> None:
        """A load that is not counted, at half the first rate: shapes are compiled, system prompts are cached."""
        rate = self._first(engine) / 2
        times = at_random(max(8, round(rate * self.asked.search.seconds / 2)), rate, Random("warm"))
        trials.send(self.asked.chat.jobs(times, trials.vocab_size, "warm", beginnings=str(trials.seed)), rate=rate)
        trials.settle()

    def _rate(self, trials: Trials, engine: str, kept: dict[str, Any]) -> None:
        kept["loads"] = []
        began = time.monotonic()

        def each(trial: Trial) -> None:
            record = trial.record([50.0, 99.0])
            kept["loads"].append(record)
            self.write()
            times = [
                f"{name} p50 {record[f'{name}_ms'].get('p50')} p99 {record[f'{name}_ms'].get('p99')} ms"
                for name in LATE
            ]
            early = ", ended early" if trial.run.stopped else ""
            print(
                f"  {trial.rate:.1f} requests/s: {record['good_share']:.1%} good, {', '.join(times)}, "
                f"{record['output_tok_s']:,.0f} tok/s{early}, after {time.monotonic() - began:.0f} s",
                flush=True,
            )

        found = trials.highest(self.asked.chat, self._first(engine), self.asked.search, each)
        kept["found"] = {"best": found.best, "failed": found.failed, "whole": found.whole, "unsent": found.unsent}
        print(f"  kept: {found.best:.1f} requests/s, not {found.failed}; unsent: {found.unsent}", flush=True)

    def _users(self, trials: Trials, kept: dict[str, Any]) -> None:
        """Each number of users once to warm up, then timed."""
        kept["users"] = {}
        for users in self.asked.crowds:
            samples = []
            for repeat in range(self.options.repeats + 1):
                count = max(LEAST, EACH * users)
                jobs = self.asked.crowd.jobs([0.0] * count, trials.vocab_size, f"{trials.seed} {users} {repeat}")
                trial = trials.send(jobs, users=users)
                if wrong := [one for one in trial.answers if one.error]:
                    raise RuntimeError(f"an answer failed ({wrong[0].error}): {wrong[0].detail}")
                samples.append(trial.record([50.0, 99.0]))
            kept["users"][str(users)] = samples[1:]
            self.write()
            rate = median(sample["output_tok_s"] for sample in samples[1:])
            print(f"  {users} users: {rate:,.0f} tok/s", flush=True)

    def write(self) -> None:
        """Write this shape's run among those that the file holds."""
        out = self.options.out
        there = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {"runs": {}}
        write(out, {"runs": there["runs"] | {self.options.shape: self.made}})


def run(options: argparse.Namespace, folder: Path) -> str:
    from benchmarks.random_folder import write_folder
    from benchmarks.server_beside_vllm import release
    from gradus.bench.measure.fingerprint import commit, fingerprint
    from gradus.models.precision import resolve_device
    from gradus.models.shapes import SHAPES

    asked = REHEARSAL if options.quick else WHOLE
    write_folder(folder, options.shape, options.tokenizer, options.device)
    options.ids = min(SHAPES[options.shape].vocab_size, FIRST_IDS)
    options.context = asked.context
    made: dict[str, Any] = {
        "commit": options.commit or commit(),
        **fingerprint(resolve_device(options.device), quick=True),
        "shape": options.shape,
        "tokenizer": Path(options.tokenizer).name,
        "dtype": options.dtype,
        "temperature": TEMPERATURE,
        "context": asked.context,
        "sequences": options.sequences,
        "quick": options.quick,
        "objective": str(asked.objective),
        "share": asked.search.share,
        "prompt_tokens": str(asked.chat.prompt),
        "output_tokens": str(asked.chat.output),
        "crowd": [asked.crowd.prompt.high, asked.crowd.output.high],
        "blocks": {},
    }
    release()
    with crew() as pool:
        Measuring(options, asked, folder, made).all_blocks(pool)
    return tables({options.shape: made})


def tables(runs: Mapping[str, Any]) -> str:
    return "\n".join(markdown(*each) for each in (goodput_rows(runs), users_rows(runs)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", type=Path, help="the folder that vLLM was unpacked in; without it, ours alone")
    parser.add_argument("--shape", default="qwen3-0.6b", help="as in qwen3-0.6b or qwen3-4b")
    parser.add_argument(
        "--tokenizer", default="qwen2.5-coder-0.5b", help="the model, or folder, whose tokenizer both read"
    )
    parser.add_argument("--parts", type=lambda text: text.split(","), default=[RATE, USERS], help="as in rate,users")
    parser.add_argument("--blocks", type=lambda text: text.split(","), default=["A1", "B"], help="as in A1,B,A2")
    parser.add_argument("--first-rate", type=float, help="requests per second to begin the search with")
    parser.add_argument("--sequences", type=int, default=SEQUENCES, help="that a server runs at once")
    parser.add_argument("--repeats", type=int, default=2, help="of each number of users, after one that is not counted")
    return run_with(parser, run)


if __name__ == "__main__":
    sys.exit(ran(main))
