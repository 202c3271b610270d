"""Recorded runs: a phase or the final engine, over a scene or a reader's own prompts."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, cast

from gradus import phases
from gradus.assembly import final
from gradus.bench.contenders.workbench import Workbench
from gradus.config.options import FINAL, NGRAM, EngineConfig, EngineOptions
from gradus.config.settings import capacity, heeded
from gradus.course.xray.places import places
from gradus.course.xray.recording import MOST_STEPS, Arrival, Frame, Kernels, Recording, record
from gradus.course.xray.scenes import PANELS, SCENES, TIERS, Scene, prompt_ids
from gradus.engine.engine import Engine
from gradus.engine.request import ModelLimits
from gradus.errors import ConfigError
from gradus.exercises.declaration import has_kernels
from gradus.exercises.solution import Solution
from gradus.kernels import interpreted
from gradus.loading import CATALOGUE, Tokenizer
from gradus.structured import grammars_of

REAL, RANDOM = "smollm2-135m", "random:tiny-llama"
TIERED, TIERS_PART, HOST = "p05", "tiers", "host_pages"
"""The phase and its module with host memory below the pool, and the setting that asks for it."""
DRAFTS = 4
"""The drafts of each step in the final engine, where it speculates."""
OWN_MAX_SEQUENCES = 4
"""How many of a reader's own prompts run at once by default: as many as a page shows with ease."""


def usual_model() -> str:
    """The small real model if it has been pulled; else random weights, whose text means nothing."""
    return REAL if CATALOGUE[REAL].pulled else RANDOM


@dataclass(frozen=True, slots=True)
class Work:
    """The input that all runs of a page share: requests and settings. longest: tokens of one sequence."""

    about: str
    arrivals: tuple[Arrival, ...]
    longest: int
    settings: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


def scene_of(name: str, *, tiers: bool = False) -> Scene:
    """The scene of a phase or of the final engine; tiers: of p05 over host memory. Raises ConfigError for a phase that
    is not there."""
    if tiers:
        return TIERS
    if name == FINAL:
        return SCENES[FINAL]
    info = phases.find(name)
    if info.name not in SCENES:
        known = ", ".join(SCENES)
        raise ConfigError(f"{info.name} has no scene of its own, only {known} have: give it --prompts FILE")
    return SCENES[info.name]


def work_of(scene: Scene, tokenizer: Tokenizer | None, settings: Mapping[str, int]) -> Work:
    """A scene's requests in the model's tokens. settings: those that a reader gave; they win over the scene's."""
    words = tokenizer or Tokenizer.of_bytes()
    arrivals = tuple(
        Arrival(
            asked.name,
            tuple(prompt_ids(asked, words)),
            asked.output,
            asked.at,
            asked.cancelled,
            structured=asked.structured,
        )
        for asked in scene.asked
    )
    return Work(scene.look, arrivals, scene.longest, {**scene.settings, **settings})


def own_work(prompts: Sequence[str], tokenizer: Tokenizer | None, output: int, settings: Mapping[str, int]) -> Work:
    """A reader's own prompts, all at once, to their end-of-sequence token or `output` tokens.

    Raises ConfigError if there is none, or if the model came without a tokenizer.
    """
    if not prompts:
        raise ConfigError("the file of prompts is empty: write one prompt per line")
    if tokenizer is None:
        raise ConfigError("the model came without a tokenizer, so it cannot read prompts: leave --prompts out")
    names = map(_letter, range(len(prompts)))
    arrivals = tuple(
        Arrival(name, tuple(tokenizer.encode(text)), output, whole=False)
        for name, text in zip(names, prompts, strict=True)
    )
    longest = max(len(arrival.prompt) for arrival in arrivals) + output
    return Work("Your own prompts.", arrivals, longest, {"max_sequences": OWN_MAX_SEQUENCES, **settings})


def run(name: str, bench: Workbench, work: Work, yours: Solution | None = None, most: int = MOST_STEPS) -> Recording:
    """Record `name` ("p04", "final") doing the work.

    yours: the phase with a student's functions in place of ours; what breaks it is recorded as well.
    Raises ConfigError, or RequestError for what the engine cannot serve.
    """
    tokenizer = bench.checkpoint.tokenizer
    structured = any(arrival.structured is not None for arrival in work.arrivals)
    engine, options = engine_of(name, bench, work.longest, work.settings, yours, structured=structured)
    host = {HOST: work.settings[HOST]} if HOST in work.settings else {}
    word = word_of(tokenizer)
    frames = record(
        engine, work.arrivals, engine.limits, most, tolerant=yours is not None, word=word, kernels=kernels_of(name)
    )
    return Recording(
        title=("" if yours is None else "your ") + title_of(name) + (" over host memory" if host else ""),
        about=work.about,
        model=bench.checkpoint.name,
        settings=shown(name, options) | host,
        context=options.limits.context_length,
        sequences=[
            {"id": asked.name, "prompt": list(asked.prompt), "output": asked.output, "at": arrived(asked, frames)}
            for asked in work.arrivals
        ],
        frames=frames,
        words=words_of(work, frames, tokenizer),
        cut=len(frames) == most and not (frames[-1]["plan"] is None and not frames[-1]["in_flight"]),
        code=places(engine, sorted({event["kind"] for frame in frames for event in frame["events"]})),
        panels=panels_of(name if name in PANELS else phases.find(name).name, frames) + (("host",) if host else ()),
        failed=frames[-1].get("failed"),
    )


def engine_of(
    name: str,
    bench: Workbench,
    longest: int,
    settings: Mapping[str, int],
    yours: Solution | None = None,
    *,
    structured: bool = False,
) -> tuple[Engine, EngineOptions]:
    """Build an engine for sequences of `longest` tokens, which knows the model's vocabulary and its end.

    yours, structured: as in `run` and `options_of`. Raises ConfigError for what the model has no room for.
    """
    config, tokenizer = bench.model.config, bench.checkpoint.tokenizer
    if longest >= config.context_length:
        raise ConfigError(
            f"prompt and output have {longest} tokens, the model's context ends at {config.context_length - 1}: "
            "shorten the prompts, or give a smaller --max-tokens"
        )
    eos = config.eos_token_ids or (tokenizer.eos_token_ids if tokenizer else ())
    limits = ModelLimits(config.vocab_size, longest + 1, tuple(eos))
    vocabulary = partial((tokenizer or Tokenizer.of_bytes()).vocabulary, config.vocab_size)
    options = replace(options_of(name, limits, settings, structured=structured), vocabulary=vocabulary)
    if HOST in settings:
        module = (yours or phases.find(TIERED)).module(TIERS_PART)
        return module.build(bench.model, options, settings[HOST]), options
    return build(name, bench, options) if yours is None else yours.build(bench.model, options), options


def panels_of(name: str, frames: Sequence[Frame]) -> tuple[str, ...]:
    """The parts that a small page shows. Without an interpreter, a phase of kernels shows the rows of its batches."""
    wanted = PANELS[name]
    return wanted if "kernels" not in wanted or any(frame["kernels"] for frame in frames) else ("batch",)


def kernels_of(name: str) -> Kernels:
    """Count a phase's kernels where Triton interprets them; elsewhere and for any other engine, nothing."""
    if name == FINAL or not interpreted() or not has_kernels(info := phases.find(name)):
        return nullcontext
    return cast(Kernels, info.module("watch").watched)


def arrived(asked: Arrival, frames: list[Frame]) -> int:
    """The step before which it came: earlier than asked for where there was nothing else to do."""
    there = (frame for frame in frames if asked.name in (*frame["running"], *frame["waiting"], *frame["ended"]))
    return int(next(there, {"number": asked.at})["number"])


def title_of(name: str) -> str:
    """Raises ConfigError for an engine that is not there."""
    if name == FINAL:
        return "final: the engine that serves"
    info = phases.find(name)
    info.require_engine()
    return f"{info.name}: {info.title[0].lower() + info.title[1:] if info.title[:2].istitle() else info.title}"


def options_of(
    name: str, limits: ModelLimits, settings: Mapping[str, int], *, structured: bool = False
) -> EngineOptions:
    """Keep the settings that this engine uses. One without pages gets as many slots as fit in the same memory.

    structured: some answers keep to a grammar. The final engine then also verifies drafts, among them the tokens that
    a grammar forces. Raises ConfigError if not a single slot fits.
    """
    if name == FINAL:  # kernels and graphs change no plan, and would take seconds to prepare
        given: dict[str, Any] = dict(settings)
        if structured:
            limits = replace(limits, structured=True)
            given |= {
                "speculate": NGRAM,
                "drafts": DRAFTS,
            }  # a number of them: what is measured differs from run to run
        return EngineConfig(limits, **given, memory_fraction=None, kernels=False, graphs=False)
    used: dict[str, Any] = {setting: value for setting, value in settings.items() if setting in heeded(name)}
    memory = settings.get("cache_tokens")
    if memory and "cache_tokens" not in used:
        slots = memory // limits.context_length
        if not slots:
            raise ConfigError(
                f"{name} reserves {limits.context_length} positions per sequence, and cache_tokens is {memory}: "
                "give it more"
            )
        used["max_sequences"] = min(slots, settings.get("max_sequences", slots))
    return EngineOptions(limits, **used)


def build(name: str, bench: Workbench, options: EngineOptions) -> Engine:
    if isinstance(options, EngineConfig):
        tokenizer = bench.checkpoint.tokenizer or Tokenizer.of_bytes()
        grammars = grammars_of(tokenizer, options.limits) if options.limits.structured else None
        return final.build(bench.model, options, grammars=grammars)
    return phases.load(name).build(bench.model, options)


def shown(name: str, options: EngineOptions) -> dict[str, Any]:
    """The settings that the page shows: those that the engine uses."""
    names = ["max_sequences", "page_size", "cache_tokens", "token_budget"]
    phase = None if name == FINAL else name
    values: dict[str, Any] = {setting: getattr(options, setting) for setting in names if setting in heeded(phase)}
    values["max_sequences"] = capacity(phase, options.max_sequences)
    if isinstance(options, EngineConfig):
        values |= {"kernels": "off", "graphs": "off", "speculate": options.speculate}
    return {setting: value for setting, value in values.items() if value is not None}


def words_of(work: Work, frames: Sequence[dict[str, Any]], tokenizer: Tokenizer | None) -> dict[int, str]:
    """The text of every token that the page may show; {} without a tokenizer."""
    if tokenizer is None:
        return {}
    ids = {token for arrival in work.arrivals for token in arrival.prompt}
    for frame in frames:
        ids |= {token for tokens in frame["outputs"].values() for token in tokens}
        ids |= {token for span in frame["spans"] for token in span["tokens"] if token >= 0}
        ids |= {token for draw in frame["masks"] for token in (draw["drawn"], draw["freely"]) if token >= 0}
        ids |= {token for draw in frame["masks"] for token, _ in draw["removed"]}
        ids |= {token for draw in frame["masks"] for token in draw["likeliest"]}
        ids |= {token for chosen in frame["drafts"].values() for token in chosen["proposed"]}
    return {token: word_of(tokenizer)(token) for token in sorted(ids)}


def word_of(tokenizer: Tokenizer | None) -> Callable[[int], str]:
    """How the page writes a token: by its number where there is no tokenizer."""
    return "#{}".format if tokenizer is None else lambda token: tokenizer.decode([token], skip_special=False)


def _letter(index: int) -> str:
    """a to z, then a1, b1, …"""
    again, letter = divmod(index, 26)
    return f"{chr(ord('a') + letter)}{again or ''}"
