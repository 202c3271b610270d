"""What an engine is built with beside the model: a phase's options, and the final engine's. No torch here."""

from dataclasses import dataclass, fields
from typing import Any, Literal

from gradus.config.description import Setting, check, described, setting
from gradus.engine.request import ModelLimits
from gradus.errors import ConfigError

FINAL = "final"  # what the final engine is called where a phase would be named

Policy = Literal["fcfs", "priority", "deadline"]
KvDtype = Literal["auto", "fp8"]
NGRAM, DRAFT, HEADS = "ngram", "draft:", "heads:"

DEFAULT_PAGE_SIZE = 16

MOST_DRAFTS = 16
"""Per step: beyond, even a copied text seldom agrees, and a step's rows cost more than they bring."""
USUAL_DRAFTS = 7
"""The most that are chosen where no number is given."""

_LIMITS, _CACHE = "Limits", "Cache and scheduling (in phases that use them)"


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The options of a phase. Each beside `limits` and `max_sequences` is for the phases that name it in `USES`.

    limits: what requests must respect; `limits.context_length` is also the longest sequence the cache must hold.
    Raises ConfigError for a value that cannot be.
    """

    limits: ModelLimits
    max_sequences: int = setting(
        8,
        "Most sequences that run at once, in phases that batch.",
        suits={"cpu": 8, "cuda": 256},
        least=1,
        panel=_LIMITS,
    )
    page_size: int = setting(DEFAULT_PAGE_SIZE, "Tokens per page of the cache.", least=1, heeded="uses", panel=_CACHE)
    cache_tokens: int | None = setting(
        None,
        "Tokens that the whole cache has room for.",
        unset="max_sequences of the longest; the final engine: as many of them as memory_fraction allows",
        least=1,
        heeded="uses",
        panel=_CACHE,
    )
    # What a step costs hardly grows up to some number of tokens, since it must read all weights anyway; then it grows
    # with each. A budget beyond that point delays the decodes, one below it wastes the step.
    token_budget: int | None = setting(
        None,
        "Most tokens per step: longer prompts are cut into chunks.",
        unset="what the phase says",
        suits={"cpu": 256, "cuda": 8192},
        least=1,
        heeded="uses",
        panel=_CACHE,
    )

    threads: int | None = setting(
        None,
        "Threads that compute on a CPU: torch's, in the whole process, and those of the final engine's kernels.",
        unset="one per core that the process may use, and no more than torch has",
        least=1,
        most=1024,
        panel=_LIMITS,
    )

    def __post_init__(self) -> None:
        check(self)
        if self.cache_tokens is not None and self.cache_tokens < self.page_size:
            raise ConfigError(
                f"cache_tokens must be a whole number, {self.page_size} or more, got {self.cache_tokens} "
                "(a page is the least)"
            )

    @property
    def cache_positions(self) -> int:
        """Positions that a paged cache gets room for."""
        return self.cache_tokens or self.max_sequences * self.limits.context_length

    @property
    def cache_blocks(self) -> int:
        """Pages that those positions fill, in each layer group: in all, as many bytes as a contiguous cache of them."""
        return -(-self.cache_positions // self.page_size)


@dataclass(frozen=True, slots=True)
class EngineConfig(EngineOptions):
    """The options of the final engine: those of the phases, more that no phase heeds, and a switch per optimization.

    memory_fraction: the cache gets what is left of it beside weights, the largest step and graphs, at most
    `max_sequences` of the longest. What other processes hold on a GPU counts as taken. None looks at no memory and
    allocates `max_sequences` of the longest. `cache_tokens` wins over both.
    yielding: names of settings and switches left at their defaults, which the plan may lower where memory is short.
    """

    policy: Policy = setting(
        "fcfs",
        "The request that goes first: fcfs (the oldest), priority (the lowest number) or deadline (the earliest).",
        heeded="final",
        panel=_CACHE,
    )
    kv_dtype: KvDtype = setting(
        "auto",
        "How the cache keeps keys and values: auto (as dtype says) or fp8 (8 bits and a scale per token and head).",
        heeded="final",
        panel=_CACHE,
    )
    # On a CPU other processes need memory too, and only what is free now is known.
    memory_fraction: float | None = setting(
        None,
        "How much of the device's memory may be in use, all told (on a CPU: of what is free). The cache gets the rest.",
        suits={"cpu": 0.5, "cuda": 0.9},
        above=0,
        most=1,
        heeded="final",
        panel=_CACHE,
    )
    speculate: str | None = setting(
        None,
        "Guess tokens and verify several per step; the output is unchanged. Guesses come from ngram (the text itself), "
        "draft:MODEL (a smaller model of the same vocabulary) or heads:FOLDER (as gradus train-heads writes it).",
        unset="one token per step",
        heeded="final",
        panel=_CACHE,
    )
    draft_quantize: str | None = setting(
        None,
        "Keep the draft model's matrices in fewer bits, its output head's as well; quantize is for the model alone, "
        "and leaves its head.",
        unset="none: as the draft is stored, or as dtype says",
        heeded="final",
        panel=_CACHE,
    )
    drafts: int | None = setting(
        None,
        "How many tokens are drafted per step, with speculate.",
        unset=f"up to {USUAL_DRAFTS}, or as many as there are heads; measured speed decides",
        least=1,
        most=MOST_DRAFTS,
        heeded="final",
        panel=_CACHE,
    )
    prefix_cache: bool = setting(True, "Requests that begin alike share pages.", heeded="final")
    chunked: bool = setting(True, "Prompts are cut to the token budget; without, a prompt is one step.", heeded="final")
    kernels: bool = setting(
        True,
        "Kernels of this project's own: in Triton on a GPU, on a CPU in numba for decode steps.",
        heeded="final",
    )
    graphs: bool = setting(
        True,
        "Decode steps, and passes over short prompts, are replayed from CUDA graphs; needs `kernels`.",
        suits={"cpu": False},
        heeded="final",
    )
    overlap: bool = setting(True, "The next step is planned while the device works on this one.", heeded="final")
    yielding: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        EngineOptions.__post_init__(self)
        if self.graphs and not self.kernels:
            raise ConfigError("graphs need kernels: switch both on, or graphs off")
        if self.speculate not in (None, NGRAM) and not (self.draft_model or self.heads):
            raise ConfigError(f"speculate must be {NGRAM}, {DRAFT}MODEL or {HEADS}FOLDER, got {self.speculate!r}")
        if self.draft_quantize is not None and self.draft_model is None:
            raise ConfigError(
                f"draft_quantize does nothing without a draft model: set speculate to {DRAFT}MODEL, or leave "
                "draft_quantize out"
            )
        if self.drafts is not None and self.speculate is None:
            raise ConfigError("drafts does nothing without speculate: set speculate, or leave drafts out")

    @classmethod
    def of(cls, options: EngineOptions, **switches: bool) -> "EngineConfig":
        """The same options with switches."""
        values: dict[str, Any] = {field.name: getattr(options, field.name) for field in fields(EngineOptions)}
        return cls(**{**values, **switches})

    def budget(self, device: str) -> int | None:
        """Most tokens per step on this kind of device ("cpu", "cuda"); None where prompts are not cut."""
        return (self.token_budget or SETTINGS["token_budget"].suits[device]) if self.chunked else None

    @property
    def draft_model(self) -> str | None:
        """The name of the model that drafts, if one does."""
        return self._named(DRAFT)

    @property
    def heads(self) -> str | None:
        """The folder of the heads that draft, if some do."""
        return self._named(HEADS)

    def _named(self, kind: str) -> str | None:
        named = self.speculate is not None and self.speculate.startswith(kind)
        return (self.speculate or "").removeprefix(kind) if named else None

    @property
    def most_drafts(self) -> int:
        """Per step and sequence; 0 without speculation."""
        return (self.drafts or USUAL_DRAFTS) if self.speculate else 0

    @property
    def sized(self) -> bool:
        """Whether the cache is what memory has room for."""
        return self.cache_tokens is None and self.memory_fraction is not None


SETTINGS: dict[str, Setting] = {name: one for name, one in described(EngineConfig).items() if one.kind is not bool}
SWITCHES: dict[str, Setting] = {name: one for name, one in described(EngineConfig).items() if one.kind is bool}


def resolve_context(asked: int | None, most: int) -> int:
    """Tokens of prompt and output together: as asked, or the `most` that the model was made for."""
    length = most if asked is None else asked
    if not 2 <= length <= most:
        raise ConfigError(f"context_length must be between 2 and {most}, got {length}")
    return length
