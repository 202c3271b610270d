"""Plans and their results as bytes: for workers in other processes, and for recordings. No torch here.

Columns of numbers and token ids travel as they lie in memory. The rest is MessagePack, written from the types
themselves: an admission's request is encoded whole, so a field that a request gains travels with the others. Token ids
take 4 bytes each, and a prompt's go only once: an admission has all that its sequence knows, so a span that reads some
of them in the same plan refers to it. Objects that only commit reads (sequences) stay behind: an unpacked plan can be
run, not committed.
"""

from collections.abc import Mapping
from dataclasses import replace

import msgspec
import numpy as np

from gradus.cache import TableChange
from gradus.engine.plan import NO_DRAFTS, Admission, Column, Decodes, Plan, Sampled, Scores, Span
from gradus.engine.request import Request, packed_ids, unpacked_ids

MAGIC = b"gplan6"


class PackError(ValueError):
    """Bytes that are not a packed plan."""


class PackedSpan(msgspec.Struct, array_like=True, gc=False):
    """A span. tokens: its own; None for the `count` from `start` on that its sequence is admitted with in the plan."""

    slot: int
    start: int
    count: int
    tokens: bytes | None
    logits: int
    pages: TableChange | None
    scores: Scores | None


class PackedAdmission(msgspec.Struct, array_like=True, gc=False):
    """An admission. request: its prompt in `packed` alone. tokens: those known after the prompt, or all if they do not
    begin with it, as in tests that make them up."""

    slot: int
    index: int
    request: Request
    follows: bool
    tokens: bytes


class PackedPlan(msgspec.Struct, array_like=True, gc=False):
    """A plan. columns: of its decodes, int64 each: slots, starts, limits and, where some are verified, drafts."""

    columns: tuple[bytes, bytes, bytes, bytes]
    pages: tuple[tuple[int, TableChange], ...]
    spans: tuple[PackedSpan, ...]
    admissions: tuple[PackedAdmission, ...]
    wiped: tuple[int, ...]


class PackedSampled(msgspec.Struct, array_like=True, gc=False):
    """The result of a step. tokens: int64."""

    tokens: bytes
    counts: tuple[int, ...]
    logprobs: tuple[bytes, ...]
    width: int
    seconds: float
    usual: bool
    faults: dict[int, str]
    scores: tuple[tuple[bytes, ...], ...]


_encode = msgspec.msgpack.Encoder().encode
_plan = msgspec.msgpack.Decoder(PackedPlan)
_sampled = msgspec.msgpack.Decoder(PackedSampled)


def pack(plan: Plan) -> bytes:
    """Pack the plan without the fields that only commit reads. `unpack` returns an equal one."""
    decodes = plan.decodes
    admitted = {each.slot: each.tokens for each in plan.admissions}
    packed = PackedPlan(
        columns=(_bytes(decodes.slots), _bytes(decodes.starts), _bytes(decodes.limits), _bytes(decodes.drafts)),
        pages=tuple(decodes.pages),
        spans=tuple([_packed_span(span, admitted) for span in plan.spans]),
        admissions=tuple([_packed_admission(admission) for admission in plan.admissions]),
        wiped=plan.wiped,
    )
    return MAGIC + _encode(packed)


def unpack(packed: bytes) -> Plan:
    """Unpack a plan. Raises PackError for bytes that `pack` did not make."""
    if packed[: len(MAGIC)] != MAGIC:
        raise PackError("this is no packed plan")
    try:
        return _unpacked(_plan.decode(memoryview(packed)[len(MAGIC) :]))
    except (msgspec.MsgspecError, ValueError, LookupError) as error:
        raise PackError(f"this is no packed plan: {error}") from error


def _unpacked(packed: PackedPlan) -> Plan:
    slots, starts, limits, drafts = map(_column, packed.columns)
    admissions = [_admission(each) for each in packed.admissions]
    admitted = {each.slot: each.tokens for each in admissions}
    return Plan(
        spans=[_span(each, admitted) for each in packed.spans],
        admissions=admissions,
        wiped=packed.wiped,
        decodes=Decodes(slots, starts, limits, packed.pages, drafts=drafts if len(drafts) else NO_DRAFTS),
    )


# -- spans and admissions ----------------------------------------------------------------------------------------------


def _packed_span(span: Span, admitted: Mapping[int, tuple[int, ...]]) -> PackedSpan:
    count = len(span.tokens)
    refers = span.start + count <= len(admitted.get(span.slot, ()))
    tokens = None if refers else packed_ids(span.tokens)
    return PackedSpan(span.slot, span.start, count, tokens, span.logits, span.pages, span.scores)


def _span(packed: PackedSpan, admitted: Mapping[int, tuple[int, ...]]) -> Span:
    start, tokens = packed.start, packed.tokens
    own = admitted[packed.slot][start : start + packed.count] if tokens is None else unpacked_ids(tokens)
    return Span(None, packed.slot, start, own, packed.logits, packed.pages, packed.scores)


def _packed_admission(admission: Admission) -> PackedAdmission:
    request, tokens = admission.request, admission.tokens
    prompt = request.prompt
    follows = tokens is prompt or tokens[: len(prompt)] == prompt
    rest = packed_ids(tokens[len(prompt) :] if follows else tokens)
    bare = replace(request, prompt=(), packed=request.packed or packed_ids(prompt))
    return PackedAdmission(admission.slot, admission.index, bare, follows, rest)


def _admission(packed: PackedAdmission) -> Admission:
    prompt, tokens = unpacked_ids(packed.request.packed), unpacked_ids(packed.tokens)
    request = replace(packed.request, prompt=prompt, packed=b"")
    return Admission(packed.slot, request, packed.index, prompt + tokens if packed.follows else tokens)


def _bytes(column: Column) -> bytes:
    return column.astype("<i8", copy=False).tobytes()


def _column(packed: bytes) -> Column:
    return np.frombuffer(packed, "<i8").astype(np.int64)


# -- the result of a step ----------------------------------------------------------------------------------------------


def pack_sampled(sampled: Sampled) -> bytes:
    """Pack the result of a step."""
    return _encode(
        PackedSampled(
            tokens=_bytes(sampled.tokens),
            counts=tuple(sampled.counts),
            logprobs=tuple(sampled.logprobs),
            width=sampled.width,
            seconds=sampled.seconds,
            usual=sampled.usual,
            faults=dict(sampled.faults),
            scores=tuple(sampled.scores),
        )
    )


def unpack_sampled(packed: bytes) -> Sampled:
    """Unpack what `pack_sampled` has packed. Raises msgspec.MsgspecError for other bytes."""
    back = _sampled.decode(packed)
    tokens = _column(back.tokens)
    return Sampled(tokens, back.counts, back.logprobs, back.width, back.seconds, back.usual, back.faults, back.scores)
