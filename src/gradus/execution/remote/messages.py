"""The messages between an engine and a runner in another process, and the limits that both agree on.

    frame     length of the payload u32 (little-endian) · kind, one byte · payload

    runner   Hello                                     the limits of its model and its memory
    engine   Begin                                     the protocol's version
    engine   plans, each answered by one result, in order; between them, constraints to compile soon
    runner   Failed                                    why it ends the connection, in one line

Payloads are MessagePack, and decoding runs no code. Plans and what a step sampled are packed by `gradus.engine.wire`,
as for the ranks of one model. docs/design/remote.md specifies all of it for authors of other runners. No torch here.
"""

from typing import Annotated, Any

import msgspec

from gradus.engine.plan import Sampled
from gradus.engine.structured import Structured
from gradus.engine.wire import MAGIC, pack_sampled, unpack_sampled
from gradus.errors import GradusError

PROTOCOL = 1
PLANS = MAGIC.decode()
"""The version of packed plans."""

LARGEST = 64 << 20
"""Bytes of the longest payload. A step of 8,192 prompt tokens takes 32 KiB, its 20 log-probabilities each 1.4 MB."""
LARGEST_GREETING = 64 << 10
"""Bytes of the longest Hello, Begin, Failed, and of a frame's text."""
LONGEST_REASON = 1000
"""Characters of the reason in a Failed."""

HELLO, BEGIN, PREPARE, PLAN, RESULT, FAILED = b"H", b"B", b"C", b"P", b"R", b"F"
"""The kinds of frames: see docs/design/remote.md."""

MOST = 2**31 - 1


class MessageError(GradusError):
    """The other side has sent bytes that are no message, or a message that breaks the agreed limits."""


Count = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=MOST)]
Text = Annotated[str, msgspec.Meta(max_length=1000)]
Windows = Annotated[tuple[Positive | None, ...], msgspec.Meta(min_length=1, max_length=4096)]


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """The greeting of a runner. Counts are whole numbers below 2**31.

    protocol, plans: the versions of frames and of packed plans. program: for people, as are device, dtype ("bfloat16")
    and weight_bytes (of the model in the runner's memory). model: a fingerprint of the weights, "" if the runner has
    none; two different ones never go together.

    vocab_size: token ids are below it. context_length: positions of a sequence are below it. max_sequences: slots are
    below it. page_size: positions per page. pages: pages of the cache, numbered from 1, of all layer groups together.
    windows: of each layer group, the positions that a query sees; None: all. token_budget: most tokens per step; 0: no
    other limit than context_length for each sequence.

    drafts: most drafts per sequence and step that the runner finds and verifies; 0: none. adaptive: whether the engine
    chooses fewer where they do not pay. draft_rows: beyond this many rows, steps with drafts are slow.
    structured: whether it keeps to grammars. prompt_logprobs: whether it scores prompts.
    """

    protocol: Count
    plans: Text
    vocab_size: Positive
    context_length: Positive
    max_sequences: Annotated[int, msgspec.Meta(ge=1, le=65536)]
    page_size: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
    pages: Positive
    windows: Windows = (None,)
    token_budget: Count = 0
    drafts: Annotated[int, msgspec.Meta(ge=0, le=16)] = 0
    adaptive: bool = True
    draft_rows: Count = 256
    structured: bool = False
    prompt_logprobs: bool = False
    program: Text = ""
    model: Text = ""
    device: Text = "cpu"
    dtype: Text = ""
    weight_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0

    @property
    def step_tokens(self) -> int:
        """The most tokens of a step, drafts included."""
        return self.token_budget or self.max_sequences * self.context_length

    @property
    def longest_table(self) -> int:
        """The most pages of a slot's block table, in each layer group."""
        return -(-self.context_length // self.page_size)


class Begin(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's answer to Hello. program: for people."""

    protocol: Count
    program: Text = ""


class Ran(msgspec.Struct, array_like=True, frozen=True):
    """A step's result. rows: how many the model computed, padding included. sampled: a packed `Sampled`."""

    rows: Count
    sampled: msgspec.Raw


_encode = msgspec.msgpack.Encoder().encode
_hello = msgspec.msgpack.Decoder(Hello).decode
_begin = msgspec.msgpack.Decoder(Begin).decode
_structured = msgspec.msgpack.Decoder(Structured).decode
_ran = msgspec.msgpack.Decoder(Ran).decode

pack_greeting = _encode
"""Pack a Hello or a Begin."""

pack_structured = _encode
"""Pack the constraint of a PREPARE."""


def _decoded(decode: Any, payload: bytes, what: str) -> Any:
    try:
        return decode(payload)
    except (msgspec.MsgspecError, ValueError, GradusError, RecursionError) as error:
        raise MessageError(f"this is no {what}: {error}") from error


def unpack_hello(payload: bytes) -> Hello:
    """Raises MessageError."""
    return _decoded(_hello, payload, "greeting of a runner")


def unpack_begin(payload: bytes) -> Begin:
    """Raises MessageError."""
    return _decoded(_begin, payload, "answer of an engine")


def unpack_structured(payload: bytes) -> Structured:
    """Raises MessageError."""
    return _decoded(_structured, payload, "constraint")


def pack_result(rows: int, sampled: Sampled) -> bytes:
    return _encode(Ran(rows, msgspec.Raw(pack_sampled(sampled))))


def unpack_result(payload: bytes) -> tuple[int, Sampled]:
    """Return the number of rows, and what was sampled. Raises MessageError."""
    ran = _decoded(_ran, payload, "result")
    return ran.rows, _decoded(unpack_sampled, ran.sampled, "result")


def pack_failed(reason: str) -> bytes:
    """Make a reason one line that fits its frame."""
    return " ".join(reason.split())[:LONGEST_REASON].encode(errors="replace")


def unpack_failed(payload: bytes) -> str:
    """Read a reason, without control characters: it is printed to terminals and logs."""
    text = payload.decode(errors="replace")[:LONGEST_REASON]
    return "".join(each if each.isprintable() else " " for each in text)
