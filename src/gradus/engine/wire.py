"""Plans and their results as bytes: for workers in other processes, and for recordings. No torch here.

Columns of numbers and token ids travel as they lie in memory. The rest is MessagePack, written from the types
themselves: requests, columns and results are encoded whole, so a field that one gains travels with the others. Token
ids take 4 bytes each, and a prompt's go only once: an admission has all that its sequence knows, so a span that reads
some of them in the same plan refers to it. Objects that only commit reads (sequences) stay behind: an unpacked plan can
be run, not committed.
"""

import struct
from collections.abc import Mapping
from dataclasses import replace

import msgspec
import numpy as np

from gradus.cache import TableChange
from gradus.engine.plan import Admission, Column, Decodes, Plan, Sampled, Scores, Span
from gradus.engine.request import Request, packed_ids, unpacked_ids
from gradus.errors import RequestError

MAGIC = b"gplan7"


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
    """An admission. request: its prompt in `packed` alone. tokens: those known after the prompt."""

    slot: int
    index: int
    request: Request
    tokens: bytes


class PackedPlan(msgspec.Struct, array_like=True, gc=False):
    decodes: Decodes
    spans: tuple[PackedSpan, ...]
    admissions: tuple[PackedAdmission, ...]
    wiped: tuple[int, ...]


def _bytes(column: Column) -> bytes:
    return column.astype("<i8", copy=False).tobytes()


def _column(_: type, packed: bytes) -> Column:
    return np.frombuffer(packed, "<i8").astype(np.int64)


_encode = msgspec.msgpack.Encoder(enc_hook=_bytes).encode
_plan = msgspec.msgpack.Decoder(PackedPlan, dec_hook=_column)

pack_sampled = _encode
"""Pack the result of a step."""

unpack_sampled = msgspec.msgpack.Decoder(Sampled, dec_hook=_column).decode
"""Unpack what `pack_sampled` has packed. Raises msgspec.MsgspecError for other bytes."""


def pack(plan: Plan) -> bytes:
    """Pack the plan without the fields that only commit reads. `unpack` returns an equal one."""
    admitted, decodes = {each.slot: each.tokens for each in plan.admissions}, plan.decodes
    packed = PackedPlan(
        Decodes(decodes.slots, decodes.starts, decodes.limits, decodes.pages, decodes.drafts),
        tuple([_packed_span(span, admitted) for span in plan.spans]),
        tuple([_packed_admission(admission) for admission in plan.admissions]),
        plan.wiped,
    )
    return MAGIC + _encode(packed)


def unpack(packed: bytes) -> Plan:
    """Unpack a plan. Raises PackError for bytes that `pack` did not make."""
    if packed[: len(MAGIC)] != MAGIC:
        raise PackError("this is no packed plan")
    try:
        back = _plan.decode(memoryview(packed)[len(MAGIC) :])
        admissions = [_admission(each) for each in back.admissions]
        admitted = {each.slot: each.tokens for each in admissions}
        return Plan([_span(each, admitted) for each in back.spans], admissions, back.wiped, back.decodes)
    except (msgspec.MsgspecError, ValueError, LookupError, struct.error, RecursionError, RequestError) as error:
        raise PackError(f"this is no packed plan: {error}") from error


# -- spans and admissions ----------------------------------------------------------------------------------------------


def _packed_span(span: Span, admitted: Mapping[int, tuple[int, ...]]) -> PackedSpan:
    count = len(span.tokens)
    refers = span.start + count <= len(admitted.get(span.slot, ()))
    tokens = None if refers else packed_ids(span.tokens)
    return PackedSpan(span.slot, span.start, count, tokens, span.logits, span.pages, span.scores)


def _span(packed: PackedSpan, admitted: Mapping[int, tuple[int, ...]]) -> Span:
    start, tokens = packed.start, packed.tokens
    if min(packed.slot, start, packed.count, packed.logits) < 0:
        raise ValueError(f"a span of slot {packed.slot} has a negative number")
    own = admitted[packed.slot][start : start + packed.count] if tokens is None else unpacked_ids(tokens)
    if len(own) != packed.count:
        raise ValueError(f"a span of slot {packed.slot} has {len(own)} tokens, not the {packed.count} that it counts")
    return Span(None, packed.slot, start, own, packed.logits, packed.pages, packed.scores)


def _packed_admission(admission: Admission) -> PackedAdmission:
    request, tokens = admission.request, admission.tokens
    prompt = request.prompt
    assert tokens is prompt or tokens[: len(prompt)] == prompt
    bare = replace(request, prompt=(), packed=request.packed or packed_ids(prompt))
    return PackedAdmission(admission.slot, admission.index, bare, packed_ids(tokens[len(prompt) :]))


def _admission(packed: PackedAdmission) -> Admission:
    prompt = unpacked_ids(packed.request.packed)
    request = replace(packed.request, prompt=prompt, packed=b"")
    return Admission(packed.slot, request, packed.index, prompt + unpacked_ids(packed.tokens))
