"""The options of an engine: a phase's, and the final engine's. No torch here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from gradus.config.description import Setting, check, described, setting
from gradus.engine.request import ModelLimits
from gradus.errors import ConfigError

FINAL = "final"  # the final engine's name where a phase could be named

Policy = Literal["fcfs", "priority", "deadline"]
KvDtype = Literal["auto", "fp8"]
Activations = Literal["float", "int8"]
NGRAM, DRAFT, HEADS = "ngram", "draft:", "heads:"

DEFAULT_PAGE_SIZE = 16

SERVED_STEP_TARGETS = {"cpu": 0.15, "cuda": 0.1}
"""The step targets of servers. On a CPU, streams then go on at about the speed at which people read. On a GPU, the
products of a step are as fast per token as those of a longer one (8B in 16 bits on an H200)."""
SERVED_SLOWDOWN = 1.3
"""The slowdown of servers on GPUs. On a CPU they have none: a long prompt takes tens of seconds there as it is."""

LONGER_STEP = 16384
"""Tokens of a step on a GPU with memory to spare, in an engine without step_target."""

MOST_DRAFTS = 16
"""Most drafts per step: further ones are seldom right, even in copied text, and their rows cost more than they gain."""
USUAL_DRAFTS = 7
"""Most drafts to choose if no number is given."""

USUAL_PREFIX_DIR_SIZE = 4
"""GiB of pages on disk."""

MOST_RANKS = 64

_LIMITS, _CACHE = "Limits", "Cache and scheduling (in phases that use them)"


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The options of a phase. Except for `limits` and `max_sequences`, only phases that name an option in `USES` use
    it.

    limits: the limits of requests; `limits.context_length` is also the longest sequence that the cache must hold.
    vocabulary: returns the bytes of each token, for engines whose answers have a structure; None without a tokenizer.
    Raises ConfigError for an impossible value.
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
        "Tokens in the whole cache.",
        unset="max_sequences of the longest; the final engine: as many as memory_fraction allows",
        least=1,
        heeded="uses",
        panel=_CACHE,
    )
    # A step's cost hardly grows up to some number of tokens, since it must read all weights anyway; beyond that it
    # grows with each token. A budget above that number delays decodes, a budget below it wastes the step.
    token_budget: int | None = setting(
        None,
        "Most tokens per step: longer prompts are cut into chunks. The final engine has "
        f"{LONGER_STEP} by default where a GPU has memory to spare and no step_target is set.",
        unset="the phase's own",
        suits={"cpu": 256, "cuda": 8192},
        least=1,
        heeded="uses",
        panel=_CACHE,
    )

    threads: int | None = setting(
        None,
        "Threads that compute on a CPU: torch's, in the whole process, and those of the final engine's kernels.",
        unset="one per core that the process may use, at most torch's number",
        least=1,
        most=1024,
        panel=_LIMITS,
    )
    vocabulary: Callable[[], Sequence[bytes]] | None = None

    def __post_init__(self) -> None:
        check(self)
        if self.cache_tokens is not None and self.cache_tokens < self.page_size:
            raise ConfigError(
                f"cache_tokens must be a whole number, {self.page_size} or more, got {self.cache_tokens} "
                "(a page is the least)"
            )

    @property
    def cache_positions(self) -> int:
        """The positions of a paged cache."""
        return self.cache_tokens or self.max_sequences * self.limits.context_length

    @property
    def cache_blocks(self) -> int:
        """The pages that those positions fill in each layer group: together, as many bytes as a contiguous cache."""
        return -(-self.cache_positions // self.page_size)


@dataclass(frozen=True, slots=True)
class EngineConfig(EngineOptions):
    """The options of the final engine: those of the phases, more that no phase uses, and a switch per optimization.

    memory_fraction: the cache gets the part of it that weights, the largest step and graphs leave, at most
    `max_sequences` of the longest. Other processes' memory on a GPU counts as used. None ignores the available memory
    and allocates `max_sequences` of the longest. `cache_tokens` takes precedence over both.
    yielding: names of settings and switches left at their defaults, which the plan may lower if memory is short.
    """

    policy: Policy = setting(
        "fcfs",
        "The request that goes first: fcfs (the oldest), priority (the lowest number) or deadline (the earliest).",
        heeded="final",
        panel=_CACHE,
    )
    step_target: float | None = setting(
        None,
        "Longest step that several requests share: prompts get fewer tokens of it, and short ones pass long ones. If "
        "a step without prompts takes more than half of it, twice such a step. 0: no limit.",
        unset="no limit; gradus serve on a CPU: {cpu:g}, on a GPU: {cuda:g}".format(**SERVED_STEP_TARGETS),
        least=0,
        unit="seconds",
        heeded="final",
        panel=_CACHE,
    )
    slowdown: float | None = setting(
        None,
        "While a long prompt is computed, others take at most this many times as long per token, on average: it sits "
        "out most steps. A prompt is long if it fills more than ten steps of step_target.",
        unset=f"no limit; gradus serve on a GPU: {SERVED_SLOWDOWN:g}",
        above=1,
        heeded="final",
        panel=_CACHE,
    )
    kv_dtype: KvDtype = setting(
        "auto",
        "The type of keys and values in the cache: auto (dtype's) or fp8 (8 bits and a scale per token and head).",
        heeded="final",
        panel=_CACHE,
    )
    activations: Activations = setting(
        "float",
        "The activations that matrices in int4, or in the blocks of a .gguf file, are multiplied with on a CPU: float, "
        "or int8 (rounded, 32 with one scale, as in llama.cpp), which is faster.",
        heeded="final",
    )
    # On a CPU other processes need memory too, and only the memory that is free now is known.
    memory_fraction: float | None = setting(
        None,
        "Most of the device's memory to use in total (on a CPU: of the free memory). The cache gets the rest of it.",
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
        "Keep the draft model's matrices in fewer bits, including its output head; quantize applies only to the model, "
        "without its head.",
        unset="none: as the draft is stored, or dtype's",
        heeded="final",
        panel=_CACHE,
    )
    drafts: int | None = setting(
        None,
        "Number of tokens to draft per step, with speculate.",
        unset=f"up to {USUAL_DRAFTS}, or the number of heads; measured speed decides",
        least=1,
        most=MOST_DRAFTS,
        heeded="final",
        panel=_CACHE,
    )
    tensor_parallel: int = setting(
        1,
        "Devices that share the model, each with a part of every matrix: GPUs from cuda:0 on, or processes on a CPU.",
        least=1,
        most=MOST_RANKS,
        heeded="final",
        panel=_LIMITS,
    )
    pipeline_parallel: int = setting(
        1,
        "Stages that share the model, each with some of its layers, on devices of their own: with tensor_parallel, on "
        "as many as the product.",
        least=1,
        most=MOST_RANKS,
        heeded="final",
        panel=_LIMITS,
    )
    prefix_dir: str | None = setting(
        None,
        "A directory that keeps prefixes of 256 tokens and more, so that they are warm after a restart; on a GPU, with "
        "host_cache. It is private, since prompts can be read from it, and one engine uses it at a time.",
        unset="none: a restart forgets all prefixes",
        heeded="final",
        metavar="DIR",
        panel=_CACHE,
    )
    prefix_dir_size: float | None = setting(
        None,
        "The size that the files in prefix_dir may have, in GiB; the least recently used go first.",
        unset=f"{USUAL_PREFIX_DIR_SIZE}",
        above=0,
        heeded="final",
        panel=_CACHE,
    )
    host_cache: float | None = setting(
        None,
        "The size of host memory, in GiB, that keeps prefixes when a GPU's cache gives them up. It is taken at the "
        "start.",
        unset="none: what the cache gives up is computed again",
        above=0,
        heeded="final",
        panel=_CACHE,
    )
    runner: str | None = setting(
        None,
        "A socket at which `gradus deploy runner` listens: that process has the model and its memory, and runs what "
        "this one plans. Settings of memory and arithmetic are then given there.",
        unset="none: in the engine's process",
        heeded="final",
        metavar="unix:/PATH",
        panel=_LIMITS,
    )
    prefix_cache: bool = setting(True, "Requests that begin alike share pages.", heeded="final")
    chunked: bool = setting(True, "Prompts are cut to the token budget; otherwise, each is one step.", heeded="final")
    kernels: bool = setting(
        True,
        "Gradus's own kernels: in Triton on a GPU; in numba on a CPU, for decode steps.",
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
        if self.speculate is not None and self.pipeline_parallel > 1:
            raise ConfigError("speculate does not work with pipeline_parallel yet: leave one of them out")
        if self.speculate not in (None, NGRAM) and self.tensor_parallel > 1:
            raise ConfigError(
                f"draft models and heads do not work with tensor_parallel yet: set speculate to {NGRAM}, or leave one "
                "of them out"
            )
        self._check_prefix_dir()
        self._check_host_cache()
        if self.ranks > MOST_RANKS:
            raise ConfigError(f"tensor_parallel times pipeline_parallel must be at most {MOST_RANKS}, got {self.ranks}")

    def _check_prefix_dir(self) -> None:
        if self.prefix_dir is None:
            if self.prefix_dir_size is not None:
                raise ConfigError("prefix_dir_size does nothing without prefix_dir: set it, or leave both out")
            return
        if not self.prefix_cache:
            raise ConfigError("prefix_dir does nothing with prefix_cache switched off: leave one of them out")
        if self.ranks > 1:
            raise ConfigError(
                "prefix_dir does not work with tensor_parallel or pipeline_parallel yet: leave one of them out"
            )

    def _check_host_cache(self) -> None:
        if self.host_cache is None:
            return
        if not self.prefix_cache:
            raise ConfigError("host_cache does nothing with prefix_cache switched off: leave one of them out")
        if self.ranks > 1:
            raise ConfigError(
                "host_cache does not work with tensor_parallel or pipeline_parallel yet: leave one of them out"
            )

    @classmethod
    def of(cls, options: EngineOptions, **switches: bool) -> "EngineConfig":
        """Make the final engine's options from a phase's, with these switches."""
        values: dict[str, Any] = {field.name: getattr(options, field.name) for field in fields(EngineOptions)}
        return cls(**{**values, **switches})

    def budget(self, device: str) -> int | None:
        """Most tokens per step on this kind of device ("cpu", "cuda"); None if prompts are not cut."""
        return (self.token_budget or SETTINGS["token_budget"].suits[device]) if self.chunked else None

    @property
    def ranks(self) -> int:
        """The processes that share the model."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def draft_model(self) -> str | None:
        """The name of the draft model, if there is one."""
        return self._named(DRAFT)

    @property
    def heads(self) -> str | None:
        """The folder of the draft heads, if there are any."""
        return self._named(HEADS)

    def _named(self, kind: str) -> str | None:
        named = self.speculate is not None and self.speculate.startswith(kind)
        return (self.speculate or "").removeprefix(kind) if named else None

    @property
    def most_drafts(self) -> int:
        """Most drafts per step and sequence; 0 without speculation."""
        return (self.drafts or USUAL_DRAFTS) if self.speculate else 0

    @property
    def sized(self) -> bool:
        """Whether the available memory decides the cache's size."""
        return self.cache_tokens is None and self.memory_fraction is not None


SETTINGS: dict[str, Setting] = {name: one for name, one in described(EngineConfig).items() if one.kind is not bool}
SWITCHES: dict[str, Setting] = {name: one for name, one in described(EngineConfig).items() if one.kind is bool}


def resolve_context(asked: int | None, most: int) -> int:
    """Decide the context length: the one asked for, or the model's own, `most`. Raises ConfigError for a longer one."""
    length = most if asked is None else asked
    if not 2 <= length <= most:
        raise ConfigError(f"context_length must be between 2 and {most}, got {length}")
    return length
