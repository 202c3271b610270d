"""A recurrent model in slots, with continuous batching: one word of each running request per step.

A recurrent layer has no cache that grows. It folds every word it reads into one state per slot. Here the state is a
list of words, and the answer repeats it, so you can see what the model remembers.

Ben said hello. His answer contained Ann's PIN.
"""

from collections import deque
from dataclasses import dataclass


@dataclass(slots=True)
class Request:
    """read: how many words of the prompt are in the state."""

    user: str
    prompt: list[str]
    read: int = 0


class Engine:
    """Runs as many requests at once as there are slots."""

    def __init__(self, slots: int) -> None:
        self.states: list[list[str]] = [[] for _ in range(slots)]
        self.free = list(range(slots))
        self.waiting: deque[Request] = deque()
        self.running: dict[int, Request] = {}
        self.answers: dict[str, str] = {}

    def add(self, user: str, prompt: str) -> None:
        self.waiting.append(Request(user, prompt.split()))

    def run(self) -> dict[str, str]:
        while self.waiting or self.running:
            self.step()
        return self.answers

    def step(self) -> None:
        self.admit()
        for slot, request in list(self.running.items()):
            self.read(slot, request)
            if request.read == len(request.prompt):
                self.answers[request.user] = "You said: " + " ".join(self.states[slot])
                self.leave(slot)

    def admit(self) -> None:
        """Give the free slots to the requests that have waited longest."""
        while self.free and self.waiting:
            slot = self.free.pop()
            self.running[slot] = self.waiting.popleft()

    def read(self, slot: int, request: Request) -> None:
        """Run the forward pass: fold the request's next word into its slot's state."""
        self.states[slot].append(request.prompt[request.read])
        request.read += 1

    def leave(self, slot: int) -> None:
        del self.running[slot]
        self.free.append(slot)

    def cancel(self, user: str) -> None:
        """End a request early: its client hung up."""
        self.waiting = deque(request for request in self.waiting if request.user != user)
        for slot in [slot for slot, request in self.running.items() if request.user == user]:
            self.leave(slot)


def show() -> None:
    engine = Engine(slots=1)
    engine.add("Ann", "my PIN is 4711")
    engine.add("Ben", "hello")
    for user, answer in engine.run().items():
        print(f"{user}: {answer}")
