"""/v1/chat/completions: OpenAI's protocol of conversations.

A stream is: for each choice, in order, a chunk with its role; chunks with new content; for each choice, a chunk with
its finish_reason; and, on request, a chunk without choices that counts the tokens. Clients join the chunks field by
field, so a role, and a call's id and name, are sent only once. A whole answer is assembled from the same events.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gradus.engine.logprobs import TokenLogprob
from gradus.engine.request import MAX_LOGPROBS
from gradus.errors import RequestError
from gradus.server.api import openai
from gradus.server.api.errors import failure_of, problem_of
from gradus.server.api.errors import openai as openai_error
from gradus.server.api.fields import Fields, refuse
from gradus.server.api.frames import DONE, Each, Later, event, event_pieces, pieces
from gradus.server.api.openai import StreamOptions
from gradus.server.api.turns import (
    PlainText,
    Sample,
    event_reader,
    in_one_piece,
    logprob_entries,
    read_turn,
    template_settings,
)
from gradus.server.exchange import Ask, Chat, Encoder, Served
from gradus.server.results import Stream
from gradus.text import conversation
from gradus.text.completion import Completion, Delta
from gradus.text.front_end import FrontEnd
from gradus.text.tools.events import Answer, Event, Reasoning, Text, ToolArguments, ToolStart

HARMLESS = ("prediction", "verbosity", "moderation", "prompt_cache_options", "prompt_cache_retention")
"""Fields that do not change the answer: hints, and requests for something in addition to it."""

REFUSED = {
    "audio": "this server answers with text",
    "web_search_options": "give the model a tool that searches",
    "functions": "use tools, which replaced it",
    "function_call": "use tool_choice, which replaced it",
    "chat_template": "the model's own is used",
    "documents": "put them into a message",
    "prompt_logprobs": "/v1/completions has echo and logprobs",
    "truncate_prompt_tokens": "leave out the oldest messages instead",
    "thinking_token_budget": "use reasoning_effort, or max_tokens",
    "media_io_kwargs": "this server reads text",
    "mm_processor_kwargs": "this server reads text",
}
REFUSED_IF_TRUE = {
    "echo": "the messages are known; /v1/completions has echo",
    "add_special_tokens": "the chat template writes the special tokens",
    "include_stop_str_in_output": "stop strings are never part of an answer",
}


# -- requests ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shown:
    """The optional parts of an answer: each token's logprobs and id, and its reasoning, which may be hidden."""

    logprobs: bool = False
    token_ids: bool = False
    reasoning: bool = True


@dataclass(frozen=True, slots=True)
class ChatCompletion:
    """A body of /v1/chat/completions, checked as far as possible before its prompt is rendered."""

    ask: Ask
    stream: bool
    options: StreamOptions
    shown: Shown
    front_end: FrontEnd
    ignored: tuple[str, ...] = ()

    @property
    def asks(self) -> Sequence[Ask]:
        return (self.ask,)

    def encoder(self, stream: Stream) -> Encoder:
        return ChatEncoder(self, stream)

    @classmethod
    def parse(cls, body: Any, served: Served) -> "ChatCompletion":
        """Check parsed JSON. Raises RequestError naming the field, or Unavailable while the model loads."""
        fields = Fields(body, strict=served.config.strict_fields)
        _refuse(fields)
        front_end, stock = served.front_end, openai.stock(served)
        shown = Shown(
            logprobs=fields.flag("logprobs"),
            token_ids=fields.flag("return_token_ids"),
            reasoning=fields.flag("include_reasoning", True),
        )
        prompt, without_tools = _prompt(fields, front_end)
        ask = Ask(
            prompt=prompt,
            params=openai.sampling(fields, stock, max_tokens=_max_tokens(fields), logprobs=_logprobs(fields, shown)),
            scheduling=openai.scheduling(fields),
            cut=True,
        )
        stream, options = fields.flag("stream"), openai.stream_options(fields)
        ignored = (*(("tools",) if without_tools else ()), *fields.ignored())
        return cls(ask, stream, options, shown, front_end, ignored)


def _refuse(fields: Fields) -> None:
    openai.refuse_unsupported(fields)
    fields.some(*HARMLESS)
    fields.refuse(REFUSED)
    for name, reason in REFUSED_IF_TRUE.items():
        if fields.flag(name):
            fields.refuse({name: reason})
    if (modalities := fields.list("modalities")) not in ([], ["text"]):
        refuse("modalities", '["text"]', modalities)


def _prompt(fields: Fields, front_end: FrontEnd) -> tuple[Chat, bool]:
    """Read the conversation, its tools, and how its prompt ends. Also returns whether tools had to be left out."""
    messages = conversation.read(fields.get("messages"))
    parallel = fields.flag("parallel_tool_calls", True)
    turn, left_out = read_turn(front_end.dialect, fields.get("tools"), fields.get("tool_choice"), parallel)
    settings = template_settings(fields, front_end, fields.text("reasoning_effort"))
    continued = fields.flag("continue_final_message")
    begins = fields.flag("add_generation_prompt", not continued)
    if continued and begins:
        raise RequestError(
            "continue_final_message and add_generation_prompt exclude each other: the answer continues the last "
            "message, or begins a turn",
            param="add_generation_prompt",
            limit="false with continue_final_message",
            got=True,
        )
    settings |= {"continue_final": True} if continued else {} if begins else {"add_generation_prompt": False}
    return Chat(messages, turn, settings), left_out


def _max_tokens(fields: Fields) -> Any:
    given = fields.some("max_completion_tokens", "max_tokens")
    return next(iter(given.values()), None)


def _logprobs(fields: Fields, shown: Shown) -> int | None:
    """Read the number of alternatives for each token's log-probability; None: no log-probabilities."""
    top = fields.whole("top_logprobs", 0, MAX_LOGPROBS, 0)
    if top and not shown.logprobs:
        refuse("top_logprobs", "0 without logprobs", top)
    return top if shown.logprobs else None


# -- answers -----------------------------------------------------------------------------------------------------------


class ChatEncoder:
    """Writes one answer: chunks, or all choices at once."""

    def __init__(self, exchange: ChatCompletion, stream: Stream) -> None:
        self._options, self._shown = exchange.options, exchange.shown
        (self._request,) = stream.requests.values()
        readers = [
            event_reader(exchange.ask, self._request, exchange.front_end, index)
            for index in range(self._request.params.n)
        ]
        self._plain = isinstance(readers[0], PlainText)
        self._samples = [Sample(reader) for reader in readers]
        self._spell = openai.speller(exchange.front_end.tokenizer)
        self._model = exchange.front_end.model
        self._head = openai.head("chatcmpl", "chat.completion.chunk", self._model)
        self._broken = False

    # -- a stream ------------------------------------------------------------------------------------------------------

    def begin(self) -> bytes:
        first = {"prompt_token_ids": list(self._request.prompt)} if self._shown.token_ids else {}
        return b"".join([
            self._chunk(index, {"role": "assistant", "content": ""}, **(first if index == 0 else {}))
            for index in range(len(self._samples))
        ])  # fmt: skip

    def frames(self, deltas: Sequence[Delta]) -> Iterator[bytes]:
        return map(self._frames, deltas)

    def _frames(self, delta: Delta) -> bytes:
        """Write a delta's content, and the finish_reason if it is the last. After an error, a client stops reading."""
        if self._broken:
            return b""
        sample = self._samples[delta.index]
        new = self._new(sample.read(delta))
        tokens = self._tokens(sample, delta, delta.logprobs)
        if not new and self._plain and delta.token_ids and delta.completion is None:
            new = {"content": ""}  # half a character: still a chunk, because load generators count them
        written = self._chunk(delta.index, new, **tokens) if new or tokens else b""
        if delta.completion is None:
            return written
        if error := failure_of(delta.completion):
            self._broken = True
            return written + event(openai_error(problem_of(error)))
        ending = {"finish_reason": sample.finish_reason, "stop_reason": delta.completion.stop_reason}
        return written + self._chunk(delta.index, {}, **ending)

    def _new(self, events: Sequence[Event]) -> dict[str, Any]:
        """Write events as the `delta` of a chunk. A call's id and name are sent once, at its beginning."""
        new: dict[str, Any] = {}
        calls: dict[int, dict[str, Any]] = {}
        for each in events:
            match each:
                case Text(text):
                    new["content"] = new.get("content", "") + text
                case Reasoning(text) if self._shown.reasoning:
                    new["reasoning"] = new.get("reasoning", "") + text
                case ToolStart(index, identifier, name):
                    function = {"name": name, "arguments": ""}
                    calls[index] = {"index": index, "id": identifier, "type": "function", "function": function}
                case ToolArguments(index, text):
                    call = calls.setdefault(index, {"index": index, "function": {"arguments": ""}})
                    call["function"]["arguments"] += text
        return new | ({"tool_calls": list(calls.values())} if calls else {})

    def _tokens(self, sample: Sample, delta: Delta, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Show ids and log-probabilities of a delta's tokens, but not those of hidden reasoning."""
        hidden = 0 if self._shown.reasoning else sample.thought_in(delta)
        found: dict[str, Any] = {}
        if self._shown.token_ids and len(delta.token_ids) > hidden:
            found["token_ids"] = list(delta.token_ids[hidden:])
        if self._shown.logprobs and len(logprobs) > hidden:
            found["logprobs"] = {"content": logprob_entries(logprobs[hidden:], self._spell), "refusal": None}
        return found

    def _chunk(self, index: int, new: dict[str, Any], prompt_token_ids: Any = None, **more: Any) -> bytes:
        choice = {"index": index, "delta": new, "logprobs": None, "finish_reason": None, **more}
        content = {**self._head, "choices": [choice]}
        if prompt_token_ids is not None:
            content["prompt_token_ids"] = prompt_token_ids
        if self._options.usage:
            content["usage"] = self._usage() if self._options.continuous else None
        return b"".join(event_pieces(content)) if "logprobs" in more else event(content)

    def end(self) -> Iterator[bytes]:
        if self._options.usage and not self._broken:
            yield event({**self._head, "choices": [], "usage": self._usage()})
        yield DONE

    def failed(self, error: Exception) -> bytes:
        return (b"" if self._broken else event(openai_error(problem_of(error)))) + DONE

    def _usage(self) -> dict[str, Any]:
        """Count tokens so far, or all of them."""
        reasoning = sum(sample.thought_tokens for sample in self._samples)
        completions = [sample.completion for sample in self._samples if sample.completion is not None]
        if len(completions) == len(self._samples):
            return openai.usage_of(completions, reasoning)
        generated = sum(sample.tokens for sample in self._samples)
        return openai.usage(len(self._request.prompt), generated, reasoning=reasoning)

    # -- in one piece --------------------------------------------------------------------------------------------------

    def whole(self, completions: Sequence[Completion]) -> Iterator[bytes]:
        prompt = {"prompt_token_ids": list(self._request.prompt)} if self._shown.token_ids else {}
        head = self._head | {"object": "chat.completion"}
        choices, usage = Each(self._choice, completions), Later(self._usage)
        return pieces({**head, "choices": choices, "usage": usage, **prompt})

    def _choice(self, completion: Completion) -> dict[str, Any]:
        sample, delta = self._samples[completion.index], in_one_piece(completion)
        message = self._message(Answer.of(sample.read(delta)))
        return {
            "index": completion.index,
            "message": message,
            "logprobs": None,
            "finish_reason": sample.finish_reason,
            "stop_reason": completion.stop_reason,
            **self._tokens(sample, delta, completion.logprobs or ()),
        }

    def _message(self, answer: Answer) -> dict[str, Any]:
        content = answer.text if answer.text or not answer.calls else None
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if answer.reasoning and self._shown.reasoning:
            message["reasoning"] = answer.reasoning
        if answer.calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in answer.calls
            ]
        return message
