"""What the X-ray runs by default: a few short requests per phase, so that its idea shows within forty steps.

Lengths are in tokens, so that pages and chunks fall where the scene wants them, whatever the tokenizer. A prompt is
made of passages, each cut to its own length: prompts with the same first passage share exactly its tokens. No torch
here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import cycle, islice
from types import MappingProxyType

from gradus.config.options import FINAL
from gradus.loading import Tokenizer

Passage = tuple[str, int]
"""A text, and how many of its tokens are taken: it is repeated if it has fewer."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. output: tokens it gets. at: the step before which it arrives; cancelled: the one before which its
    user leaves."""

    name: str
    prompt: tuple[Passage, ...]
    output: int
    at: int = 0
    cancelled: int | None = None

    @property
    def length(self) -> int:
        """Tokens of prompt and output."""
        return sum(length for _, length in self.prompt) + self.output


@dataclass(frozen=True, slots=True)
class Scene:
    """look: what to watch for, in a sentence or two. settings: of the engine, for phases that heed them."""

    look: str
    asked: tuple[Asked, ...]
    settings: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def longest(self) -> int:
        return max(asked.length for asked in self.asked)


def prompt_ids(asked: Asked, tokenizer: Tokenizer) -> list[int]:
    """The prompt's token ids: of each passage, exactly as many as the scene asks for."""
    ids: list[int] = []
    for text, length in asked.prompt:
        ids += islice(cycle(tokenizer.encode(text, special_tokens=False)), length)
    return ids


# -- what is said ------------------------------------------------------------------------------------------------------

SKY = "The night sky is full of stars, and the brightest of them all is called"
TEA = "How to make a cup of tea: first boil some water, then put the leaves into the pot and wait"
SEA = "A calm sea in the morning. A small boat left the harbor with three people on board, and"
LIST = "Red, orange, yellow, green, blue, indigo, violet. Monday, Tuesday, Wednesday, Thursday, Friday,"
SYSTEM = "You are a patient teacher. Answer in one short sentence."
STORY = (
    "Once upon a time there was a lighthouse keeper who wrote down everything that passed: the ships, the storms, the "
    "birds on their way south, and the price of lamp oil, which rose every winter and never quite came down again. "
    "One evening a letter arrived, and in it was a map of an island that no ship had ever reported."
)
REPEATED = "the cat sat on the mat, the dog sat on the mat, the cat sat on the mat, the dog sat on the"
ROTE = "one two three four one two three four one two three four one two"


def ask(name: str, text: str, prompt: int, output: int, at: int = 0, cancelled: int | None = None) -> Asked:
    return Asked(name, ((text, prompt),), output, at, cancelled)


def taught(name: str, question: str, prompt: int, output: int, at: int = 0) -> Asked:
    """A request that begins with the system prompt of three pages."""
    return Asked(name, ((SYSTEM, 12), (f" {question}", prompt)), output, at)


# -- the scenes --------------------------------------------------------------------------------------------------------

ALONE = (ask("a", SKY, 8, 9), ask("b", TEA, 5, 6))
MIXED = (ask("a", SKY, 9, 4), ask("b", TEA, 3, 9), ask("c", SEA, 5, 2), ask("d", LIST, 4, 6), ask("e", SKY, 2, 3))
STALLED = (ask("a", SKY, 5, 22), ask("b", TEA, 6, 18), ask("c", STORY, 36, 5, at=4), ask("d", SEA, 14, 4, at=8))
BUDGET = MappingProxyType({"max_sequences": 4, "page_size": 4, "cache_tokens": 160, "token_budget": 8})

CHUNKS = Scene(
    "While a and b decode, the long prompt of c arrives at step 4. It is cut into chunks that fit the budget of 8 "
    "tokens per step, so a and b get a token in every step. p05 has no budget, and computes it whole in one step.",
    STALLED,
    BUDGET,
)

SCENES: dict[str, Scene] = {
    "p00": Scene(
        "Every step computes the whole sequence again: the span starts at 0 and grows by one token per step. One "
        "sequence runs at a time, so b waits until a has ended.",
        ALONE,
    ),
    "p01": Scene(
        "After the prompt, each step computes a single row: keys and values of all earlier tokens are in the cache. "
        "p00 computes those rows again.",
        ALONE,
    ),
    "p02": Scene(
        "Three sequences start together. Short prompts are padded to the longest, and once c and a have ended, their "
        "rows are still computed until b is done. Only then do d and e start.",
        MIXED,
        MappingProxyType({"max_sequences": 3}),
    ),
    "p03": Scene(
        "A sequence that ends frees its slot at once: d takes over the slot of c in the next step, beside the decodes "
        "of a and b. No row is padding; p02 computes many that are.",
        (*MIXED, ask("f", SEA, 6, 4, at=4)),
        MappingProxyType({"max_sequences": 3}),
    ),
    "p04": Scene(
        "The pool has 9 pages of 4 positions. Sequences take a page when they need one, until none is free: then the "
        "one that came last is preempted, gives its pages back, and is computed again later.",
        (ask("a", SKY, 6, 13), ask("b", TEA, 7, 12), ask("c", SEA, 5, 10), ask("d", LIST, 9, 4)),
        MappingProxyType({"max_sequences": 4, "page_size": 4, "cache_tokens": 36}),
    ),
    "p05": Scene(
        "a, b and d begin with the same 12 tokens. b finds their 3 pages in the tree and computes only the rest; when "
        "its own page is published, the node splits. The unrelated prompt of c takes pages that were idle: the oldest "
        "are evicted. e repeats the prompt of a, and finds what is left of it.",
        (
            taught("a", SKY, 7, 6),
            taught("b", TEA, 6, 7, at=4),
            ask("c", STORY, 22, 5, at=12),
            taught("d", SEA, 5, 5, at=14),
            taught("e", SKY, 7, 4, at=20),
        ),
        MappingProxyType({"max_sequences": 3, "page_size": 4, "cache_tokens": 56}),
    ),
    "p06": CHUNKS,
    "p07": Scene(
        "Weights have 8 bits, and no plan changes: the same spans, pages and steps as in p06.", STALLED, BUDGET
    ),
    "p08": Scene(
        "Where a text repeats itself, drafts are copied from it and verified in one step. Those that the model agrees "
        "with are kept, so a step brings up to five tokens for one sequence; the rest are rolled back.",
        (ask("a", REPEATED, 24, 16), ask("b", ROTE, 14, 14), ask("c", STORY, 20, 10)),
        MappingProxyType({"max_sequences": 3, "page_size": 4, "cache_tokens": 160, "token_budget": 64}),
    ),
    "p09": Scene(
        "The kernel reads the pages through the block tables shown here. Plans, pages and steps are those of p06.",
        STALLED,
        BUDGET,
    ),
    "p10": Scene(
        "Each plan is made while the step before it is still in flight, so decodes begin with a token that only the "
        "device knows, shown as “?”. c is cancelled while its next step is in flight: that row was computed in vain.",
        (
            ask("a", SKY, 5, 14),
            ask("b", TEA, 6, 10),
            ask("c", LIST, 7, 12, cancelled=6),
            ask("d", STORY, 20, 6, at=4),
        ),
        BUDGET,
    ),
    FINAL: Scene(
        "All of it together: a shared prefix, a long prompt in chunks, a small pool, and plans made one step ahead.",
        (
            taught("a", SKY, 7, 10),
            taught("b", TEA, 6, 9, at=5),
            ask("c", STORY, 30, 6, at=7),
            taught("d", SEA, 5, 7, at=10),
            ask("e", LIST, 9, 8, at=12),
        ),
        MappingProxyType({"max_sequences": 4, "page_size": 4, "cache_tokens": 88, "token_budget": 12}),
    ),
}  # fmt: skip

PANELS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("p00", "p01", "p02", "p06", "p07", "p09"), ("batch",)),
    "p03": ("batch", "slots"),
    "p04": ("pool", "tables"),
    "p05": ("tree",),
    "p08": ("plan",),
    "p10": ("plan",),
    FINAL: ("tree",),
}
"""The parts of the page that show a phase's idea: the book's small page has them, the timeline and the events."""
