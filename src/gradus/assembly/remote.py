"""An engine whose runner is another process: it plans, and loads no weights.

The runner's greeting says what its memory holds, so the sizes of the cache and of steps are its own. The model's files
are opened here for their tokenizer and their configuration.
"""

import logging
from dataclasses import replace
from weakref import finalize

from gradus.assembly.final import drafting, lag, step_target
from gradus.cache.groups import layer_groups
from gradus.cache.paged import PagedCache
from gradus.cache.radix import PrefixIndex
from gradus.config.options import NGRAM, EngineConfig
from gradus.engine.engine import Engine
from gradus.engine.time_limits import TimeLimits
from gradus.errors import ConfigError
from gradus.execution.remote.messages import Hello
from gradus.execution.remote.runner import PATIENCE_S, RemoteCompiler, RemoteRunner, greet
from gradus.execution.remote.stream import connect
from gradus.loading import Checkpoint, model_name
from gradus.models.config import ModelConfig
from gradus.scheduling.draft_shapes import DraftShapes
from gradus.scheduling.hindsight import Hindsight
from gradus.scheduling.scheduler import Scheduler
from gradus.scheduling.step_times import StepTimes
from gradus.structured import Grammars, grammars_of

log = logging.getLogger(__name__)


def assemble_remote(checkpoint: Checkpoint, options: EngineConfig) -> tuple[Engine, EngineConfig]:
    """Connect to the runner that `options.runner` names, and compose the engine. Also returns the final options.

    Raises ConfigError, in one line, if no runner listens there, and for one of another model or of smaller limits than
    were asked for.
    """
    assert options.runner is not None
    stream = connect(options.runner, PATIENCE_S)
    try:
        hello = greet(stream, f"{model_name(checkpoint.name)}, up to {options.max_sequences} sequences")
        check_model(hello, checkpoint, options.runner)
        config = agreed(options, hello)
        grammars = None
        if hello.structured and checkpoint.tokenizer is not None:
            grammars = grammars_of(checkpoint.tokenizer, config.limits)
        keeps = grammars is not None
        limits = replace(config.limits, structured=keeps, lazy=keeps, prompt_logprobs=hello.prompt_logprobs)
        config = replace(config, limits=limits)
        engine = compose(RemoteRunner(stream, hello), config, checkpoint.config, grammars)
    except BaseException:
        stream.close()
        raise
    engine.close = finalize(engine, stream.close)
    return engine, config


def check_model(hello: Hello, checkpoint: Checkpoint, address: str) -> None:
    """Raise ConfigError for a runner whose model has another vocabulary or other layers; warn if its name differs."""
    model, name = checkpoint.config, model_name(checkpoint.name)
    windows = tuple(group.window for group in layer_groups(model))
    there = hello.model or "a model"
    if hello.vocab_size != model.vocab_size or hello.windows != windows:
        raise ConfigError(
            f"the runner at {address} has {there}, with a vocabulary of {hello.vocab_size} tokens and "
            f"{len(hello.windows)} groups of layers; {name} has {model.vocab_size} and {len(windows)}: give the same "
            "model to both"
        )
    if hello.model and hello.model != name:
        log.warning("the runner at %s has %s, and text is tokenized for %s", address, hello.model, name)


def agreed(options: EngineConfig, hello: Hello) -> EngineConfig:
    """Apply the runner's sizes to the options. Raises ConfigError for a setting beyond them."""
    blocks = hello.pages // len(hello.windows)
    if not blocks:
        raise ConfigError(f"the runner's cache of {hello.pages} pages is too small for {len(hello.windows)} tables")
    sequences, budget = hello.max_sequences, hello.token_budget or None
    if "max_sequences" not in options.yielding:
        sequences = _at_most("max_sequences", options.max_sequences, sequences)
    if "token_budget" not in options.yielding and options.token_budget is not None:
        budget = _at_most("token_budget", options.token_budget, budget)
    context = min(options.limits.context_length, hello.context_length)
    if context < options.limits.context_length:
        log.info("a request may have %d tokens, as many as the runner's", context)
    return replace(
        options,
        limits=replace(options.limits, context_length=context),
        max_sequences=sequences,
        page_size=hello.page_size,
        cache_tokens=blocks * hello.page_size,
        token_budget=budget,
        chunked=budget is not None,
        speculate=NGRAM if hello.drafts else None,
        drafts=hello.drafts if hello.drafts and not hello.adaptive else None,
        kernels=False,
        graphs=False,
        yielding=frozenset(),
    )


def _at_most(name: str, asked: int, most: int | None) -> int:
    if most is not None and asked > most:
        raise ConfigError(f"{name} must be at most the runner's {most}, got {asked}: raise it there, or lower it here")
    return asked


def compose(runner: RemoteRunner, config: EngineConfig, model: ModelConfig, grammars: Grammars | None) -> Engine:
    """Compose an engine over the runner. grammars: checks requests here; None refuses structured ones."""
    hello, limits = runner.hello, TimeLimits(fastest=1 + runner.hello.drafts)
    windows = list(hello.windows)
    pages = config.cache_blocks * len(windows)
    cache = PagedCache(pages, config.page_size, windows, PrefixIndex() if config.prefix_cache else None)
    shapes = None
    if hello.drafts:
        shapes = DraftShapes(hello.drafts, config.max_sequences).unpadded(hello.draft_rows)
    control = drafting(config, shapes, StepTimes(), hindsight=Hindsight(None))
    budget, target = config.token_budget if config.chunked else None, step_target(config, model, limits)
    scheduler = Scheduler(cache, config.max_sequences, budget, config.policy, limits, control, target=target)
    stats = None if control is None else control.stats
    compiler = None if grammars is None else RemoteCompiler(grammars, runner)
    return Engine(scheduler, runner, config.limits, lag(config), limits, stats, compiler)
