"""Training text, written by the model itself, because heads must predict the model's own words.

A chat model also writes the questions. Given only its template's opening of a user's turn, it continues with
a question that it expects of a user, and then answers it (Magpie: Xu et al., arXiv 2406.08464). So no data set is
needed, and everything drawn depends on one seed. Half of the answers are greedy and half sampled, like requests.
"""

import random
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from gradus.engine.request import Request, SamplingParams
from gradus.loading import Progress, Tokenizer
from gradus.text.llm import LLM

TURN, ANSWER = 64, 384  # most tokens
TURN_TEMPERATURE, ANSWER_TEMPERATURE = 0.9, 0.7
FEWEST = 16  # fewest tokens of an answer worth reading
USUAL = 128  # expected tokens of an answer
LONGEST_PERIOD, REPEATS = 32, 3
MARK = "\u2042"  # marks the place of a user's words in a template


@dataclass(frozen=True, slots=True)
class Conversation:
    """tokens: of the whole conversation. start: where the answer begins. greedy: whether the answer is greedy."""

    number: int
    tokens: tuple[int, ...]
    start: int
    greedy: bool


@dataclass(frozen=True, slots=True)
class Turns:
    """The tokens before a user's turn, and between it and the answer."""

    before: tuple[int, ...]
    between: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Tokenizer | None, bos: int | None) -> "Turns":
        """Read them from the chat template. Without one, there are none, and the model continues its own text."""
        if tokenizer is None or not tokenizer.has_chat_template:
            return cls(() if bos is None else (bos,), ())
        before, _, between = tokenizer.render_chat([{"role": "user", "content": MARK}]).partition(MARK)
        return cls(*(tuple(tokenizer.encode(text, special_tokens=False)) for text in (before, between)))

    @property
    def longest(self) -> int:
        """The tokens of the longest conversation."""
        return max(1, len(self.before)) + TURN + len(self.between) + ANSWER


class Writer:
    """Writes conversations by number: conversation n depends only on the seed and on n."""

    def __init__(self, llm: LLM, turns: Turns, seed: int) -> None:
        self.llm, self.turns, self.seed = llm, turns, seed
        self.most = llm.options.max_sequences
        self.waiting: deque[Request] = deque()
        self.running: dict[str, tuple[Request, list[int]]] = {}
        self.number = 0
        self.ends = set(llm.limits.eos_token_ids)

    def run(self, until: float, wanted: int) -> Iterator[Conversation]:
        """Yield conversations until their answers have `wanted` tokens, or until the time `until` of time.monotonic().
        Conversations in progress are finished in the first case, and given up in the second."""
        tokens = 0
        while time.monotonic() < until and (tokens < wanted or self.running or self.waiting):
            if tokens < wanted:
                self._begin(min(self.most, -(-(wanted - tokens) // USUAL)))
            self._submit(all_of_it=tokens >= wanted)
            for output in self.llm.core.step():
                request, said = self.running[output.request_id]
                said.extend(output.tokens)
                if output.finish_reason is not None:
                    del self.running[output.request_id]
                    told = self._ended(request, said)
                    if told is not None:
                        tokens += len(told.tokens) - told.start
                        yield told
        for name in list(self.running):
            self.llm.core.cancel(name)

    def _begin(self, most: int) -> None:
        """Begin conversations until `most` are in progress."""
        while len(self.running) + len(self.waiting) < most:
            number, self.number = self.number, self.number + 1
            # with a template all conversations begin alike; without one, a random first token makes them differ
            own = () if self.turns.between else (random.Random(self.seed * 1_000_003 + number).randrange(self._words),)
            self.waiting.append(self._request(f"turn-{number}", (*self.turns.before, *own), TURN, TURN_TEMPERATURE))

    def _submit(self, all_of_it: bool) -> None:
        """Submit many at once: a step with prompts takes longer than one without, whatever their number."""
        if all_of_it or len(self.running) <= self.most * 3 // 4:
            while self.waiting:
                request = self.waiting.popleft()
                self.running[request.id] = request, []
                self.llm.core.submit(request)

    def _ended(self, request: Request, said: list[int]) -> Conversation | None:
        """Answer a turn that has ended; return the conversation of an answer that has ended."""
        kind, number = request.id.split("-")
        greedy = int(number) % 2 == 0
        if kind == "turn":
            words = [token for token in said if token not in self.ends]
            prompt = (*request.prompt, *words, *self.turns.between)
            if words:
                temperature = 0.0 if greedy else ANSWER_TEMPERATURE
                self.waiting.append(self._request(f"answer-{number}", prompt, ANSWER, temperature))
            return None
        said = unlooped(said)
        if len(said) < FEWEST:
            return None
        return Conversation(int(number), (*request.prompt, *said), len(request.prompt), greedy)

    def _request(self, name: str, prompt: tuple[int, ...], most: int, temperature: float) -> Request:
        number = int(name.split("-")[1])
        limits = self.llm.limits
        params = SamplingParams(
            max_tokens=min(most, limits.context_length - len(prompt)), temperature=temperature,
            seed=self.seed * 1_000_003 + number,
        )  # fmt: skip
        return Request.create(name, prompt, params, limits)

    @property
    def _words(self) -> int:
        tokenizer, most = self.llm.tokenizer, self.llm.config.vocab_size
        return most if tokenizer is None else min(most, tokenizer.vocab_size)


def write(llm: LLM, wanted: int, seed: int, progress: Progress, until: float = float("inf")) -> list[Conversation]:
    """Write conversations, in the order of their numbers. wanted: tokens of answers."""
    progress.begin("the model writes text", wanted)
    conversations = []
    for conversation in Writer(llm, Turns.of(llm.tokenizer, llm.config.bos_token_id), seed).run(until, wanted):
        conversations.append(conversation)
        progress.advance(len(conversation.tokens) - conversation.start)
    return sorted(conversations, key=lambda one: one.number)


def unlooped(said: list[int]) -> list[int]:
    """Remove an answer's end if it only repeats itself, or loops would be most of what heads learn."""
    for period in range(1, LONGEST_PERIOD + 1):
        begin = len(said)
        while begin > period and said[begin - 1] == said[begin - 1 - period]:
            begin -= 1
        if len(said) - begin >= REPEATS * period and len(said) - begin >= FEWEST:
            return said[:begin]
    return said
