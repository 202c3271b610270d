"""Continuous batching with priorities: a free slot goes to the most urgent of the requests that wait.

A smaller number is more urgent. Among equals, the request that has waited longest goes first. A client that hangs up
leaves the queue, or its slot. The "model" says a request's words, one in each step.

The batch never had more than eight rows. The more requests waited behind it, the slower were all eight.
"""

from dataclasses import dataclass, field
from time import perf_counter


@dataclass(eq=False)
class Request:
    """words: what the model will say. arrival: set when it is submitted, and no two are the same."""

    name: str
    words: list[str]
    priority: int = 0
    arrival: int = 0
    said: list[str] = field(default_factory=list)


class Engine:
    """Runs up to `slots` requests at once. finished: the requests whose last word was said, in that order."""

    def __init__(self, slots: int = 8) -> None:
        self.slots = slots
        self.now = 0  # grows with every step and every arrival
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.finished: list[Request] = []

    def submit(self, request: Request) -> None:
        self.now += 1
        request.arrival = self.now
        self.waiting.append(request)

    def cancel(self, request: Request) -> None:
        """Forget a request, wherever it is."""
        for requests in (self.waiting, self.running):
            if request in requests:
                requests.remove(request)

    def step(self) -> None:
        self.now += 1
        self.admit()
        for request in self.running:
            request.said.append(request.words[len(request.said)])
        self.finished += [request for request in self.running if len(request.said) == len(request.words)]
        self.running = [request for request in self.running if len(request.said) < len(request.words)]

    def admit(self) -> None:
        """Fill the free slots."""
        self.waiting.sort(key=self.urgency)
        while self.waiting and len(self.running) < self.slots:
            self.running.append(self.waiting.pop(0))

    def urgency(self, request: Request) -> tuple[int, int]:
        """The priority, then how long it has waited: the first in this order is served first."""
        waited = self.now - request.arrival
        return request.priority, -waited


def loaded(waiting: int) -> Engine:
    """Make an engine whose slots are taken for 100 steps, with this many requests in its queue."""
    engine = Engine()
    for number in range(engine.slots + waiting):
        engine.submit(Request(str(number), ["word"] * 100, priority=0 if number < engine.slots else 1 + number % 3))
    return engine


def show() -> None:
    print(f"{'requests waiting':<20}{'ms per step':>12}")
    for waiting in (0, 100, 1_000, 10_000):
        engine, start = loaded(waiting), perf_counter()
        for _ in range(100):
            engine.step()
        print(f"{waiting:<20,}{(perf_counter() - start) * 10:>12.3f}")


if __name__ == "__main__":
    show()
