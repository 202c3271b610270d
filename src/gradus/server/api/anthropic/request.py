"""Bodies of /v1/messages and /v1/messages/count_tokens, checked as far as possible without the engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradus.engine.request import SamplingParams
from gradus.engine.structured import Structured
from gradus.loading.chat import EFFORTS
from gradus.server.api import openai
from gradus.server.api.anthropic.answer import MessageEncoder
from gradus.server.api.anthropic.conversation import read_conversation
from gradus.server.api.fields import Fields, refuse
from gradus.server.api.turns import read_turn, thinking_settings
from gradus.server.exchange import Ask, Chat, Encoder, Served
from gradus.server.results import Stream
from gradus.text.front_end import FrontEnd

MOST_TOKENS = 2**31 - 1  # clients ask for the largest model's maximum; it is reduced to the room in the context

NO_EFFECT = (
    "model",  # checked before
    "metadata",
    "service_tier",
    "cache_control",  # all prompts are cached
    "context_management",
)
"""Fields that cannot change an answer here."""


@dataclass(frozen=True, slots=True)
class Messages:
    """A checked body of /v1/messages."""

    ask: Ask
    stream: bool
    front_end: FrontEnd
    ignored: tuple[str, ...] = ()

    @property
    def asks(self) -> Sequence[Ask]:
        return (self.ask,)

    def encoder(self, stream: Stream) -> Encoder:
        (request,) = stream.requests.values()
        return MessageEncoder(self.ask, request, self.front_end)

    @classmethod
    def parse(cls, body: Any, served: Served) -> "Messages":
        """Check parsed JSON. Raises RequestError naming the field, or Unavailable while the model loads."""
        fields = Fields(body, strict=served.config.strict_fields)
        fields.some(*NO_EFFECT)
        front_end, stock = served.front_end, openai.stock(served)
        params = SamplingParams(
            max_tokens=_max_tokens(fields),
            stop=fields.list("stop_sequences"),
            structured=_format(fields),
            **{**stock, **fields.some("temperature", "top_p", "top_k")},
        )
        chat, without_tools = read_chat(fields, front_end)
        stream, ignored = fields.flag("stream"), fields.ignored()
        return cls(Ask(chat, params, cut=True), stream, front_end, ("tools", *ignored) if without_tools else ignored)


def _max_tokens(fields: Fields) -> int:
    most = fields.whole("max_tokens", 1, MOST_TOKENS)
    return most if most is not None else refuse("max_tokens", "given: a whole number, 1 or more", None)


def _format(fields: Fields) -> Structured | None:
    """Read the form of the answer, from `output_config.format` or its older place, `output_format`."""
    given = fields.object("output_config").get("format") or fields.get("output_format")
    if given is None:
        return None
    if not isinstance(given, Mapping) or given.get("type") != "json_schema" or given.get("schema") is None:
        refuse("output_config.format", '{"type": "json_schema", "schema": …}', given)
    return Structured(json_schema=given["schema"])


def read_chat(fields: Fields, front_end: FrontEnd) -> tuple[Chat, bool]:
    """Read the conversation, its tools and its template settings. Also returns whether tools had to be left out.

    Raises RequestError, also if the model has no chat template or cannot honor this choice of tools.
    """
    messages = read_conversation(fields.get("system"), fields.list("messages"))
    turn, left_out = read_turn(front_end.dialect, fields.get("tools"), fields.get("tool_choice"))
    settings = _settings(fields, front_end, messages)
    if messages[-1]["role"] == "assistant":  # the client has begun the answer
        settings["continue_final"] = True
    return Chat(messages, turn, settings), left_out


def _settings(fields: Fields, front_end: FrontEnd, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Read the settings for the template."""
    effort = fields.object("output_config").get("effort")
    settings: dict[str, Any] = thinking_settings(front_end, _thinks(fields.object("thinking"), messages))
    return settings | ({"reasoning_effort": effort} if effort in EFFORTS else {})


def _thinks(thinking: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> bool:
    """Read whether the model thinks before it answers.

    It thinks only on request: programs that never asked for thoughts take the first block for the answer. Every type
    added to the protocol until now is another way of asking.
    """
    kind = thinking.get("type", "disabled")
    if not isinstance(kind, str):
        refuse("thinking.type", '"enabled", "adaptive", "between_tools" or "disabled"', kind)
    if kind == "between_tools":
        return messages[-1]["role"] == "tool"
    return kind != "disabled"


def counted(body: Any, served: Served) -> dict[str, Any]:
    """Answer /v1/messages/count_tokens: read the fields that make up the prompt, and count its tokens."""
    chat, _ = read_chat(Fields(body), served.front_end)
    return {"input_tokens": len(chat.tokens(served.front_end))}
