"""Structured output with overlapped steps: the next step is planned while the device still runs this one.

With a lag of 1, a token has no value on the host when the next step is planned. UNKNOWN takes its place until the step
arrives. The grammar allows lists such as [1,2]; the "model" wants to say WISH, and takes what the grammar allows.

A request for JSON was answered with brackets, and only with brackets.
"""

from collections import deque
from dataclasses import dataclass, field

UNKNOWN = "?"
END = "<end>"
WISH = ["[", "1", ",", "2", "]", END]
GRAMMAR = {  # state → the tokens it allows, and the state after each
    "start": {"[": "item"},
    "item": {"1": "after", "2": "after"},
    "after": {",": "item", "]": "end"},
    "end": {END: "end"},
}


@dataclass(slots=True)
class Sequence:
    """constrained: the grammar applies. state: the grammar's, after the first `seen` tokens."""

    constrained: bool = True
    tokens: list[str] = field(default_factory=list)
    state: str = "start"
    seen: int = 0


class Engine:
    """Runs one sequence. lag: how many steps are planned ahead of the one whose tokens arrive."""

    def __init__(self, lag: int) -> None:
        self.lag = lag
        self.flying: deque[tuple[int, str]] = deque()  # steps on the device: a position, and its token
        self.most_flying = 0

    def generate(self, sequence: Sequence, limit: int = 8) -> str:
        while END not in sequence.tokens and (len(sequence.tokens) < limit or self.flying):
            planned = self.ready(sequence) and len(sequence.tokens) < limit
            if planned:
                self.flying.append((len(sequence.tokens), self.launch(sequence)))
                sequence.tokens.append(UNKNOWN)
                self.most_flying = max(self.most_flying, len(self.flying))
            if not planned or len(self.flying) > self.lag:
                position, token = self.flying.popleft()
                sequence.tokens[position] = token
        return "".join(sequence.tokens).partition(END)[0]

    def ready(self, sequence: Sequence) -> bool:
        """Whether the sequence's next step can be planned now. If not, a step arrives first."""
        return True

    def launch(self, sequence: Sequence) -> str:
        """Start a step on the device. Its token is decided, but the host must not look at it yet."""
        wish = WISH[min(len(sequence.tokens), len(WISH) - 1)]
        allowed = self.allowed(sequence) if sequence.constrained else [wish]
        return wish if wish in allowed else allowed[0]

    def allowed(self, sequence: Sequence) -> list[str]:
        """Catch the grammar up with the tokens so far: the mask for the next one. A refused token changes nothing."""
        for token in sequence.tokens[sequence.seen :]:
            sequence.state = GRAMMAR[sequence.state].get(token, sequence.state)
        sequence.seen = len(sequence.tokens)
        return list(GRAMMAR[sequence.state])


def show() -> None:
    for lag in (0, 1):
        print(f"lag {lag}: {Engine(lag).generate(Sequence())}")
