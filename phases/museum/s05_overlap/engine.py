"""Steps planned ahead: while the device runs one step, the host plans the next one and launches it.

The device runs kernels in order, in a thread of its own. `run` returns a promise at once, and a promise may be the
input of a later kernel: only who asks for its value waits. Words that were said twice get lower scores.

Planning ahead was switched on, and no word came sooner. Host and device each did nothing for half of every step.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import Any

WORDS = ["a", "rose", "is", "red", "and", "so", "am", "I"]
STEP = 2e-3  # seconds of a step on the device, and of planning it on the host


@dataclass(eq=False)
class Promise:
    """A result on its way."""

    future: Future[Any]

    def value(self) -> Any:
        """Wait for the result."""
        return self.future.result()

    def __len__(self) -> int:
        return len(self.value())


class Device:
    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="device")

    def run(self, kernel: Callable[..., Any], *inputs: Any) -> Promise:
        """Launch a kernel behind those launched before, so inputs that are promises are there when it runs."""

        def work() -> Any:
            return kernel(*(one.future.result() if isinstance(one, Promise) else one for one in inputs))

        return Promise(self.thread.submit(work))


def score(said: list[int]) -> list[float]:
    """The model: a score for each word, best for those that come soon after the newest one."""
    sleep(STEP)
    return [-abs((word - said[-1]) % len(WORDS) - len(said) % 3) for word in range(len(WORDS))]


def said_twice(said: list[int]) -> list[int]:
    return sorted({word for word in said if said.count(word) > 1})


def lowered(scores: list[float], words: list[int], said: list[int]) -> list[float]:
    return [value - said.count(word) if word in words else value for word, value in enumerate(scores)]


def best(said: list[int], scores: list[float]) -> list[int]:
    """The words said so far, and the one with the best score."""
    return [*said, scores.index(max(scores))]


class Engine:
    """lag: how many steps are launched ahead of the one whose word the host looks at."""

    def __init__(self, device: Device, lag: int) -> None:
        self.device = device
        self.lag = lag

    def generate(self, steps: int) -> list[str]:
        said = self.device.run(lambda: [0])
        flying: deque[Promise] = deque()
        words: list[str] = []
        for _ in range(steps):
            sleep(STEP)  # the host plans: admission, pages, tables
            said = self.launch(said)
            flying.append(said)
            if len(flying) > self.lag:
                words.append(WORDS[flying.popleft().value()[-1]])
        return words + [WORDS[promise.value()[-1]] for promise in flying]

    def launch(self, said: Promise) -> Promise:
        """Launch a step. Returns the promise of the words that it was given, with one more."""
        scores = self.device.run(score, said)
        repeated = self.device.run(said_twice, said)
        if len(repeated):  # where there is nothing to lower, save the kernel
            scores = self.device.run(lowered, scores, repeated, said)
        return self.device.run(best, said, scores)


def show() -> None:
    print(f"{'steps ahead':<14}{'ms per word':>12}")
    for lag in (0, 1):
        start = perf_counter()
        Engine(Device(), lag).generate(steps=100)
        print(f"{lag:<14}{(perf_counter() - start) * 10:>12.2f}")


if __name__ == "__main__":
    show()
