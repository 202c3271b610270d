"""Leave a server alone under changing load, and say whether all still holds at the end.

    make soak                     # 30 minutes, a tiny random model on the CPU
    make soak MINUTES=480 MODEL=smollm2-135m
    PYTHONPATH=src:. python3 -m benchmarks.soak --model smollm2-135m --out "$OUT"/soak.json -- --device cuda

The server is started as its users start it, with a cache too small for all its sequences, so that they are sent back
and begin again. Options after `--` go to `gradus serve`. Prints one verdict per check, writes everything that was seen,
and exits with 1 if a check failed. Another program on the machine disturbs the throughput, and nothing else.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.soak.checks import Soak, Verdict, verdicts
from benchmarks.soak.loads import LOADS, Soaked, Tally
from benchmarks.soak.observed import Rest, Scraper, Watcher, at_rest, stats
from benchmarks.soak.requests import Served, described
from benchmarks.start_to_first_token import READY_S, Server, started
from gradus.bench.measure.fingerprint import commit
from gradus.bench.run.script import ran
from gradus.doctor import machine
from gradus.errors import ConfigError

MODEL = "random:tiny-llama"
CYCLE_S = 100.0
LEAST_CYCLES = 4
JUDGED_CYCLES = 2  # on a machine too slow for more: what is later is compared with what was first
WRITE_TIMEOUT_S = 2.0
SEQUENCES, WAITING = 16, 64
CACHE_TOKENS = 1024
STOP_S = 60.0


def command(more: Sequence[str]) -> list[str]:
    """Options of the server; those after `--` come last, and count."""
    given: dict[str, float] = {"--max-sequences": SEQUENCES, "--max-waiting": WAITING, "--cache-tokens": CACHE_TOKENS}
    given |= {"--write-timeout": WRITE_TIMEOUT_S}
    return [text for name, value in given.items() if name not in more for text in (name, str(value))] + [*more]


def soak(model: str, minutes: float, more: Sequence[str], log: Path) -> Soak:
    """Run it."""
    with started(model, command(more), log) as server:
        cycles, rests, tally, scraper, watcher = asyncio.run(_soaked(server, minutes * 60))
        server.process.terminate()
        code = server.process.wait(STOP_S)
    return Soak(cycle_seconds(minutes * 60), tally, scraper, watcher, cycles, rests, log.read_text(), code)


def cycle_seconds(seconds: float) -> float:
    """Seconds of a cycle: several fit into any run."""
    return min(CYCLE_S, seconds / LEAST_CYCLES)


Seen = tuple[list[dict[str, dict[str, Any]]], list[Rest], Tally, Scraper, Watcher]


async def _soaked(server: Server, seconds: float) -> Seen:
    began, cycle_s = monotonic(), cycle_seconds(seconds)
    while server.health()[0] != 200:
        if monotonic() - began > READY_S:
            raise ConfigError(f"the server was not ready after {READY_S:g} s")
        await asyncio.sleep(0.2)
    about = await stats(server)
    served = Served(about["model"], about["vocab_size"], min(about["context_length"], CACHE_TOKENS // 2))
    soaked, scraper = Soaked(server, served, Tally(), WRITE_TIMEOUT_S), Scraper(server)
    scraping = asyncio.create_task(scraper.run())
    cycles, rests, began = list[dict[str, dict[str, Any]]](), list[Rest](), monotonic()
    while len(cycles) < JUDGED_CYCLES or monotonic() - began + cycle_s <= seconds:
        checked = (await stats(server))["self_checks"]
        cycles.append(await soaked.cycle(len(cycles), cycle_s))
        rests.append(await at_rest(server, began, checked))
        said = ", ".join(f"{name} {one['tokens'] / one['seconds']:.0f}" for name, one in cycles[-1].items())
        print(f"{rests[-1].at:.0f} s: tokens/s: {said}; {soaked.tally.faulty} faults", flush=True)
    if scraping.done():
        scraping.result()  # raises what ended it
    scraping.cancel()
    await asyncio.gather(scraping, return_exceptions=True)
    return cycles, rests, soaked.tally, scraper, soaked.watcher


def record(found: Soak, judged: Sequence[Verdict], options: argparse.Namespace) -> dict[str, Any]:
    return {
        "commit": options.commit or commit(),
        "hardware": machine.hardware(),
        "model": options.model,
        "minutes": options.minutes,
        "server": command(options.more),
        "requests": described(),
        "loads": {load.name: load.share for load in LOADS},
        "verdicts": [[verdict.what, verdict.holds, verdict.said] for verdict in judged],
        **found.record(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODEL, help="as for gradus serve")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--commit", help="the commit; by default the one checked out")
    parser.add_argument("--out", type=Path, default=Path("soak.json"))
    arguments = sys.argv[1:]
    at = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:at])
    options.more = arguments[at + 1 :]
    if options.minutes <= 0:
        raise ConfigError(f"--minutes must be above 0, got {options.minutes:g}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        found = soak(options.model, options.minutes, options.more, Path(scratch) / "server.log")
    judged = verdicts(found)
    options.out.write_text(json.dumps(record(found, judged, options), indent=1) + "\n")
    print("\n".join(map(str, judged)))
    return int(any(verdict.holds is False for verdict in judged))


if __name__ == "__main__":
    sys.exit(ran(main))
