"""Structured output in slots: a mask per slot says which characters may be sampled next.

All masks are one table that stays in place from step to step, as it does on a GPU, and every row of the batch is
sampled through its mask. The "model" knows what each user wants to read, and says it one character per step.

Cy asked for a greeting, and got zeros. Alone on the server, he got his greeting.
"""

from collections import deque
from dataclasses import dataclass

DIGITS = "0123456789"
EVERYTHING = DIGITS + "abcdefghijklmnopqrstuvwxyz"


@dataclass(slots=True)
class Request:
    """grammar: the characters that the answer may have; "" if any will do."""

    user: str
    wish: str
    grammar: str = ""
    answer: str = ""


class Engine:
    """Runs as many requests at once as there are slots."""

    def __init__(self, slots: int) -> None:
        self.masks = [EVERYTHING for _ in range(slots)]
        self.running: list[Request | None] = [None] * slots
        self.waiting: deque[Request] = deque()

    def run(self, requests: list[Request]) -> dict[str, str]:
        self.waiting += requests
        while self.waiting or any(self.running):
            self.step()
        return {request.user: request.answer for request in requests}

    def step(self) -> None:
        self.admit()
        self.fill_masks()
        for slot, request in enumerate(self.running):
            if request is not None:
                request.answer += self.sample(request.wish[len(request.answer)], self.masks[slot])
                if len(request.answer) == len(request.wish):
                    self.running[slot] = None

    def admit(self) -> None:
        for slot, request in enumerate(self.running):
            if request is None and self.waiting:
                self.running[slot] = self.waiting.popleft()

    def fill_masks(self) -> None:
        """Write the masks of the requests that have a grammar; a request without one costs nothing here."""
        for slot, request in enumerate(self.running):
            if request is not None and request.grammar:
                self.masks[slot] = request.grammar

    def sample(self, likeliest: str, mask: str) -> str:
        """The likeliest character that the mask allows: the first of the mask if the model's favorite is not in it."""
        return likeliest if likeliest in mask else mask[0]


def show() -> None:
    requests = [Request("Ann", "2026", DIGITS), Request("Ben", "goodmorning"), Request("Cy", "hello")]
    for user, answer in Engine(slots=2).run(requests).items():
        print(f"{user}: {answer}")
