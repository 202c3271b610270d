"""The front end of a core: text becomes requests, and the core's outputs become text. No torch here.

    text ── request ──▶ Request ──▶ core ──▶ Output ── read ──▶ Delta, Completion

The core may run in the same loop (`LLM`), or on another thread or in another process (the server): a front end never
waits for it.
"""

import functools
import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from gradus.engine.outputs import Outputs
from gradus.engine.request import ModelLimits, Request, SamplingParams, SchedulingParams
from gradus.engine.sequence import Output
from gradus.errors import RequestError
from gradus.structured import Grammars, grammars_of
from gradus.text.completion import Delta
from gradus.text.infill import Infill
from gradus.text.stops import NO_CONTROLS, Controls
from gradus.text.stream import Piece, Written, piece
from gradus.text.tools.calls import MAX_CALLS
from gradus.text.tools.dialect import Dialect, Turn
from gradus.text.tools.tool import read_tools
from gradus.text.transcript import Transcript

if TYPE_CHECKING:
    from gradus.loading import Tokenizer

Prompt = str | Sequence[int]

EndSample = Callable[[str, int, str], Iterable[Output]]
"""(request id, sample's index, reason): makes the core end a sample. Returns its last output if that is known at once.
If the core runs elsewhere it returns nothing, and the last output comes with later ones."""

NO_SAMPLES: dict[int, Transcript] = {}

log = logging.getLogger(__name__)


class FrontEnd:
    """A tokenizer, the limits of requests, and the transcripts of those that run.

    tokenizer: None if the model has none: then prompts are token ids, and the text of answers is empty.
    limits: the core's. model: its name, for messages. end_sample: makes the core end a sample.

    Not thread-safe, except for `request` and `chat_prompt`.
    """

    def __init__(
        self,
        tokenizer: "Tokenizer | None",
        limits: ModelLimits,
        model: str,
        end_sample: EndSample,
        *,
        tool_format: str | None = None,
        all_schemas: bool = True,
        max_tool_calls: int = MAX_CALLS,
    ) -> None:
        """tool_format: how the model calls tools, by a name of the table; None finds out (gradus.text.tools).
        all_schemas: where the model is free to call, calls obey the schemas of all tools, not of strict ones alone.
        max_tool_calls: in one answer.
        """
        self.tokenizer = tokenizer
        self._tool_format, self._all_schemas, self._max_tool_calls = tool_format, all_schemas, max_tool_calls
        self.limits = limits
        self.model = model
        # a token's bytes never change, and computing them would cost as much as all other work on the token
        self._token_bytes = functools.cache(lambda token: piece(tokenizer.token_bytes(token))) if tokenizer else None
        self._written: dict[Callable[[str, int], bytes], Written] = {}
        self._end_sample = end_sample
        self._transcripts: dict[str, dict[int, Transcript]] = {}  # request id → samples that have not ended
        self._numbers = itertools.count()

    # -- text to requests ---------------------------------------------------------------------------------------------

    def request(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        scheduling: SchedulingParams | None = None,
        request_id: str | None = None,
        turn: Turn | None = None,
    ) -> Request:
        """Encode and check a request; nothing is kept. request_id: None makes one up. turn: constrains the answer.

        Takes about a microsecond per character, and milliseconds for a new grammar. Raises RequestError for a request
        that could never be served.
        """
        params = params or SamplingParams()
        prompt = self.tokens(prompt)
        if turn is not None:
            if not isinstance(turn, Turn):
                raise RequestError.of("turn", "what front_end.dialect.turn(…) returns, or None", turn)
            params = turn.constrain(params, prompt)
        if params.stop:
            self._need_tokenizer("stop")
        if params.structured is not None and self.limits.structured:
            self.grammars.check(params.structured)
        name = request_id or f"request-{next(self._numbers)}"
        return Request.create(name, prompt, params, self.limits, scheduling)

    def tokens(self, prompt: Prompt, *, special_tokens: bool = True) -> Sequence[int]:
        """Encode a text; token ids stay as they are. Raises RequestError for a text without a tokenizer.

        special_tokens: also add the tokens that the model expects around a text.
        """
        if not isinstance(prompt, str):
            return prompt
        return self._need_tokenizer("prompt").encode(prompt, special_tokens=special_tokens)

    def text(self, tokens: Sequence[int]) -> str:
        """Decode token ids, control tokens by their names. Raises RequestError without a tokenizer."""
        return self._need_tokenizer("tokens").decode(tokens, skip_special=False)

    @property
    def token_piece(self) -> Callable[[int], Piece] | None:
        """A token's contribution to a text, cached; None without a tokenizer."""
        return self._token_bytes

    def written(self, write: Callable[[str, int], bytes]) -> Written:
        """The tokens as `write`, a function that is never forgotten, writes them."""
        if write not in self._written:
            self._written[write] = Written(self._token_bytes, write)
        return self._written[write]

    @functools.cached_property
    def controls(self) -> Controls:
        """The control tokens that stop strings may name; none without a tokenizer."""
        return NO_CONTROLS if self.tokenizer is None else Controls.of(self.tokenizer)

    @functools.cached_property
    def dialect(self) -> Dialect:
        """How the model is shown tools and calls them. Raises RequestError without a tokenizer."""
        keeps = self._all_schemas and self.limits.lazy
        compiles = self.grammars.check if keeps else None
        tokenizer = self._need_tokenizer("tools")
        return Dialect(tokenizer, self._tool_format, max_calls=self._max_tool_calls, compiles=compiles)

    @property
    def chats(self) -> bool:
        """Whether the model was given a form of conversations: a chat template."""
        return self.tokenizer is not None and self.tokenizer.chat_templates.default is not None

    def chat_prompt(self, messages: Sequence[dict[str, Any]], *, tools: Any = None, **settings: Any) -> list[int]:
        """Encode a conversation, ready for the assistant's turn.

        tools: what the model is shown; a template that shows none gets them in the system message. settings:
        add_generation_prompt, continue_final, and those of the template, such as enable_thinking. Raises RequestError
        without a template.
        """
        tokenizer = self._need_tokenizer("messages")
        shown = read_tools(tools)
        found = self.dialect.messages(messages, shown)
        if "reasoning_effort" in settings:
            settings["reasoning_effort"] = self.dialect.effort(settings["reasoning_effort"])
        return tokenizer.chat(found, tools=self.dialect.shown(shown), **settings)

    @functools.cached_property
    def infill(self) -> Infill:
        """How the model fills in the middle of a text. Raises RequestError for one that was not taught to."""
        found = Infill.of(self._need_tokenizer("suffix"))
        if found is None:
            raise RequestError(
                f"suffix is not supported by model {self.model}: its vocabulary has no tokens that mark a middle to "
                "fill in",
                param="suffix",
                limit="left out",
                got="given",
            )
        return found

    @functools.cached_property
    def grammars(self) -> Grammars:
        """The compiled constraints of the model. Raises RequestError without a tokenizer."""
        return grammars_of(self._need_tokenizer("structured"), self.limits)

    def rest(self) -> None:
        """Drop what takes memory and can be made again, while no request runs."""
        if self.tokenizer is not None:
            self.grammars.forget()
        if self._token_bytes is not None:
            self._token_bytes.cache_clear()

    def return_to_work(self) -> None:
        """Begin to make the largest of it again."""
        if self.tokenizer is not None and self.limits.structured:
            self.grammars.warm()

    # -- outputs to text ----------------------------------------------------------------------------------------------

    @property
    def open_requests(self) -> Sequence[str]:
        """The ids of the requests that have a transcript."""
        return list(self._transcripts)

    def open(self, request: Request, prompt_index: int = 0, turn: Turn | None = None) -> list[Transcript]:
        """Begin the transcripts of a request that is about to be submitted, one per sample.

        turn: the tools that its answer may call; a sample ends where such an answer is over. Raises RequestError if
        the request's id is in use.
        """
        if request.id in self._transcripts:
            raise RequestError(f"request id {request.id!r} is in use", param="request_id", got=request.id)
        controls = self.controls if request.params.stop else NO_CONTROLS
        self._transcripts[request.id] = {
            index: Transcript(
                request,
                prompt_index,
                index,
                self._token_bytes,
                controls,
                turn.ending(request.prompt, self._token_bytes) if turn else None,
            )
            for index in range(request.params.n)
        }
        return list(self._transcripts[request.id].values())

    def close(self, request_id: str) -> None:
        """Forget a request: the core's further outputs for it are dropped. A request that has ended is allowed."""
        self._transcripts.pop(request_id, None)

    def read(self, outputs: Iterable[Output]) -> list[Delta]:
        """Add outputs to the transcripts. Returns the deltas, each sample's in order."""
        deltas: list[Delta] = []
        if isinstance(outputs, Outputs) and outputs.tokens.shape[1] == 1 and not outputs.logprobs:
            deltas, outputs = self._read_tokens(outputs), outputs.others
        for output in outputs:
            transcript = self._transcripts.get(output.request_id, NO_SAMPLES).get(output.index)
            if transcript is not None:
                deltas.append(self.read_sample(transcript, output))
        return deltas

    def _read_tokens(self, outputs: Outputs) -> list[Delta]:
        """Read one plain token of each sample from the columns, without an `Output` for each."""
        owners, tokens = outputs.columns()
        transcripts, deltas = self._transcripts, list[Delta]()
        for owner, token in zip(owners.tolist(), tokens[:, 0].tolist(), strict=True):
            transcript = transcripts.get(owner.request_id, NO_SAMPLES).get(owner.index)
            if transcript is not None:
                delta = transcript.plain(token)
                if delta is None:
                    delta = self.read_sample(transcript, Output(owner.request_id, owner.index, (token,)))
                deltas.append(delta)
        return deltas

    def read_sample(self, transcript: Transcript, output: Output) -> Delta:
        """Add an output to an open transcript. A stop string, an answer that is over, or a fault in decoding ends the
        sample."""
        if transcript.ending:
            delta = transcript.skip(output)
        else:
            try:
                delta = transcript.add(output)
            except Exception as error:
                log.exception("request %s: decoding failed", output.request_id)
                delta = transcript.fail(output, f"decoding failed: {type(error).__name__}")
            if transcript.ending and delta.completion is None:
                for last in self._end_sample(output.request_id, output.index, transcript.ending):
                    delta = transcript.close(delta, last)
        if delta.completion is not None:
            self._forget(output)
        return delta

    def _forget(self, output: Output) -> None:
        samples = self._transcripts[output.request_id]
        del samples[output.index]
        if not samples:
            del self._transcripts[output.request_id]

    def _need_tokenizer(self, param: str) -> "Tokenizer":
        if self.tokenizer is None:
            raise RequestError(
                f"{param}: model {self.model} came without a tokenizer; give the prompt as token ids",
                param=param,
                limit="token ids",
            )
        return self.tokenizer
