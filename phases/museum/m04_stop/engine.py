"""Speculative decoding with a stop string: a step accepts several tokens, and the text ends before the stop string.

The model always says SCRIPT. The drafter guesses the next tokens, and is wrong at every comma. The model verifies the
drafts in one pass, keeps those it agrees with, and adds one token of its own.

With speculation on, the same answer cost more tokens.
"""

from dataclasses import dataclass, field

SCRIPT = ["one", " two", " three", ",", " four", " five", " six", " seven", ",", " eight", " nine", " ten"]


@dataclass(slots=True)
class Answer:
    """One answer as it grows: its tokens, which are billed, and its text."""

    stop: str
    tokens: list[str] = field(default_factory=list)
    text: str = ""
    ended: bool = False


class Engine:
    """Runs one request. drafts: how many tokens it verifies per step, besides the one it samples."""

    def __init__(self, drafts: int) -> None:
        self.drafts = drafts
        self.steps = 0

    def generate(self, stop: str) -> Answer:
        answer = Answer(stop)
        while not answer.ended and len(answer.tokens) < len(SCRIPT):
            self.add(answer, self.step(len(answer.tokens)))
        return answer

    def step(self, position: int) -> list[str]:
        """Run one pass: the drafts that the model agrees with, then the token that it samples itself."""
        self.steps += 1
        drafts = self.draft(position)
        agreed = 0
        while agreed < len(drafts) and drafts[agreed] == SCRIPT[position + agreed]:
            agreed += 1
        return SCRIPT[position : position + agreed + 1]

    def draft(self, position: int) -> list[str]:
        guesses = SCRIPT[position : position + self.drafts]
        return [" and" if guess == "," else guess for guess in guesses]

    def add(self, answer: Answer, accepted: list[str]) -> None:
        """Append the tokens of one step. Neither the stop string nor what follows it is part of the text."""
        answer.tokens += accepted
        answer.text = "".join(answer.tokens)
        if answer.stop in answer.text:
            answer.text = answer.text[: answer.text.index(answer.stop)]
            answer.ended = True


def show() -> None:
    for drafts in (0, 4):
        answer = Engine(drafts).generate(stop=" five")
        print(f"{drafts} drafts per step: {answer.text!r}, {len(answer.tokens)} tokens billed")
