"""A turn of a conversation, for the chat protocols: tools and their choice, template settings, and a sample's answer
as it is read."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from gradus.engine.logprobs import NO_LOGPROBS, TokenLogprob
from gradus.engine.request import Request
from gradus.loading.chat import EFFORTS, check_settings
from gradus.server.api.fields import Fields, refuse
from gradus.server.api.frames import Each
from gradus.server.api.openai import floored, spelled
from gradus.server.exchange import Ask
from gradus.text.completion import Completion, Delta
from gradus.text.front_end import FrontEnd
from gradus.text.tools.dialect import Dialect, Turn
from gradus.text.tools.events import Event, Text, ToolStart, reason_with_calls
from gradus.text.tools.tool import Tool, read_choice, read_tools

THINKING = ("enable_thinking", "thinking")  # templates' names for the reasoning switch
WITHOUT_THOUGHT = ("none", "minimal")  # efforts that switch reasoning off


# -- reading -----------------------------------------------------------------------------------------------------------


def read_turn(dialect: Dialect, tools: Any, choice: Any, parallel: bool | None = None) -> tuple[Turn, bool]:
    """Read tools and the choice among them. Returns the turn, and whether tools had to be left out.

    A model that was not taught to call tools calls them only if a grammar forces it. With `auto` it answers without
    them: agents always send `auto`, and a refusal would keep them from using such a model at all.
    """
    declared = read_tools(tools)
    declared, choice = _allowed(declared, choice)
    chosen = read_choice(choice, declared, parallel=parallel)
    left_out = chosen.mode == "auto" and not dialect.format.free
    return dialect.turn(declared, "none" if left_out else chosen, parallel=chosen.parallel), left_out


def _allowed(tools: tuple[Tool, ...], choice: Any) -> tuple[tuple[Tool, ...], Any]:
    """Reduce the tools to those of an "allowed_tools" choice, whose mode then becomes the choice."""
    if not isinstance(choice, Mapping) or choice.get("type") != "allowed_tools":
        return tools, choice
    inner = choice.get("allowed_tools", choice)
    listed = inner.get("tools") if isinstance(inner, Mapping) else None
    if not isinstance(listed, list) or not all(isinstance(each, Mapping) for each in listed):
        refuse("tool_choice.tools", "a list of tools", listed)
    functions = [each["function"] if isinstance(each.get("function"), Mapping) else each for each in listed]
    names = [function.get("name") for function in functions]
    return tuple(tool for tool in tools if tool.name in names), inner.get("mode", "auto")


def template_settings(fields: Fields, front_end: FrontEnd, effort: Any) -> dict[str, Any]:
    """Read `chat_template_kwargs`, and the reasoning effort in this template's terms. Raises RequestError."""
    if effort is not None and effort not in EFFORTS:
        refuse("reasoning_effort", "one of " + ", ".join(EFFORTS), effort)
    settings: dict[str, Any] = {}
    if effort is not None:
        settings = thinking_settings(front_end, effort not in WITHOUT_THOUGHT)
        settings["reasoning_effort"] = effort
    return check_settings(settings | dict(fields.object("chat_template_kwargs")))


def thinking_settings(front_end: FrontEnd, thinks: bool) -> dict[str, Any]:
    """Return the setting that switches reasoning on or off, under the name that this model's templates use."""
    known = front_end.tokenizer.chat_templates.variables if front_end.tokenizer else ()
    return dict.fromkeys((name for name in THINKING if name in known), thinks)


# -- answers -----------------------------------------------------------------------------------------------------------


class EventReader(Protocol):
    """Turns one sample's deltas into events. thought_tokens: the number of reasoning tokens, which come first."""

    @property
    def thought_tokens(self) -> int: ...

    def read(self, delta: Delta) -> list[Event]: ...


class PlainText:
    """Reads an answer that holds neither calls nor reasoning."""

    thought_tokens = 0

    def read(self, delta: Delta) -> list[Event]:
        return [Text(delta.text)] if delta.text else []


def event_reader(ask: Ask, request: Request, front_end: FrontEnd, index: int) -> EventReader:
    """Make the reader of sample `index`."""
    turn = ask.turn
    if turn is None or not (turn.callable or turn.dialect.thoughts):
        return PlainText()
    seed = f"{request.id}-{request.seed}-{index}"
    return turn.stream(request.prompt, request.params, seed=seed, token_bytes=front_end.token_piece)


class Sample:
    """One sample's answer as it is read.

    completion: None until it ends. tokens: the number read.
    """

    def __init__(self, reader: EventReader) -> None:
        self._reader = reader
        self.completion: Completion | None = None
        self.tokens = 0
        self._calls = 0

    def read(self, delta: Delta) -> list[Event]:
        events = self._reader.read(delta)
        self.tokens += len(delta.token_ids)
        self._calls += sum(isinstance(event, ToolStart) for event in events)
        self.completion = delta.completion or self.completion
        return events

    @property
    def thought_tokens(self) -> int:
        """The number of reasoning tokens, which come first."""
        return self._reader.thought_tokens

    def thought_in(self, delta: Delta) -> int:
        """Count the reasoning tokens of the delta read last: they are its first ones."""
        before = self.tokens - len(delta.token_ids)
        return min(max(self.thought_tokens - before, 0), len(delta.token_ids))

    @property
    def finish_reason(self) -> str | None:
        """The reason that a client sees for its end."""
        return None if self.completion is None else reason_with_calls(self.completion.finish_reason, self._calls)


def in_one_piece(completion: Completion) -> Delta:
    """Return a whole sample as one delta, with the completion's log-probabilities."""
    place = completion.request_id, completion.prompt_index, completion.index
    return Delta(*place, completion.text, completion.token_ids, NO_LOGPROBS, completion)


def logprob_entries(logprobs: Iterable[TokenLogprob], spell: Callable[[int], bytes]) -> Each:
    """Write log-probabilities in the form of chats. spell: gives a token's bytes."""

    def entry(token: TokenLogprob) -> dict[str, Any]:
        top = [_entry(spell(other), logprob) for other, logprob in token.top]
        return {**_entry(spell(token.token_id), token.logprob), "top_logprobs": top}

    return Each(entry, logprobs)


def _entry(piece: bytes, logprob: float) -> dict[str, Any]:
    return {"token": spelled(piece), "logprob": floored(logprob), "bytes": list(piece)}
