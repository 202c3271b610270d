"""`gradus deploy runner`: a model and its memory, for an engine in another process that plans its steps.

The process opens the model as `LLM` does, and serves the runner of that engine; the scheduler and the cache manager
that come with it are left idle. So settings mean the same, and the same combinations are refused.
"""

import queue
import signal
import threading
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch

import gradus
from gradus.config.options import NGRAM, EngineConfig
from gradus.config.settings import NEITHERS, THE_ENGINES, THE_ENGINES_SWITCHES, Settings
from gradus.device.transfer import current
from gradus.engine.core import Compiler
from gradus.engine.plan import Result
from gradus.engine.structured import Structured
from gradus.errors import ConfigError, RequestError
from gradus.execution.remote.messages import PLANS, PROTOCOL, Hello
from gradus.execution.remote.service import Service
from gradus.execution.remote.stream import Listener
from gradus.execution.result import StepResult
from gradus.execution.runner import Runner
from gradus.loading import Progress, model_name
from gradus.text.llm import LLM

MOST_PREPARED = 64  # constraints waiting to be compiled; further ones are compiled when they are needed


def check(settings: Settings) -> None:
    """Raise ConfigError, in one line, for settings of the engine, and for what does not go with a runner yet."""
    unset = Settings()
    given = [name for name in THE_ENGINES if getattr(settings, name) != getattr(unset, name)]
    given += [f"switch_off {name}" for name in THE_ENGINES_SWITCHES if name in settings.switch_off]
    if given:
        raise ConfigError(f"{given[0]} does nothing in a runner: give it to the engine, or leave it out")
    for name in NEITHERS:
        if getattr(settings, name) is not None:
            raise ConfigError(f"{name} does not work in a runner yet: leave it out")
    asked = settings.keywords()
    if max(asked["tensor_parallel"] or 1, asked["pipeline_parallel"] or 1) > 1:
        raise ConfigError("tensor_parallel and pipeline_parallel do not work in a runner yet: leave them out")
    if asked["speculate"] not in (None, NGRAM):
        raise ConfigError(f"draft models and heads do not work in a runner yet: set speculate to {NGRAM}")


def run(settings: Settings, path: Path, progress: Progress | None = None) -> None:
    """Listen at `path` and serve engines, until Ctrl-C or SIGTERM, in the main thread.

    Raises ConfigError, and StepFailed after a step that failed.
    """
    check(settings)
    signal.signal(signal.SIGTERM, _end)
    listener = Listener(str(path))  # before the model is loaded: a wrong path costs no minute
    try:
        with LLM(**settings.keywords(), progress=progress) as llm:
            service = service_of(llm)
            if progress is not None:
                progress.note(f"a runner of {service.hello.model} waits for an engine at {path}")
            service.serve(listener)
    finally:
        listener.close()


def _end(*_: object) -> None:
    raise SystemExit(0)


def service_of(llm: LLM) -> Service:
    """Make the service of an opened model's runner. Raises ConfigError for n-gram drafts on a GPU: an engine in another
    process does not know what steps of each shape cost there."""
    runner, options = llm.engine.runner, llm.options
    assert isinstance(runner, Runner) and isinstance(options, EngineConfig)
    on_gpu = llm.device.type == "cuda"
    if on_gpu and options.speculate:
        raise ConfigError("speculate does not work in a runner on a GPU yet: leave it out")
    compiler = llm.engine.compiler
    return Service(
        runner,
        hello_of(llm, runner, options),
        ahead=1 if on_gpu else 0,
        done=arrived,
        forget=partial(wipe, runner),
        prepare=Preparing(compiler).prepare if compiler is not None else lambda structured: None,
    )


def hello_of(llm: LLM, runner: Runner, options: EngineConfig) -> Hello:
    """Write the greeting of an opened model."""
    windows = tuple(group.window for group in runner.attention.storage.groups)
    return Hello(
        protocol=PROTOCOL,
        plans=PLANS,
        vocab_size=llm.config.vocab_size,
        context_length=llm.limits.context_length,
        max_sequences=options.max_sequences,
        page_size=options.page_size,
        pages=options.cache_blocks * len(windows),
        windows=windows,
        token_budget=options.budget(llm.device.type) or 0,
        drafts=options.most_drafts,
        adaptive=options.drafts is None,
        draft_rows=runner.step.passes.most_rows,
        structured=llm.limits.structured,
        prompt_logprobs=llm.limits.prompt_logprobs,
        program=f"gradus {gradus.__version__}",
        model=model_name(llm.checkpoint.name),
        device=str(llm.device),
        dtype=llm.dtype,
        weight_bytes=llm.weight_bytes,
    )


def wipe(runner: Runner, pages: Collection[int]) -> None:
    """Fill pages with zeros."""
    with torch.inference_mode(), current(runner.device):
        runner.attention.storage.wipe(sorted(pages))


def arrived(step: Result) -> bool:
    """Whether `get` would return at once, or has work of its own to do."""
    return not isinstance(step, StepResult) or step.landing is None or step.landing.reached


class Preparing:
    """Compiles constraints in a thread of its own, before the plans that need them."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._waiting: queue.Queue[Structured] = queue.Queue(MOST_PREPARED)
        threading.Thread(target=self._run, name="gradus-preparing", daemon=True).start()

    def prepare(self, structured: Structured) -> None:
        with suppress(queue.Full):
            self._waiting.put_nowait(structured)

    def _run(self) -> None:
        while True:
            structured = self._waiting.get()
            with suppress(RequestError):  # the plan that needs it reports why
                self._compiler.hold(structured)
                self._compiler.release(structured)  # it stays until others push it out
