"""Text in, text out: a model, its tokenizer and an engine, for programs that own their loop.

The engine knows token ids alone; what is text lives here: encoding prompts, decoding as tokens come, stop strings.
"""

import itertools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from gradus.assembly.checkpoint import assemble
from gradus.config.options import FINAL, SWITCHES, EngineConfig, EngineOptions, resolve_context
from gradus.config.phase_options import capacity, final_options, options_for, used_by
from gradus.engine.engine import Metrics
from gradus.engine.request import ModelLimits, Request, SamplingParams, SchedulingParams
from gradus.engine.sequence import Output
from gradus.errors import RequestError
from gradus.execution.memory import OutOfMemory, ran_out
from gradus.kernels import missing
from gradus.loading import Checkpoint, Progress, Tokenizer, open_checkpoint
from gradus.models.precision import Precision, resolve_device, resolve_precision
from gradus.scheduling.time_limits import TimeLimits
from gradus.text.completion import Completion, Delta
from gradus.text.transcript import Transcript

Prompt = str | Sequence[int]
Params = TypeVar("Params", SamplingParams, SchedulingParams)

log = logging.getLogger(__name__)


class LLM:
    """A model ready to generate.

    model: a catalogue name, a folder, a `.gguf` file, a hub id, `random:<shape>`, or an opened Checkpoint.
    phase: which phase of the course runs it ("p01"); None is the final engine, made of what survives of all of them.
    device: "auto" (a GPU if there is one), "cpu", "cuda".
    dtype: "auto" (bfloat16 on a GPU; on a CPU what is measured to decode fastest), "float32", "bfloat16", "float16".
    context_length: most tokens of prompt and output; None is what the model was made for.
    max_sequences: most sequences that run at once, in phases that batch; None is 8, or 256 for the final engine on a
        GPU.
    page_size, cache_tokens, policy, token_budget: as EngineOptions has them, in phases that use them; None is what
        suits the phase. One that the phase would ignore is refused.
    memory_fraction, switch_off: of the final engine. How much of the device's memory may be in use, which decides how
        large the cache is where cache_tokens does not (see EngineConfig; None is 0.9 on a GPU, and on a CPU half of
        what is free), and the names of optimizations to leave out, of SWITCHES.

    The final engine's cache may have room for less than one sequence of context_length; then `limits` is as short, and
    a warning says so.

    Raises ConfigError or CheckpointError in one line. Not thread-safe: whoever owns the loop makes every call.
    """

    def __init__(
        self,
        model: "str | Checkpoint" = "smollm2-135m",
        *,
        phase: str | None = None,
        device: str = "auto",
        dtype: str = "auto",
        context_length: int | None = None,
        max_sequences: int | None = None,
        page_size: int | None = None,
        cache_tokens: int | None = None,
        policy: str | None = None,
        token_budget: int | None = None,
        memory_fraction: float | None = None,
        switch_off: Sequence[str] = (),
        progress: Progress | None = None,
    ) -> None:
        self.checkpoint = open_checkpoint(model, progress=progress) if isinstance(model, str) else model
        self.config = self.checkpoint.config
        self.tokenizer = self.checkpoint.tokenizer
        self.phase = phase
        self.device = resolve_device(device)
        heeded = used_by(phase)
        limits = ModelLimits(
            vocab_size=self.config.vocab_size,
            context_length=resolve_context(context_length, self.config.context_length),
            eos_token_ids=_eos(self.checkpoint),
        )
        settings: dict[str, Any] = {
            "page_size": page_size,
            "cache_tokens": cache_tokens,
            "policy": policy,
            "token_budget": token_budget,
            "memory_fraction": memory_fraction,
            "switch_off": tuple(switch_off),
        }
        options: EngineOptions = (
            final_options(limits, self.device.type, max_sequences, **settings)
            if phase is None
            else options_for(phase, limits, max_sequences, **settings)
        )
        self.precision: Precision = resolve_precision(dtype, self.device, self.config)
        self.engine, self.options = assemble(self.checkpoint, phase, options, self.device, self.precision, progress)
        self.limits = self.options.limits
        self._transcripts: dict[str, dict[int, Transcript]] = {}  # request id → its samples that have not ended
        self._times = TimeLimits()
        self._scheduler_keeps_time = "policy" in heeded
        self._untaken: list[Delta] = []  # what a step brought for requests whose caller was not looking
        self._numbers = itertools.count()
        self._broken: OutOfMemory | None = None

    # -- whole answers ------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompts: "Prompt | Sequence[Prompt]",
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        scheduling: SchedulingParams | Sequence[SchedulingParams] | None = None,
    ) -> list[Completion]:
        """Run prompts (texts or token ids) to their end.

        `params` and `scheduling`: one for all, one for each, or None for defaults.

        Returns a flat list, prompt-major: prompt 0's n samples, then prompt 1's, … Raises RequestError before anything
        runs if any prompt cannot be served.
        """
        deltas = self._run(_as_list(prompts), params, scheduling)
        completions = [delta.completion for delta in deltas if delta.completion]
        return sorted(completions, key=lambda completion: (completion.prompt_index, completion.index))

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, scheduling: SchedulingParams | None = None
    ) -> Iterator[Delta]:
        """Run one prompt, yielding what is new as it comes; each sample's last delta carries its Completion.

        Closing the iterator early cancels the request.
        """
        return self._run([prompt], params, scheduling)

    def chat(
        self,
        messages: Sequence[dict[str, Any]],
        params: SamplingParams | None = None,
        *,
        scheduling: SchedulingParams | None = None,
    ) -> list[Completion]:
        """Answer a conversation of {"role", "content"} messages through the model's own chat template."""
        return self.generate(self.chat_prompt(messages), params, scheduling=scheduling)

    def chat_prompt(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """The token ids of a conversation, ready for the assistant's turn. Raises RequestError without a template."""
        return self._need_tokenizer("messages").chat(messages)

    # -- step by step -------------------------------------------------------------------------------------------------

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        scheduling: SchedulingParams | None = None,
        request_id: str | None = None,
    ) -> str:
        """Queue one prompt; returns the request's id. Raises RequestError, queueing nothing, if it can't be served."""
        request = self._request(prompt, params or SamplingParams(), scheduling, request_id)
        return self._submit(request, prompt_index=0)

    def step(self) -> list[Delta]:
        """One engine step over all requests. Returns what is new, a sample's deltas in their order."""
        deltas, self._untaken = self._untaken + self._advance(), []
        return deltas

    def cancel(self, request_id: str, reason: str = "cancelled") -> list[Delta]:
        """End a request now. Returns the last delta of each sample that had not ended; [] if there is none."""
        return [self._deliver(output) for output in self.engine.cancel(request_id, reason=reason)]

    @property
    def has_work(self) -> bool:
        return self.engine.has_work or bool(self._untaken)

    @property
    def settings(self) -> dict[str, Any]:
        """Which engine this is, how many sequences it runs at once, and of the other options those that it heeds."""
        options = {
            "page_size": self.options.page_size,
            "cache_tokens": self.options.cache_positions,
            "policy": self.options.policy,
            "token_budget": getattr(self.engine.scheduler, "token_budget", None),
        }
        heeded = {name: value for name, value in options.items() if name in used_by(self.phase)}
        if self.phase is not None:
            return {"engine": self.phase, "max_sequences": capacity(self.phase, self.options.max_sequences)} | heeded
        return {"engine": FINAL, "max_sequences": self.options.max_sequences} | heeded | self._final_settings()

    def _final_settings(self) -> dict[str, Any]:
        config = self.options
        assert isinstance(config, EngineConfig)
        unused = ("kernels", "graphs") if missing(self.device.type) else ()
        on = {name: getattr(config, name) and name not in unused for name in SWITCHES}
        return {"memory_fraction": config.memory_fraction, "switches": on}

    def metrics(self) -> Metrics:
        return self.engine.metrics()

    def check(self) -> None:
        """Assert that the books of queue and cache balance. Costs more than a step: for tests, and for idle servers."""
        self.engine.scheduler.check()

    # -- how it is done -----------------------------------------------------------------------------------------------

    def _run(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        scheduling: SchedulingParams | Sequence[SchedulingParams] | None,
    ) -> Iterator[Delta]:
        each = zip(
            prompts,
            _of_each("params", params, SamplingParams, len(prompts)),
            _of_each("scheduling", scheduling, SchedulingParams, len(prompts)),
            strict=True,
        )
        return self._drive([self._request(*one) for one in each])

    def _drive(self, requests: list[Request]) -> Iterator[Delta]:
        """Step until these requests have ended. What a step brings for others waits until they ask for it."""
        ids = {request.id for request in requests}
        left = sum(request.params.n for request in requests)
        try:
            for prompt_index, request in enumerate(requests):
                self._submit(request, prompt_index)
            while left:
                if not any(delta.request_id in ids for delta in self._untaken):
                    self._untaken += self._advance()
                for delta in self._take(ids):
                    left -= delta.completion is not None
                    yield delta
        finally:
            if left:  # an error, or a caller who lost interest
                for request_id in ids:
                    self.cancel(request_id)
                self._take(ids)

    def _take(self, ids: set[str]) -> list[Delta]:
        mine = [delta for delta in self._untaken if delta.request_id in ids]
        self._untaken = [delta for delta in self._untaken if delta.request_id not in ids]
        return mine

    def _request(
        self,
        prompt: Prompt,
        params: SamplingParams,
        scheduling: SchedulingParams | None,
        request_id: str | None = None,
    ) -> Request:
        if isinstance(prompt, str):
            prompt = self._need_tokenizer("prompt").encode(prompt)
        if params.stop:
            self._need_tokenizer("stop")
        name = request_id or f"request-{next(self._numbers)}"
        return Request.create(name, prompt, params, self.limits, scheduling)

    def _submit(self, request: Request, prompt_index: int) -> str:
        if self._broken is not None:
            raise self._broken
        if request.id in self._transcripts:
            raise RequestError(f"request id {request.id!r} is in use", param="request_id", got=request.id)
        self.engine.submit(request)
        token_bytes = self.tokenizer.token_bytes if self.tokenizer else None
        self._transcripts[request.id] = {
            index: Transcript(request, prompt_index, index, token_bytes) for index in range(request.params.n)
        }
        if not self._scheduler_keeps_time:
            self._times.watch(request)
        return request.id

    def _advance(self) -> list[Delta]:
        late = self._times.late()
        ended = [output for request_id, reason in late for output in self.engine.cancel(request_id, reason=reason)]
        return [self._deliver(output) for output in ended + self._step_engine()]

    def _step_engine(self) -> list[Output]:
        """Raises OutOfMemory, from then on always: what the step had begun is half done, so no other can follow it."""
        if self._broken is not None:
            raise self._broken
        try:
            return self.engine.step()
        except (RuntimeError, MemoryError) as error:
            if not ran_out(error):
                raise
            self._broken = OutOfMemory(f"a step found no memory on {self.device}: start again with {self._smaller()}")
            raise self._broken from error

    def _smaller(self) -> str:
        """What leaves a step more room."""
        if isinstance(self.options, EngineConfig):
            fraction = f"--memory-fraction (now {self.options.memory_fraction:g}) or --cache-tokens"
            return f"a lower {fraction}, --token-budget or --max-sequences"
        return "a lower --max-sequences or --context-length"

    def _deliver(self, output: Output) -> Delta:
        """One step's tokens as text. A stop string, or a fault in decoding, ends the sample before its next step."""
        samples = self._transcripts[output.request_id]
        transcript = samples[output.index]
        try:
            delta = transcript.add(output)
            if transcript.stopped and delta.completion is None:
                delta = transcript.close(delta, self._end(output, "stop"))
        except Exception as error:
            log.exception("request %s: decoding failed", output.request_id)
            delta = transcript.fail(self._end(output, "error", f"decoding failed: {type(error).__name__}"))
        if delta.completion is not None:
            del samples[output.index]
            if not samples:
                del self._transcripts[output.request_id]
                self._times.forget(output.request_id)
        return delta

    def _end(self, output: Output, reason: str, error: str | None = None) -> Output:
        """End the output's sequence in the engine; if it ended in this very step, only change what is said of it."""
        last = next(iter(self.engine.cancel(output.request_id, output.index, reason)), output)
        return replace(last, finish_reason=reason, error=error, tokens=output.tokens, logprobs=output.logprobs)

    def _need_tokenizer(self, param: str) -> Tokenizer:
        if self.tokenizer is None:
            raise RequestError(
                f"{param}: model {self.checkpoint.name} came without a tokenizer; give the prompt as token ids",
                param=param,
                limit="token ids",
            )
        return self.tokenizer


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One text, or one list of token ids, is one prompt; a list of those is many."""
    if isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _of_each(name: str, given: Params | Sequence[Params] | None, kind: type[Params], count: int) -> list[Params]:
    """One for each of `count` prompts, from one for all of them, one for each, or None for the defaults."""
    if not isinstance(given, Sequence):
        return [given or kind()] * count
    if len(given) != count:
        limit = f"one {kind.__name__} for all, or one for each of the {count} prompts"
        raise RequestError(f"{name} must be {limit}, got {len(given)}", param=name, limit=limit, got=len(given))
    return list(given)


def _eos(checkpoint: Checkpoint) -> tuple[int, ...]:
    """End-of-sequence tokens that the configuration or the tokenizer names."""
    named = set(checkpoint.config.eos_token_ids)
    if checkpoint.tokenizer is not None:
        named |= set(checkpoint.tokenizer.eos_token_ids)
    return tuple(sorted(token for token in named if token < checkpoint.config.vocab_size))
