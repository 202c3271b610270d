"""Latency against load, as the formulas predict it and as the simulated server has it.

python -m phases.p13_serving.load
python -m phases.p13_serving.load --fixed 10 --row 0.1 --token 0.02 --slots 64      # steps that hardly grow: a GPU's
python -m phases.p13_serving.load --closed                              # users that wait for their answers
"""

import argparse
import sys

from gradus.bench.statistics import percentile
from phases.p13_serving.load.formulas import Load, spread
from phases.p13_serving.load.goodput import Objective, goodput
from phases.p13_serving.load.loads import Lengths, closed_loop, open_loop, warm
from phases.p13_serving.load.simulator import Pace, Server

SHARES = (0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95, 1.1)
REQUESTS = 4000


def lengths(text: str) -> Lengths:
    low, _, high = text.partition("-")
    return int(low), int(high or low)


def row(server: Server, objective: Objective) -> str:
    """Median and p99 of TTFT in ms, and the goodput."""
    records = warm(server.records)
    waits = [1e3 * (record.ttft or 0.0) for record in records]
    good, share = goodput(records, objective, records[0].at, records[-1].at)
    return f"{percentile(waits, 50):12,.0f} {percentile(waits, 99):12,.0f} {good:8.1f} {share:7.0%}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fixed", type=float, default=5.0, help="ms of every step")
    parser.add_argument("--row", type=float, default=1.8, help="ms per decoding request")
    parser.add_argument("--token", type=float, default=1.2, help="ms per token of a prompt")
    parser.add_argument("--slots", type=int, default=8, help="requests that run at once")
    parser.add_argument("--budget", type=int, default=256, help="tokens of a step")
    parser.add_argument("--prompt", type=lengths, default=(8, 24), help="tokens of a prompt, as in 8-24")
    parser.add_argument("--output", type=lengths, default=(8, 24), help="tokens of an answer")
    parser.add_argument("--ttft", type=float, default=200, help="ms: the objective for the first token")
    parser.add_argument("--tpot", type=float, default=30, help="ms: the objective for each further token")
    parser.add_argument("--closed", action="store_true", help="users that wait for their answers")
    asked = parser.parse_args()
    pace = Pace(asked.fixed / 1e3, asked.row / 1e3, asked.token / 1e3, asked.slots, asked.budget)
    load = Load(pace, sum(asked.prompt) / 2, sum(asked.output) / 2, spread(*asked.output))
    objective = Objective(asked.ttft / 1e3, asked.tpot / 1e3)
    print(f"capacity: {load.capacity:.1f} requests/s, {load.capacity * load.output:,.0f} tokens/s")
    print(
        f"{'users' if asked.closed else 'requests/s':>10} {'TTFT p50, ms':>12} {'p99':>12} {'goodput':>8} {'good':>7}",
        end="",
    )
    print("" if asked.closed else f" {'p50 predicted':>14} {'p99':>9} {'TPOT':>6}")
    if asked.closed:
        for users in sorted({max(1, round(asked.slots * share)) for share in (0.1, 0.5, 1, 1.5, 2, 3)}):
            server = closed_loop(pace, users, REQUESTS, asked.prompt, asked.output)
            print(f"{users:10} {row(server, objective)}")
        return 0
    for share in SHARES:
        rate = share * load.capacity
        server = open_loop(pace, rate, REQUESTS, asked.prompt, asked.output)
        half, whole = (1e3 * load.ttft(rate, part) for part in (0.5, 0.99))
        print(f"{rate:10.1f} {row(server, objective)} {half:14,.0f} {whole:9,.0f} {1e3 * load.tpot(rate):6.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
