"""Bodies of /v1/messages and /v1/messages/count_tokens, checked as far as possible without the engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradus.engine.request import SamplingParams
from gradus.engine.structured import Structured
from gradus.loading.chat import EFFORTS
from gradus.server.api.anthropic.answer import MessageEncoder
from gradus.server.api.anthropic.conversation import read_conversation
from gradus.server.api.ask import Ask, Chat, Encoder
from gradus.server.api.fields import Fields, refuse
from gradus.text.front_end import FrontEnd

if TYPE_CHECKING:
    from gradus.server.results import Stream

MOST_TOKENS = 2**31 - 1  # clients ask for the most of the largest model; it is cut to what the context has room for

NO_EFFECT = (
    "model",  # the one model answers to any name
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

    def encoder(self, stream: "Stream") -> Encoder:
        (request,) = stream.requests.values()
        return MessageEncoder(self.ask, request, self.front_end)

    @classmethod
    def parse(cls, body: Any, front_end: FrontEnd, stock: Mapping[str, float], *, strict: bool = False) -> "Messages":
        """Check parsed JSON. stock: values of sampling fields that the body leaves out. strict: as in `Fields`.

        Raises RequestError naming the field, its limit and the value given.
        """
        fields = Fields(body, strict=strict)
        fields.some(*NO_EFFECT)
        structured = _format(fields)
        params = SamplingParams(
            max_tokens=_max_tokens(fields),
            stop=fields.list("stop_sequences"),
            structured=structured,
            **{**stock, **fields.some("temperature", "top_p", "top_k")},
        )
        chat = read_chat(fields, front_end, thinks=structured is None)
        stream = fields.flag("stream")
        return cls(Ask(chat, params, cut=True), stream, front_end, fields.ignored())


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


def read_chat(fields: Fields, front_end: FrontEnd, *, thinks: bool = True) -> Chat:
    """Read the conversation, its tools and its template's settings. thinks: whether the model may think at all.

    Raises RequestError, also for a model that cannot chat or call tools.
    """
    messages = read_conversation(fields.get("system"), fields.list("messages"))
    turn = front_end.dialect.turn(fields.get("tools"), fields.get("tool_choice"))
    return Chat(messages, turn, _settings(fields, thinks))


def _settings(fields: Fields, thinks: bool) -> dict[str, Any]:
    """Read what the template is to know.

    Without `thinking` the model does not think, as in Anthropic's API: programs that never asked for thoughts take the
    first block for the answer. Nor does it think before JSON, because the schema constrains every token.
    """
    thinking = fields.object("thinking")
    kind = thinking.get("type", "disabled")
    if kind not in ("enabled", "adaptive", "disabled"):
        refuse("thinking.type", '"enabled", "adaptive" or "disabled"', kind)
    effort = fields.object("output_config").get("effort")
    settings: dict[str, Any] = {"enable_thinking": thinks and kind != "disabled"}
    return settings | ({"reasoning_effort": effort} if effort in EFFORTS else {})


def read_count(body: Any, front_end: FrontEnd) -> Chat:
    """Check a body of /v1/messages/count_tokens: what of a request makes its prompt."""
    fields = Fields(body)
    return read_chat(fields, front_end, thinks=_format(fields) is None)
