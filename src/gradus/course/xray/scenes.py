"""The X-ray's default runs: Ann, Ben and Cy at the model, as in the lessons, in forty steps at most.

p00 to p06 run what the lesson's text prints, so that its step 4 is the page's. A name with a number is that person's
next request; a lowercase letter is somebody else's.

Lengths are in tokens, so that pages and chunks fall where the scene wants them, whatever the tokenizer. A prompt is
made of passages, each cut to its own length: prompts with the same first passage share exactly its tokens. No torch
here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import cycle, islice
from types import MappingProxyType
from typing import Any

from gradus.config.options import FINAL
from gradus.loading import Tokenizer

Passage = tuple[str, int]
"""A text, and how many of its tokens are taken: it is repeated if it has fewer."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. output: tokens it gets. at: the step in which it can first run; cancelled: the one before which
    its user leaves. structured: what the answer must be, in phases that keep to it; `output` is then the most."""

    name: str
    prompt: tuple[Passage, ...]
    output: int
    at: int = 1
    cancelled: int | None = None
    structured: Mapping[str, Any] | None = None

    @property
    def length(self) -> int:
        """Tokens of prompt and output."""
        return sum(length for _, length in self.prompt) + self.output


@dataclass(frozen=True, slots=True)
class Scene:
    """look: what to watch for, in a sentence or two. settings: of the engine, for phases that use them.

    model: the one that runs where the reader names none, if the idea needs more than the usual one has.
    """

    look: str
    asked: tuple[Asked, ...]
    settings: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    model: str | None = None

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

STORY = (
    "Once upon a time there was a lighthouse keeper who wrote down everything that passed: the ships, the storms, the "
    "birds on their way south, and the price of lamp oil, which rose every winter and never quite came down again. "
    "One evening a letter arrived, and in it was a map of an island that no ship had ever reported."
)
ANN = "Write a poem about the sea: a calm morning, a small boat, and three people on board."
BEN = f"Sum up: {STORY}"
CY = "Why? Is it because the night sky is full of stars?"
OTHER = "How to make a cup of tea: first boil some water, then put the leaves into the pot and wait"
SYSTEM = "You are a patient teacher. Answer in one short sentence."
REPEATED = "the cat sat on the mat, the dog sat on the mat, the cat sat on the mat, the dog sat on the"
ROTE = "one two three four one two three four one two three four one two"


def ask(name: str, text: str, prompt: int, output: int, at: int = 1, cancelled: int | None = None) -> Asked:
    return Asked(name, ((text, prompt),), output, at, cancelled)


def formed(name: str, text: str, prompt: int, output: int, at: int = 1, **structured: Any) -> Asked:
    """A request whose answer must be something: `structured` has one of the fields regex and choice."""
    return Asked(name, ((text, prompt),), output, at, structured=structured)


def taught(name: str, question: str, prompt: int, output: int, at: int = 1) -> Asked:
    """A request that begins with the system prompt of two pages."""
    return Asked(name, ((SYSTEM, 8), (f" {question}", prompt)), output, at)


# -- the scenes --------------------------------------------------------------------------------------------------------

THREE = (ask("Ann", ANN, 3, 6), ask("Ben", BEN, 9, 3), ask("Cy", CY, 2, 2))
PASTED = (ask("Ann", ANN, 3, 7), ask("Ben", BEN, 20, 2, at=2), ask("Cy", CY, 2, 2, at=3))
YEARS = '{"year": 1999}, {"year": 2009}, {"year": 1999}, {"year": 2009}'
YEAR = r'\{"year": [12][09]{3}\.[05]\}'
BUDGET = MappingProxyType({"max_sequences": 3, "page_size": 4, "cache_tokens": 64, "token_budget": 8})
SHARED = (
    taught("Ann", ANN, 3, 3),
    taught("Ben", BEN, 4, 3, at=2),
    taught("Cy", CY, 1, 2, at=3),
    taught("Ben 2", BEN, 22, 4, at=5),
    Asked("Cy 2", ((SYSTEM, 8), (f" {BEN}", 12), (CY, 3)), 3, at=7),
    taught("Ann 2", OTHER, 26, 4, at=10),
)

CHUNKS = Scene(
    "While Ann reads her poem, Ben's long prompt arrives in step 2. It is cut into chunks that fit the budget of 8 "
    "tokens per step, so Ann gets a token in every step. Cy's question starts in the step that has tokens left. p05 "
    "has no budget, and computes Ben's prompt whole in one step.",
    PASTED,
    BUDGET,
)

SCENES: dict[str, Scene] = {
    "p00": Scene(
        "Every step computes the whole sequence again: the span starts at 0 and grows by one token per step. One "
        "sequence runs at a time, so Cy's question waits until Ann's poem has ended.",
        (ask("Ann", ANN, 3, 4), ask("Cy", CY, 2, 2)),
    ),
    "p01": Scene(
        "After the prompt, each step computes a single row: keys and values of all earlier tokens are in the cache. "
        "p00 computes those rows again.",
        (ask("Ann", ANN, 3, 4),),
    ),
    "p02": Scene(
        "Three sequences start together. Short prompts are padded to Ben's, the longest. Once Cy's answer and Ben's "
        "have ended, their rows are still computed until Ann's is done. Only then does d start, who came too late.",
        (*THREE, ask("d", OTHER, 4, 2)),
        MappingProxyType({"max_sequences": 3}),
    ),
    "p03": Scene(
        "A sequence that ends frees its slot at once: Cy's question takes over Ben's slot in the next step, beside the "
        "decode of Ann's poem. No row is padding; p02 computes some that are, and lets Cy wait for the poem's end.",
        (ask("Ann", ANN, 3, 7), *THREE[1:]),
        MappingProxyType({"max_sequences": 2}),
    ),
    "p04": Scene(
        "The pool has 6 pages of 4 positions. Sequences take a page when they need one, until none is free: then the "
        "one that came last is preempted, gives its pages back, and is computed again later.",
        (ask("Ann", ANN, 6, 11), ask("Ben", BEN, 5, 11), ask("Cy", CY, 4, 5)),
        MappingProxyType({"max_sequences": 3, "page_size": 4, "cache_tokens": 24}),
    ),
    "p05": Scene(
        "All begin with the same 8 tokens. Ben and Cy find their 2 pages in the tree, and compute only the rest. Ben's "
        "second request repeats his text and goes on; Cy's second one repeats a part of that, so a node splits. The "
        "pool has 16 pages: for Ann's second request the pages that have been idle longest are evicted.",
        SHARED,
        MappingProxyType({"max_sequences": 3, "page_size": 4, "cache_tokens": 64}),
    ),
    "p06": CHUNKS,
    "p07": Scene(
        "Weights have fewer bits, and no plan changes: the same spans, pages and steps as in p06.",
        PASTED,
        BUDGET,
    ),
    "p08": Scene(
        "Where a text repeats itself, as Ben's and Cy's do, drafts are copied from it and verified in one step. Those "
        "that the model agrees with are kept, so a step brings up to five tokens for one sequence; the rest are rolled "
        "back.",
        (ask("Ben", REPEATED, 24, 16), ask("Cy", ROTE, 14, 14), ask("Ann", ANN, 20, 10)),
        MappingProxyType({"max_sequences": 3, "page_size": 4, "cache_tokens": 160, "token_budget": 64}),
    ),
    "p09": Scene(
        "Which kernels run in each step, and how many programs: a prompt's tiles, a decode's parts, the norms. They "
        "read the pages through the block tables shown here. Plans, pages and steps are those of p06.",
        PASTED,
        BUDGET,
    ),
    "p10": Scene(
        "Each plan is made while the step before it is still in flight, so decodes begin with a token that only the "
        "device knows, shown as “?”. Cy leaves while a step is in flight: that row was computed in vain.",
        (
            ask("Ann", ANN, 5, 14),
            ask("Cy", CY, 7, 12, cancelled=7),
            ask("Ben", BEN, 20, 6, at=5),
        ),
        BUDGET,
    ),
    "p11": Scene(
        "Cy's answer must be Yes or No, and Ben's a line of JSON; Ann's poem is free. The table of masks shows for "
        "each draw how many tokens may come, and how much of the model's own probability is theirs. Plans, pages and "
        "steps are p10's.",
        (
            ask("Ann", ANN, 5, 14),
            formed("Cy", CY, 7, 6, choice=("Yes", "No")),
            formed("Ben", BEN, 20, 32, at=3, regex=r'\{"ships": [1-9][0-9]?, "storm": (true|false)\}'),
        ),
        MappingProxyType({"max_sequences": 3, "page_size": 4, "cache_tokens": 96, "token_budget": 12}),
    ),
    "p14": Scene(
        "In this layer, each token takes two of eight experts. A prompt's tokens need nearly all of them; where Ann "
        "decodes alone, two are read and six are not. Plans, pages and steps are those of p06.",
        PASTED,
        BUDGET,
        model="random:tiny-qwen3-moe",
    ),
    FINAL: Scene(
        "All of it together: a shared prefix, a long prompt in chunks, a small pool, plans made one step ahead, and "
        "drafts. Ben's last answer is a line of JSON: tokens that its form forces are verified as drafts, and drafts "
        "are cut where they would break it.",
        (*SHARED, formed("Ben 3", YEARS, 30, 20, at=16, regex=YEAR)),
        MappingProxyType({"max_sequences": 3, "page_size": 4, "cache_tokens": 64, "token_budget": 12}),
    ),
}  # fmt: skip

TIERS = Scene(
    "Below the pool of 8 pages is host memory for 4. Evicted pages move down there, the deepest of a path first. Ben's "
    "second request finds two of his pages in the tree and fetches two, while three of Ann's go down in exchange; her "
    "third request fetches one of them. What leaves host memory is gone.",
    (
        ask("Ann", ANN, 14, 3),
        ask("Ben", BEN, 18, 3, at=4),
        Asked("Ann 2", ((ANN, 14), (OTHER, 6)), 3, at=8),
        Asked("Ben 2", ((BEN, 18), (CY, 4)), 2, at=12),
        Asked("Ann 3", ((ANN, 14), (CY, 5)), 2, at=16),
    ),
    MappingProxyType({"max_sequences": 2, "page_size": 4, "cache_tokens": 32, "host_pages": 4}),
)
"""p05 over its second tier (`--host-pages`)."""

PANELS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("p00", "p01", "p02", "p06", "p07"), ("batch",)),
    "p03": ("batch", "slots"),
    "p04": ("pool", "tables"),
    "p05": ("tree",),
    "p08": ("plan",),
    "p09": ("kernels",),
    "p10": ("plan",),
    "p11": ("masks",),
    "p14": ("experts",),
    FINAL: ("tree", "masks"),
}
"""The parts of the page that show a phase's idea: the book's small page has them, the timeline and the events."""
