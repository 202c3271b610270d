"""A model on a card: what fits, how fast it decodes, how long a prompt waits, and how many users are served in time.

Memory is the engine's own plan (`gradus.execution.memory.plan`). Times are those of pace.py. A user is taken to send a
request of PROMPT tokens for ANSWER tokens as soon as the last one is answered, so prompts are read among decodes:

    time per output token = a step of all users' decodes + (users - 1) x the time for a prompt / ANSWER
    time to first token   = the time for a prompt + one such step, the one under way
    tokens per second     = users / (a step of all users' decodes + users x the time for a prompt / ANSWER)

The server's own part (HTTP, text) is left out: it is at most a few milliseconds per request.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from gradus.bench.predict.roofline import SpanShape
from gradus.bench.sizing.pace import Speed
from gradus.errors import ConfigError
from gradus.execution.memory.plan import MemoryPlan

PROMPT, ANSWER = 1024, 256
USERS = (1, 8, 32, 128)
PROMPTS = (1024, 8192)


@dataclass(frozen=True, slots=True)
class Objective:
    """The most seconds that a request may take; None: any. ttft: until its first token. tpot: for each one after."""

    ttft: float | None = None
    tpot: float | None = None

    @classmethod
    def of(cls, text: str) -> "Objective":
        """Read "ttft:200,tpot:20", in milliseconds. Raises ConfigError."""
        given: dict[str, float] = {}
        for part in text.replace(" ", ",").split(","):
            name, _, value = part.partition(":")
            if name not in ("ttft", "tpot") or name in given or not value.replace(".", "", 1).isdecimal():
                wanted = "milliseconds, as in ttft:200,tpot:20"
                raise ConfigError(f"--objective takes {wanted}, got {text[:60]!r}")
            given[name] = float(value) / 1000
        return cls(**given)


@dataclass(frozen=True, slots=True)
class Use:
    """The users' requests: tokens of each prompt and each answer."""

    prompt: int = PROMPT
    answer: int = ANSWER

    @classmethod
    def of(cls, text: str) -> "Use":
        """Read "1024,256". Raises ConfigError."""
        parts = text.split(",")
        if len(parts) != 2 or not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
            raise ConfigError(f"--request takes tokens in and out, as in {PROMPT},{ANSWER}, got {text[:60]!r}")
        return cls(int(parts[0]), int(parts[1]))


@dataclass(frozen=True)
class Estimate:
    """Estimates of one model on one device. plan: its memory, per rank."""

    speed: Speed
    plan: MemoryPlan
    use: Use = Use()

    def sessions(self, length: int) -> int:
        """How many sequences of `length` tokens the cache holds at once."""
        assert self.plan.pages is not None
        return self.plan.pages.sequences(length)

    @cached_property
    def most_users(self) -> int:
        """The most users whose requests run at once."""
        return min(self.plan.max_sequences, self.sessions(self.use.prompt + self.use.answer))

    def prompt_seconds(self, tokens: int) -> float:
        """The time for a prompt on an idle server, in steps of the plan's size."""
        budget, done, seconds = max(self.plan.step_tokens, 1), 0, 0.0
        while done < tokens:
            rows = min(budget, tokens - done)
            seconds += self.speed.seconds([SpanShape(done, rows, int(done + rows == tokens))])
            done += rows
        return seconds

    def decode_seconds(self, users: int) -> float:
        """A step of `users` decodes in the middle of their answers."""
        return self.speed.seconds([SpanShape(self.use.prompt + self.use.answer // 2, 1)] * users)

    def token_seconds(self, users: int) -> float:
        """The time per output token with this number of users: the others' prompts are read among its decodes."""
        return self.decode_seconds(users) + (users - 1) * self._prompt_per_token

    def rate(self, users: int) -> float:
        """Tokens per second of all users together."""
        return users / (self.decode_seconds(users) + users * self._prompt_per_token)

    @cached_property
    def _prompt_per_token(self) -> float:
        """Seconds of a user's prompt for each of its answer's tokens."""
        return self.prompt_seconds(self.use.prompt) / self.use.answer

    def first_seconds(self, users: int) -> float:
        """The time to the first token with this number of users."""
        return self.prompt_seconds(self.use.prompt) + (self.token_seconds(users) if users > 1 else 0.0)

    def meets(self, users: int, objective: Objective) -> bool:
        in_time = objective.ttft is None or self.first_seconds(users) <= objective.ttft
        return in_time and (objective.tpot is None or self.token_seconds(users) <= objective.tpot)

    def users_in_time(self, objective: Objective) -> int:
        """The most users that the objective holds for; 0 if it holds for none. More users are slower."""
        return most(lambda users: self.meets(users, objective), self.most_users)


def most(holds: Callable[[int], bool], limit: int) -> int:
    """The largest number from 1 to `limit` for which something holds that holds for every smaller one; 0 for none."""
    least, end = 0, limit
    while least < end:
        middle = (least + end + 1) // 2
        least, end = (middle, end) if holds(middle) else (least, middle - 1)
    return least
