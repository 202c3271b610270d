"""The queue is a heap: the order of two requests never changes while they wait, so it is decided once, on arrival."""

from heapq import heappop, heappush

from phases.museum.s01_waiting import engine
from phases.museum.s01_waiting.engine import Request as Request


class Engine(engine.Engine):
    """Keeps those that wait in a heap. A request that was canceled stays in it until its turn, and is skipped."""

    def __init__(self, slots: int = 8) -> None:
        super().__init__(slots)
        self.queue: list[tuple[int, int, Request]] = []  # priority, arrival: no two are equal
        self.canceled: set[Request] = set()

    def submit(self, request: Request) -> None:
        self.now += 1
        request.arrival = self.now
        heappush(self.queue, (request.priority, request.arrival, request))

    def cancel(self, request: Request) -> None:
        """Forget a request, wherever it is."""
        if request in self.running:
            self.running.remove(request)
        elif request not in self.finished:
            self.canceled.add(request)

    def admit(self) -> None:
        """Fill the free slots."""
        while self.queue and len(self.running) < self.slots:
            request = heappop(self.queue)[-1]
            if request in self.canceled:
                self.canceled.remove(request)
            else:
                self.running.append(request)
