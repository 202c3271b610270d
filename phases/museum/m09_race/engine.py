"""Steps replayed from a graph: the host fills a staging buffer, the device copies it and runs, some time later.

A graph reads its inputs from fixed addresses, so each step copies them there. The host only puts work into a queue: it
does not wait, and plans on while the device is busy. The "model" looks up the word at each row's position.

On a busy server, answers lost words. With a debugger attached, they never did.
"""

from collections import deque
from collections.abc import Callable

TEXTS = ["the cat sat on the mat", "a dog ran in the park"]  # row → what the model says


class Device:
    """A queue of work that runs in order. busy: how many pieces of work it is behind the host."""

    def __init__(self, busy: int) -> None:
        self.busy = busy
        self.queue: deque[Callable[[], None]] = deque()
        self.inputs = [0] * len(TEXTS)  # the graph reads its positions here
        self.words: list[list[str]] = [[] for _ in TEXTS]

    def copy(self, source: list[int]) -> None:
        """Queue a copy of host memory to the graph's inputs."""

        def work() -> None:
            self.inputs[:] = source

        self.submit(work)

    def replay(self) -> None:
        """Queue a run of the graph: one word for each row."""

        def work() -> None:
            for row, position in enumerate(self.inputs):
                self.words[row].append(TEXTS[row].split()[position])

        self.submit(work)

    def submit(self, work: Callable[[], None]) -> None:
        self.queue.append(work)
        self.catch_up(self.busy)

    def catch_up(self, behind: int = 0) -> None:
        while len(self.queue) > behind:
            self.queue.popleft()()


class Engine:
    """Plans one step after the other. All rows are at the same position here."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.staging = [0] * len(TEXTS)

    def generate(self, steps: int) -> list[str]:
        for position in range(steps):
            self.device.copy(self.stage(position))
            self.device.replay()
        self.device.catch_up()
        return [" ".join(words) for words in self.device.words]

    def stage(self, position: int) -> list[int]:
        """Fill the staging buffer with the inputs of the next step."""
        for row in range(len(self.staging)):
            self.staging[row] = position
        return self.staging


def show() -> None:
    for busy in (0, 2):
        print(f"device {busy} behind:", *Engine(Device(busy)).generate(6), sep="  ")
