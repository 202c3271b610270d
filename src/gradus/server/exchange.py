"""One request to the engine, whatever its protocol, and the event stream that answers it.

    body ── a protocol's reader ──▶ Exchange ── asks ──▶ EngineClient.submit ──▶ Stream ── deltas ──▶ Encoder ──▶ bytes

A protocol is one module with an `Exchange`. Limits are not its business: they live in `SamplingParams`,
`SchedulingParams` and `Request`, so no protocol can forget one.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from gradus.engine.request import Request, SamplingParams, SchedulingParams
from gradus.errors import RequestError
from gradus.server.config import ServerConfig
from gradus.server.engine.messages import ModelInfo
from gradus.server.results import Stream, Template
from gradus.text.completion import Completion, Delta
from gradus.text.front_end import FrontEnd, Prompt
from gradus.text.tools.dialect import Turn

# Most characters, or token ids, to encode and check on the event loop: that takes a few milliseconds at most. A longer
# prompt would delay the other streams, so it goes to a worker thread. So does a grammar, which is slow to compile.
SHORT_PROMPT = 4096


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation, for the model's template to render.

    turn: its tools and choice; None for a model without a dialect. settings: the template's (`enable_thinking`, …), and
    how the prompt ends (`add_generation_prompt`, `continue_final`).
    """

    messages: Sequence[dict[str, Any]]
    turn: Turn | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        """Count characters of all fields approximately: calls may be long, and empty messages many."""
        return sum(len(str(message)) for message in self.messages)

    def tokens(self, front_end: FrontEnd) -> Sequence[int]:
        """Render and encode it. Raises RequestError if the model's template refuses it."""
        tools = self.turn.shown if self.turn else None
        return front_end.chat_prompt(self.messages, tools=tools, **self.settings)


class Written(ABC):
    """A prompt in a protocol's own form."""

    @abstractmethod
    def __len__(self) -> int:
        """Count characters or tokens, an estimate of the cost of encoding."""

    @abstractmethod
    def tokens(self, front_end: FrontEnd, params: SamplingParams) -> Sequence[int]:
        """Encode it. Raises RequestError."""

    def adapted(self, params: SamplingParams, front_end: FrontEnd) -> SamplingParams:
        """Adapt the parameters to the prompt."""
        return params


@dataclass(frozen=True, slots=True)
class Ask:
    """A prompt and how to continue it.

    cut: reduce max_tokens to the room in the context; /generate refuses it instead.
    apart: a failed sample leaves the others of its body to their ends; otherwise its error is the whole answer.
    index: the prompt's place among several in one body, which its refusal names; None if it is the only one.
    """

    prompt: Prompt | Chat | Written
    params: SamplingParams
    scheduling: SchedulingParams = field(default_factory=SchedulingParams)
    cut: bool = False
    apart: bool = False
    index: int | None = None

    @property
    def turn(self) -> Turn | None:
        """The tools and the choice among them, in a conversation."""
        return self.prompt.turn if isinstance(self.prompt, Chat) else None

    @property
    def short(self) -> bool:
        """Whether the request can be built on the event loop without delaying other streams."""
        tools = self.turn is not None and bool(self.turn.tools)
        return len(self.prompt) <= SHORT_PROMPT and self.params.structured is None and not tools

    def request(self, front_end: FrontEnd, request_id: str, scheduling: SchedulingParams) -> Request:
        """Render, encode and check. Raises RequestError for a request that could never be served."""
        try:
            return self._request(front_end, request_id, scheduling)
        except RequestError as error:
            if self.index is None or error.param != "prompt":
                raise
            message = f"prompt[{self.index}]{str(error).removeprefix('prompt')}"
            raise RequestError(message, param="prompt", limit=error.limit, got=error.got) from error

    def _request(self, front_end: FrontEnd, request_id: str, scheduling: SchedulingParams) -> Request:
        tokens, params = self._tokens(front_end), self.params
        if self.turn is not None:
            if params.structured is not None and front_end.limits.structured:
                front_end.grammars.check(params.structured)  # checked as the client gave it, so that a refusal names it
            params = self.turn.constrain(params, tokens)
        if isinstance(self.prompt, Written):
            params = self.prompt.adapted(params, front_end)
        if self.cut:
            params = _cut(params, front_end.limits.context_length - len(tokens))
        return front_end.request(tokens, params, scheduling, request_id)

    def _tokens(self, front_end: FrontEnd) -> Sequence[int]:
        if isinstance(self.prompt, Chat):
            return self.prompt.tokens(front_end)
        if isinstance(self.prompt, Written):
            return self.prompt.tokens(front_end, self.params)
        return front_end.tokens(self.prompt)


def _cut(params: SamplingParams, room: int) -> SamplingParams:
    """Limit max_tokens to the room in the context. A prompt that leaves none is refused by the request itself."""
    if room < 1:
        return params
    wanted = room if params.max_tokens is None else min(params.max_tokens, room)
    if wanted == params.max_tokens:
        return params
    return replace(params, max_tokens=wanted, min_tokens=min(params.min_tokens, wanted))


# -- protocols ---------------------------------------------------------------------------------------------------------


class Served(Protocol):
    """A served model as the protocols see it.

    state: its engine's. on_demand: whether it is loaded by its first request. info: None before it was loaded. model:
    its name in answers, the first of `names`. front_end: its tokenizer and templates; raises Unavailable while it
    loads.
    """

    @property
    def config(self) -> ServerConfig: ...
    @property
    def state(self) -> str: ...
    @property
    def on_demand(self) -> bool: ...
    @property
    def info(self) -> ModelInfo | None: ...
    @property
    def model(self) -> str: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def front_end(self) -> FrontEnd: ...


class Exchange(Protocol):
    """A checked body of one protocol.

    asks: its requests to the engine, each with its n samples. stream: whether the answer is a stream of events.
    ignored: fields of the body that have no effect, listed in a header of the answer.
    """

    @property
    def asks(self) -> Sequence[Ask]: ...
    @property
    def stream(self) -> bool: ...
    @property
    def ignored(self) -> Sequence[str]: ...

    def encoder(self, stream: Stream) -> "Encoder":
        """Make the encoder of the answer, once the engine has accepted all requests: `stream.requests`."""


class Encoder(Protocol):
    """Writes one answer in a protocol's form. Deltas come in the engine's order, samples interleaved."""

    def begin(self) -> bytes:
        """The frames before the first token."""

    def frames(self, deltas: Sequence[Delta]) -> Iterable[bytes]:
        """The frames of new deltas, made as they are read; b"" for deltas that a client need not see."""

    def end(self) -> Iterable[bytes]:
        """The frames after the last delta of the last sample, made as they are read."""

    def failed(self, error: Exception) -> bytes:
        """The frames that end a broken stream, whose status has already been sent."""

    def whole(self, completions: Sequence[Completion]) -> Iterator[bytes]:
        """The whole answer, written as it is read. completions: all asks', in their order, samples in order."""


@runtime_checkable
class Templated(Protocol):
    """An encoder whose frames may have a template: a busy server then writes them without a `Delta` each."""

    def template(self, delta: Delta) -> Template | None:
        """The template of the frames that follow this delta of a sample, while they carry one plain token each; None
        if there is none, or not yet. Such frames are not shown to `frames`."""
