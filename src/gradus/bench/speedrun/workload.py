"""The requests of the speedrun: sixteen, all submitted at once, in an order that follows from a seed. No torch here.

Six continue one shared beginning and six another, two of the first six paste a long document, and four begin on their
own and want a longer answer. Every request wants exactly its number of tokens: no token ends it earlier.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from gradus.bench.speedrun.text import ASSISTANT, EXAMPLES, NOTES, OPENINGS, QUESTIONS, SENTENCES

Encode = Callable[[str], list[int]]
T = TypeVar("T")

SHORT, LONG, SUMMARY = (16, 32), (40, 48), 12  # tokens of an answer: fewest and most
PASTED = 12  # sentences of a long document
WARM_UPS, WARM_UP_TOKENS = 4, 8


@dataclass(frozen=True, slots=True)
class Ask:
    """A request: the prompt's token ids, and how many tokens it wants."""

    prompt: tuple[int, ...]
    max_tokens: int


def asks(encode: Encode, seed: int) -> tuple[Ask, ...]:
    """Draw the requests, in the order of their submission.

    encode: the model's tokenizer, without special tokens. Only `Random.random` is used, the one method whose sequence
    Python promises to keep.
    """
    random = Random(f"speedrun {seed}")
    texts = [(f"{ASSISTANT}Visitor: {one}\nAssistant:", SHORT) for one in shuffled(random, QUESTIONS)[:4]]
    texts += [(f"{ASSISTANT}{pasted(random)}\n\nIn one sentence:", (SUMMARY, SUMMARY)) for _ in range(2)]
    texts += [(f"{EXAMPLES}Note: {one}\nLine:", SHORT) for one in shuffled(random, NOTES)]
    texts += [(one, LONG) for one in shuffled(random, OPENINGS)]
    drawn = [Ask(tuple(encode(text)), between(random, *length)) for text, length in texts]
    return tuple(shuffled(random, drawn))


def warm_up(encode: Encode, seed: int) -> tuple[Ask, ...]:
    """Draw requests that share no beginning with those of a run: a number comes first."""
    random = Random(f"warm-up {seed}")
    texts = [f"{1000 + int(random.random() * 9000)}: {pasted(random)}", *shuffled(random, SENTENCES)[: WARM_UPS - 1]]
    texts[1:] = [f"{1000 + int(random.random() * 9000)}: {text}" for text in texts[1:]]
    return tuple(Ask(tuple(encode(text)), WARM_UP_TOKENS) for text in texts)


def digest(drawn: Iterable[Ask]) -> str:
    """A hash of all prompts, lengths and their order."""
    return hashlib.sha256(json.dumps([[ask.prompt, ask.max_tokens] for ask in drawn]).encode()).hexdigest()


def pasted(random: Random) -> str:
    return " ".join(shuffled(random, SENTENCES)[:PASTED])


def between(random: Random, least: int, most: int) -> int:
    return least + int(random.random() * (most - least + 1))


def shuffled(random: Random, values: Sequence[T]) -> list[T]:
    left, order = list(values), []
    while left:
        order.append(left.pop(int(random.random() * len(left))))
    return order
