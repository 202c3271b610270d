"""Three answers stream, and a very long prompt arrives. How long do the three wait, by where it is encoded?

    gradus demo p13

The first two ways are mistakes; the third is the phase's own.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from statistics import median
from typing import Any
from unittest.mock import patch

from gradus import LLM
from gradus.engine.core import Core
from gradus.loading import Tokenizer, open_checkpoint
from phases.p13_serving.local import frames, local

QUESTION = "Three answers stream, and a prompt of 300,000 characters arrives: how long do the streams wait?"
LOOK = (
    "The prompt is far too long, and is refused with status 400 once its tokens are counted. On the event loop, "
    "nothing else happens until then. On a thread that keeps Python's lock, hardly anything does. Only where the lock "
    "is released does the prompt cost its sender alone."
)
TEXT = "the quick brown fox jumps over the lazy dog; " * 6667
STREAMS, TOKENS, BEFORE_S, RUNS = 3, 500, 0.3, 3
Points = list[tuple[float, float]]


async def on_the_loop(encode: Callable[[str], Any], text: str) -> Any:
    return encode(text)


@contextmanager
def encoded(where: str) -> Iterator[None]:
    """Encode prompts within the block in the given way: the phase's own, or one of the two mistakes."""
    mistakes: dict[str, Callable[[], AbstractContextManager[object]]] = {
        "on the event loop": lambda: patch.object(asyncio, "to_thread", on_the_loop),
        "on a thread that keeps the lock": lambda: patch("gradus.loading.tokenizer.LONG_TEXT", len(TEXT)),
    }
    with mistakes[where]() if where in mistakes else nullcontext():
        yield


WAYS = ("on the event loop", "on a thread that keeps the lock", "on a thread that releases it")


def gaps(engine: Core, tokenizer: Tokenizer, where: str) -> Points:
    """Measure (seconds, ms) of each gap between two frames of the streams while the long prompt arrives."""
    times: list[list[float]] = [[] for _ in range(STREAMS)]

    def read(port: int, number: int) -> None:
        times[number] += [at for at, _ in frames(port, prompt=[number], max_tokens=TOKENS)]

    with local(engine, tokenizer) as (_, port), encoded(where):
        threads = [threading.Thread(target=read, args=(port, number)) for number in range(STREAMS)]
        for thread in threads:
            thread.start()
        time.sleep(BEFORE_S)
        list(frames(port, prompt=TEXT))
        for thread in threads:
            thread.join()
    start = min(each[0] for each in times)
    return sorted((later - start, 1e3 * (later - earlier)) for each in times for earlier, later in pairwise(each))


def measured(model: str) -> dict[str, Points]:
    """Measure the gaps of the median of RUNS runs, by where the prompt is encoded. model: names the tokenizer; the
    engine's weights are random and few."""
    tokenizer = open_checkpoint(model).tokenizer or Tokenizer.of_bytes()
    with LLM("random:tiny-llama", phase="p03", device="cpu", dtype="float32", context_length=TOKENS + 1) as llm:
        gaps(llm.core, tokenizer, WAYS[-1])  # warm
        runs = [{where: gaps(llm.core, tokenizer, where) for where in WAYS} for _ in range(RUNS)]
    return {where: sorted((run[where] for run in runs), key=longest)[RUNS // 2] for where in WAYS}


def longest(points: Points) -> float:
    return max(gap for _, gap in points)


def show(model: str) -> Iterator[str]:
    """Yield the lines of the demo."""
    yield f"{QUESTION}\n"
    for where, found in measured(model).items():
        usual = median(gap for _, gap in found)
        yield f"encoded {where + ':':33} usual gap {usual:4.1f} ms, longest {longest(found):4.0f} ms"
    yield f"\n{LOOK}"
