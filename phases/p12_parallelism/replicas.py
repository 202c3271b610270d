"""From 1 to 100 replicas of a whole engine: what breaks first?

    python -m phases.p12_parallelism.replicas

Replicas exchange nothing, so a hundred of them compute a hundred times as much. What does not grow by itself is what
one engine had alone: the prefixes that it remembers, a queue that is empty when it is idle, and its luck.
"""

import random
from statistics import mean

REQUESTS = 16  # that run at once on each replica, on average
TRIALS, COUNTS = 40, (1, 2, 4, 10, 32, 100)
GPU_HOURS = 16_384 * 54 * 24 / 419
"""Hours of one GPU between faults: 419 unexpected ones in 54 days of 16,384 (Grattafiori et al. 2024, Llama 3)."""


def hits(count: int) -> float:
    """The chance that the next turn of a chat reaches the replica that has its prefix cached, routed at random."""
    return 1 / count


def fullest(count: int, choices: int, draw: random.Random) -> float:
    """Requests on the fullest replica, as a multiple of the average.

    Each request comes to the emptiest of `choices` replicas that are drawn at random.
    """
    loads = [0] * count
    for _ in range(REQUESTS * count):
        chosen = min((draw.randrange(count) for _ in range(choices)), key=loads.__getitem__)
        loads[chosen] += 1
    return max(loads) / REQUESTS


def days_between_faults(gpus: int) -> float:
    return GPU_HOURS / gpus / 24


def main() -> None:
    print("replicas  prefix hits  fullest, at random  fullest, of two  days between faults (2 GPUs each)")
    for count in COUNTS:
        draw = random.Random(count)
        loads = [mean(fullest(count, choices, draw) for _ in range(TRIALS)) for choices in (1, 2)]
        days = days_between_faults(2 * count)
        print(f"{count:8}  {hits(count):11.0%}  {loads[0]:17.2f}×  {loads[1]:14.2f}×  {days:20,.0f}")


if __name__ == "__main__":
    main()
