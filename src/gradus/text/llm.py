"""Text in, text out: a front end over a core in the same loop, for programs that own that loop.

The core knows only token ids, and the front end handles text (front_end.py). `LLM` loads the model, makes both, and
runs the loop.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Self, TypeVar

from gradus import garbage
from gradus.assembly.checkpoint import assemble, keeps_bits
from gradus.assembly.guard import GuardedCore
from gradus.cache.paged import PagedCache
from gradus.config.description import described, keywords
from gradus.config.options import FINAL, EngineConfig, resolve_context
from gradus.config.settings import Settings, stated
from gradus.device import threads
from gradus.device.allocator import give_back_host_memory
from gradus.engine.engine import Engine
from gradus.engine.metrics import Metrics
from gradus.engine.request import ModelLimits, Request, SamplingParams, SchedulingParams
from gradus.errors import ConfigError, RequestError
from gradus.execution.memory.plan import weight_bytes
from gradus.execution.remote.messages import Hello
from gradus.execution.remote.runner import RemoteRunner
from gradus.loading import Checkpoint, Progress, as_asked, open_checkpoint
from gradus.models.create import create_model
from gradus.models.precision import ELSEWHERE, resolve_device
from gradus.quantization.precision import resolve
from gradus.text.completion import Completion, Delta
from gradus.text.front_end import FrontEnd, Prompt
from gradus.text.interrupts import Interrupts
from gradus.text.tools.dialect import Turn
from gradus.text.turns import Turns

Params = TypeVar("Params", SamplingParams, SchedulingParams)

log = logging.getLogger(__name__)

DEFAULT_MODEL: str = described(Settings)["model"].default


@keywords(Settings)
class LLM:
    """A model ready to generate.

    model: a catalogue name, a folder, a `.gguf` file, a hub id, `random:<shape>`, or an opened Checkpoint.
    progress: shows the progress of loading.
    settings: listed below, and checked against their description (gradus.config). None keeps the default; a setting
        that the engine would ignore is refused.

    The final engine's cache may have room for less than one sequence of context_length; then `limits` is reduced, and
    a warning says so.

    Raises ConfigError or CheckpointError in one line.

    Threads may share it: they take turns, one engine step at a time, so requests of all threads share the batch. An
    iterator of `stream` belongs to one thread at a time; while no thread reads it, it holds up no other call.

    `with LLM(…) as llm:` closes it at the end of the block, and frees its memory. Otherwise `close` does, or the
    object's own end.

    Ctrl-C waits for the current step, and so does a second one. It cancels the requests of `generate`, `chat` or
    `stream`, and the next call runs as if nothing had happened. A third within one step, which may hang, ends the step
    and costs the model.

    `threads` also sets torch's number of threads, in the whole process; without it, the program's number is unchanged.

    gc_freeze: hide all objects that are alive once the model is loaded from the garbage collector, until the engine is
        gone. Searching them would pause the engine for longer than a dozen steps. False leaves the program's
        collector alone.
    """

    def __init__(
        self,
        model: "str | Checkpoint" = DEFAULT_MODEL,
        *,
        progress: Progress | None = None,
        gc_freeze: bool = True,
        **settings: Any,
    ) -> None:
        if not isinstance(model, str | Checkpoint):
            raise ConfigError(f"model must be a text (a name or a folder) or an opened Checkpoint, got {model!r}")
        given = Settings.of({"model": model if isinstance(model, str) else None, **settings})
        found = open_checkpoint(given.model, progress=progress) if isinstance(model, str) else model
        self.config = found.config
        self.tokenizer = found.tokenizer
        self.phase = phase = given.phase
        self.engine_name = ("your " if given.impl else "") + (phase or FINAL)
        self.device = resolve_device("cpu" if given.remote else given.device)
        limits = ModelLimits(
            vocab_size=self.config.vocab_size,
            context_length=resolve_context(given.context_length, self.config.context_length),
            eos_token_ids=eos_of(found),
        )
        options = given.options(limits, self.device.type)
        options = replace(options, threads=threads.use(options.threads))
        self.checkpoint, self.precision = found, ELSEWHERE
        if not given.remote:
            keeps = keeps_bits(given.dtype, options, self.device)
            self.checkpoint = as_asked(found, given.quantize, keeps_bits=keeps)
            self.precision = resolve(given.dtype, given.quantize, self.device, self.config, self.checkpoint.quantized)
        if gc_freeze:
            garbage.see_all_of_earlier_engines()
        engine, self.options = assemble(
            self.checkpoint, phase, options, self.device, self.precision, progress, given.impl
        )
        self.checkpoint = replace(self.checkpoint, tensors=None)  # they would keep the weights' files open
        self.limits = self.options.limits
        self.core = GuardedCore(engine, self.device, self.options)
        self.front_end = FrontEnd(self.tokenizer, self.limits, self.checkpoint.name, end_sample=self.core.cancel)
        self._untaken: list[Delta] = []  # deltas that no caller has taken yet
        self._iterated: set[str] = set()  # ids of requests whose deltas an iterator takes
        self._dropped: list[set[str]] = []  # ids of iterators that ended within a step
        self._interrupts = Interrupts()
        self._turns = Turns(self._interrupts)
        give_back_host_memory()  # freed by loading
        if gc_freeze:
            garbage.spare_what_stays(self.core)

    @property
    def weight_bytes(self) -> int:
        """The bytes of the weights in memory, on all devices together, without a draft model's."""
        if (hello := self._elsewhere) is not None:
            return hello.weight_bytes
        model = create_model(self.config, dtype=self.precision.activations, device="meta", linear=self.precision.linear)
        return weight_bytes(model)

    @property
    def dtype(self) -> str:
        """The precision, in words, such as "bfloat16 weights, float32 activations"."""
        hello = self._elsewhere
        return self.precision.title if hello is None else hello.dtype

    @property
    def device_name(self) -> str:
        """The device that the model runs on."""
        hello = self._elsewhere
        return str(self.device) if hello is None else hello.device

    @property
    def _elsewhere(self) -> Hello | None:
        """The greeting of a runner in another process; None if the model is in this one."""
        runner = self.engine.runner
        return runner.hello if isinstance(runner, RemoteRunner) else None

    @property
    def engine(self) -> Engine:
        """The engine. Raises ClosedEngine after `close`."""
        return self.core.core

    # -- an end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Free the memory of weights, cache and graphs, and end the engine's threads, even if something still
        refers to this object.

        Requests that have not ended are dropped. Any later call that needs the engine raises ClosedEngine; another
        `close` does nothing. Without `close`, all of this happens when nothing refers to the object any more.
        """
        with self._turns:
            for request_id in self.front_end.open_requests:
                self.front_end.close(request_id)
            self._untaken.clear()
            self.core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- whole answers ------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompts: "Prompt | Sequence[Prompt]",
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        scheduling: SchedulingParams | Sequence[SchedulingParams] | None = None,
        turn: Turn | None = None,
    ) -> list[Completion]:
        """Run prompts to their end: texts or token ids, which may be an array or a tensor for each prompt.

        `params` and `scheduling`: one for all, one for each, or None for defaults. turn: the tools that the answers may
        call (`front_end.dialect.turn`): it constrains them, and ends them with their calls.

        Returns a flat list, prompt-major: prompt 0's n samples, then prompt 1's, … Raises RequestError before anything
        runs if any prompt cannot be served.
        """
        with self._interrupts:  # replaces the handler once, not once per step; each step still ends with a delivery
            deltas = self._run(_as_list(prompts), params, scheduling, turn)
            completions = [delta.completion for delta in deltas if delta.completion]
        return sorted(completions, key=lambda completion: (completion.prompt_index, completion.index))

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        scheduling: SchedulingParams | None = None,
        turn: Turn | None = None,
    ) -> Iterator[Delta]:
        """Run one prompt, yielding deltas as they arrive; each sample's last delta carries its Completion.

        turn: as in `generate`. Closing the iterator early cancels the request.
        """
        return self._run([prompt], params, scheduling, turn)

    def chat(
        self,
        messages: Sequence[dict[str, Any]],
        params: SamplingParams | None = None,
        *,
        scheduling: SchedulingParams | None = None,
    ) -> list[Completion]:
        """Answer a conversation of {"role", "content"} messages through the model's own chat template."""
        return self.generate(self.chat_prompt(messages), params, scheduling=scheduling)

    def chat_prompt(self, messages: Sequence[dict[str, Any]], *, tools: Any = None, **settings: Any) -> list[int]:
        """Encode a conversation, ready for the assistant's turn.

        tools: what the model is shown, in OpenAI's or Anthropic's shape. `front_end.dialect` reads its calls
            (gradus.text.tools).
        settings: of the chat template: enable_thinking, thinking, reasoning_effort.
        Raises RequestError without a template.
        """
        return self.front_end.chat_prompt(messages, tools=tools, **settings)

    # -- step by step -------------------------------------------------------------------------------------------------

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        scheduling: SchedulingParams | None = None,
        request_id: str | None = None,
        turn: Turn | None = None,
    ) -> str:
        """Queue one prompt; returns the request's id. Raises RequestError, queueing nothing, if it can't be served.

        turn: as in `generate`.
        """
        if request_id is not None:
            _check_id(request_id)
        params, scheduling = _one("params", params, SamplingParams), _one("scheduling", scheduling, SchedulingParams)
        return self._submit(self.front_end.request(prompt, params, scheduling, request_id, turn), turn=turn)

    def step(self) -> list[Delta]:
        """Take one engine step over all requests. Returns the deltas of submitted ones, each sample's in order.

        The requests of a `generate` or `stream` under way take part; their deltas wait for it.
        """
        with self._turns:
            self._advance()
            submitted = {delta.request_id for delta in self._untaken} - self._iterated
            return self._take(submitted)

    def cancel(self, request_id: str, reason: str = "cancelled") -> list[Delta]:
        """End a request now. Returns the last delta of each sample that had not ended; [] if there is none. Its
        `stream` yields them too."""
        _check_id(request_id)
        with self._turns:
            last = self.front_end.read(self.core.cancel(request_id, reason=reason))
            if request_id in self._iterated:
                self._untaken += last
            return last

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do, or deltas to return."""
        return self.core.has_work or any(delta.request_id not in self._iterated for delta in self._untaken)

    @property
    def settings(self) -> dict[str, Any]:
        """The engine's name, and the final values of the settings that it uses."""
        budget = getattr(self.engine.scheduler, "token_budget", None)
        return stated(self.phase, self.options, budget) | {"engine": self.engine_name}

    @property
    def sequences_by_length(self) -> dict[int, int]:
        """How many sequences of each usual length, up to the longest that may run, run at once; {} in a phase."""
        cache = self._paged_cache
        return {} if cache is None else cache.sequences(self._longest(cache), self.options.max_sequences)

    @property
    def kept_by_length(self) -> dict[int, int]:
        """How many evicted sequences of each usual length `host_cache` keeps; {} without it."""
        cache = self._paged_cache
        return {} if cache is None else cache.kept_in_host(self._longest(cache))

    @property
    def _paged_cache(self) -> PagedCache | None:
        cache = getattr(self.engine.scheduler, "cache", None)
        return cache if isinstance(cache, PagedCache) else None

    def _longest(self, cache: PagedCache) -> int:
        """The longest sequence that may run."""
        options = self.options
        budget = options.budget(self.device.type) if isinstance(options, EngineConfig) else None
        return cache.longest(budget, self.limits.context_length)

    def metrics(self) -> Metrics:
        with self._turns:
            return self.core.metrics()

    def check(self) -> None:
        """Assert the invariants of queue and cache. It costs more than a step, so it is for tests and idle servers."""
        with self._turns:
            self.core.check()

    # -- the loop -----------------------------------------------------------------------------------------------------

    def _run(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        scheduling: SchedulingParams | Sequence[SchedulingParams] | None,
        turn: Turn | None = None,
    ) -> Iterator[Delta]:
        each = zip(
            prompts,
            _of_each("params", params, SamplingParams, len(prompts)),
            _of_each("scheduling", scheduling, SchedulingParams, len(prompts)),
            strict=True,
        )
        return self._drive([self.front_end.request(*one, turn=turn) for one in each], turn)

    def _drive(self, requests: list[Request], turn: Turn | None) -> Iterator[Delta]:
        """Step until these requests have ended. Deltas of other requests are kept for their callers."""
        ids = {request.id for request in requests}
        left = sum(request.params.n for request in requests)
        self._iterated |= ids
        try:
            for prompt_index, request in enumerate(requests):
                self._submit(request, prompt_index, turn)
            while left:
                for delta in self._await(ids):
                    left -= delta.completion is not None
                    yield delta
        finally:
            if left:  # after an error, Ctrl-C, or a caller that stops reading
                self._discard(ids)
            self._iterated -= ids

    def _await(self, ids: set[str]) -> list[Delta]:
        """Return deltas of these requests. Takes a step unless another thread's step left some."""
        with self._turns:
            if not any(delta.request_id in ids for delta in self._untaken):
                self._advance()
            return self._take(ids)

    def _discard(self, ids: set[str]) -> None:
        """End these requests and drop their deltas. Within a step, which may collect an iterator as garbage, the next
        step does it."""
        self._dropped.append(ids)
        if not self._turns.mine:
            with self._turns:
                self._drop()

    def _drop(self) -> None:
        while self._dropped:
            ids = self._dropped.pop()
            for request_id in ids:
                self.core.cancel(request_id)
                self.front_end.close(request_id)
            self._take(ids)

    def _take(self, ids: set[str]) -> list[Delta]:
        mine = [delta for delta in self._untaken if delta.request_id in ids]
        self._untaken = [delta for delta in self._untaken if delta.request_id not in ids]
        return mine

    def _submit(self, request: Request, prompt_index: int = 0, turn: Turn | None = None) -> str:
        constraint = request.params.structured
        if constraint is not None and (unkept := self.front_end.grammars.unkept(constraint)):
            log.warning("structured: the answer need not obey the schema's %s", ", ".join(unkept))
        with self._turns:
            self.front_end.open(request, prompt_index, turn)
            try:
                self.core.submit(request)
            except Exception:
                self.front_end.close(request.id)
                raise
        return request.id

    def _advance(self) -> None:
        """Take one engine step, in a turn, and keep its deltas."""
        self._drop()
        self._untaken += self.front_end.read(self.core.step())


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Make a list of prompts. A text, or one list, array or tensor of token ids, is one prompt; a list of these is
    many. Raises RequestError for anything else."""
    if isinstance(prompts, str) or hasattr(prompts, "ndim"):
        return [prompts]  # type: ignore[list-item]
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes | bytearray | memoryview):
        raise RequestError.of("prompts", "a text, a list of token ids, or a list of these", prompts)
    first = prompts[0] if len(prompts) > 0 else None
    one = isinstance(first, int) or getattr(first, "ndim", None) == 0  # an array's item
    return [prompts] if one else list(prompts)  # type: ignore[list-item, arg-type]


def _of_each(name: str, given: Params | Sequence[Params] | None, kind: type[Params], count: int) -> list[Params]:
    """Return one value for each of `count` prompts. given: one for all, one for each, or None for the defaults.

    Raises RequestError for another number, or a value of another type.
    """
    if not isinstance(given, list | tuple):
        return [_one(name, given, kind)] * count
    if len(given) != count:
        limit = f"one {kind.__name__} for all, or one for each of the {count} prompts"
        raise RequestError.of(name, limit, len(given))
    return [_one(f"{name}[{index}]", each, kind) for index, each in enumerate(given)]


def _one(name: str, given: Any, kind: type[Params]) -> Params:
    if given is not None and not isinstance(given, kind):
        raise RequestError.of(name, f"{kind.__name__}(…) or None", given)
    return kind() if given is None else given


def _check_id(request_id: Any) -> None:
    """Raise RequestError for anything but a text that UTF-8 can carry to another process."""
    try:
        request_id.encode()
    except (AttributeError, UnicodeEncodeError):
        raise RequestError.of("request_id", "a text without lone surrogates", request_id) from None


def eos_of(checkpoint: Checkpoint) -> tuple[int, ...]:
    """Collect the end-of-sequence tokens that the configuration or the tokenizer names."""
    named = set(checkpoint.config.eos_token_ids)
    if checkpoint.tokenizer is not None:
        named |= set(checkpoint.tokenizer.eos_token_ids)
    return tuple(sorted(token for token in named if token < checkpoint.config.vocab_size))
