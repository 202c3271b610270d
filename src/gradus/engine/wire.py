"""Plans and their results as bytes: for workers in other processes, and for recordings. No torch here.

A plan is mostly columns of numbers, packed as they are. Rare named values (an admission's parameters) are JSON. Token
ids take 4 bytes each, and a prompt's go only once: an admission has all that its sequence knows, so the span that reads
some of them in the same plan refers to it. Objects that only commit reads (sequences) stay behind: an unpacked plan can
be run, not committed.
"""

import io
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import chain
from typing import Any

import numpy as np

from gradus.cache import TableChange
from gradus.engine.plan import NO_DRAFTS, Admission, Decodes, Plan, Sampled, Scores, Span
from gradus.engine.request import Request, SamplingParams, SchedulingParams, packed_ids, unpacked_ids

MAGIC = b"gplan5"
COUNTS = struct.Struct("<8I")
"""Counts decodes, their columns, spans, numbers of spans, numbers of changes, wiped pages, tokens and bytes of JSON."""

PARAMS, SCHEDULING = ([each.name for each in fields(kind)] for kind in (SamplingParams, SchedulingParams))


class PackError(ValueError):
    """Bytes that are not a packed plan."""


def pack(plan: Plan) -> bytes:
    """Pack the plan without the fields that only commit reads. `unpack` returns an equal one."""
    decodes = plan.decodes
    admitted = {each.slot: each.tokens for each in plan.admissions}
    spans, changes = _span_numbers(plan.spans, admitted), _change_numbers(decodes.pages)
    tokens = b"".join(_tokens(plan, admitted))
    named = json.dumps([_admission(each) for each in plan.admissions]).encode() if plan.admissions else b"[]"
    columns = [decodes.slots, decodes.starts, decodes.limits, *([decodes.drafts] if len(decodes.drafts) else [])]
    counts = len(decodes), len(columns), len(plan.spans), len(spans), len(changes), len(plan.wiped)
    rest = [*spans, *changes, *plan.wiped]
    head = MAGIC + COUNTS.pack(*counts, len(tokens) // 4, len(named))
    packed = [column.astype("<i8", copy=False).tobytes() for column in columns]
    return b"".join([head, *packed, struct.pack(f"<{len(rest)}q", *rest), tokens, named])


def unpack(packed: bytes) -> Plan:
    """Unpack a plan. Raises PackError for bytes that `pack` did not make."""
    head = len(MAGIC) + COUNTS.size
    if packed[: len(MAGIC)] != MAGIC or len(packed) < head:
        raise PackError("this is no packed plan")
    decodes, width, spans, span_numbers, change_numbers, wiped, ids, named = COUNTS.unpack(packed[len(MAGIC) : head])
    numbers = width * decodes + span_numbers + change_numbers + wiped
    end = head + 8 * numbers
    if len(packed) != end + 4 * ids + named:
        raise PackError(f"a packed plan of {end + 4 * ids + named} bytes has {len(packed)}")
    columns = np.frombuffer(packed, "<i8", numbers, head).astype(np.int64)
    tokens = _Tokens(unpacked_ids(packed[end : end + 4 * ids]))
    reader = iter(columns[width * decodes :].tolist())
    slots, starts, limits, *drafts = columns[: width * decodes].reshape(width, decodes)
    plan = Plan()
    plan.admissions = [_admitted(each, tokens) for each in json.loads(packed[end + 4 * ids :])]
    admitted = {each.slot: each.tokens for each in plan.admissions}
    plan.spans = [_span(reader, admitted, tokens) for _ in range(spans)]
    plan.decodes = Decodes(slots, starts, limits, _changes(reader), drafts=drafts[0] if drafts else NO_DRAFTS)
    plan.wiped = tuple(reader)
    return plan


# -- token ids: those of the admissions, then those of the other spans -------------------------------------------------


def _tokens(plan: Plan, admitted: dict[int, tuple[int, ...]]) -> Iterator[bytes]:
    for admission in plan.admissions:
        tokens, request = admission.tokens, admission.request
        prompt = request.packed or packed_ids(request.prompt)
        if _begins(admission):
            yield prompt
            yield packed_ids(tokens[len(request.prompt) :])
        else:
            yield packed_ids(tokens)
            yield prompt
    for span in plan.spans:
        if not _refers(span, admitted):
            yield packed_ids(span.tokens)


class _Tokens:
    """Reads the token ids in their order."""

    def __init__(self, ids: tuple[int, ...]) -> None:
        self._ids, self._taken = ids, 0

    def take(self, count: int) -> tuple[int, ...]:
        start, self._taken = self._taken, self._taken + count
        return self._ids[start : self._taken]


def _refers(span: Span, admitted: dict[int, tuple[int, ...]]) -> bool:
    """Whether the span's tokens are among those that its sequence is admitted with in the same plan."""
    known = admitted.get(span.slot, ())
    return span.start + len(span.tokens) <= len(known)


def _begins(admission: Admission) -> bool:
    """Whether the tokens of a sequence begin with its prompt, as they do unless a test makes them up."""
    tokens, prompt = admission.tokens, admission.request.prompt
    return tokens is prompt or tokens[: len(prompt)] == prompt


# -- block tables: whether something changed, entries kept, groups, entries each, pages --------------------------------


def _change(change: TableChange | None) -> list[int]:
    if change is None:
        return [0]
    return [1, change.kept, len(change.pages), len(change.pages[0]), *chain.from_iterable(change.pages)]


def _changed(reader: Iterator[int]) -> TableChange | None:
    if not next(reader):
        return None
    kept, groups, entries = (next(reader) for _ in range(3))
    return TableChange(kept, tuple(tuple(next(reader) for _ in range(entries)) for _ in range(groups)))


def _change_numbers(pages: Sequence[tuple[int, TableChange]]) -> list[int]:
    numbers = [len(pages)]
    for slot, change in pages:
        numbers += [slot, *_change(change)]
    return numbers


def _changes(reader: Iterator[int]) -> list[tuple[int, TableChange]]:
    found = [(next(reader), _changed(reader)) for _ in range(next(reader))]
    return [(slot, change) for slot, change in found if change is not None]


# -- spans: slot, start, logits, number of tokens, block tables, scores ------------------------------------------------


def _span_numbers(spans: Sequence[Span], admitted: dict[int, tuple[int, ...]]) -> list[int]:
    numbers: list[int] = []
    for span in spans:
        numbers += [span.slot, span.start, span.logits, len(span.tokens), int(_refers(span, admitted))]
        numbers += _change(span.pages)
        numbers += [0] if span.scores is None else [len(span.scores.targets), *span.scores.targets, span.scores.top]
    return numbers


def _span(reader: Iterator[int], admitted: dict[int, tuple[int, ...]], tokens: _Tokens) -> Span:
    slot, start, logits, count, refers = (next(reader) for _ in range(5))
    own = admitted[slot][start : start + count] if refers else tokens.take(count)
    return Span(None, slot, start, own, logits, _changed(reader), _scores(reader))


def _scores(reader: Iterator[int]) -> Scores | None:
    targets = tuple(next(reader) for _ in range(next(reader)))
    return Scores(targets, next(reader)) if targets else None


# -- admissions --------------------------------------------------------------------------------------------------------


def _admission(admission: Admission) -> dict[str, Any]:
    request = admission.request
    return {
        "slot": admission.slot,
        "index": admission.index,
        "tokens": len(admission.tokens),
        "prompt": len(request.prompt),
        "begins": _begins(admission),
        "request": {
            **{name: getattr(request, name) for name in ("id", "max_tokens", "seed")},
            "stop_ids": sorted(request.stop_ids),
            "params": {name: getattr(request.params, name) for name in PARAMS},
            "scheduling": {name: getattr(request.scheduling, name) for name in SCHEDULING},
        },
    }


def _admitted(named: dict[str, Any], ids: _Tokens) -> Admission:
    request, tokens = named["request"], ids.take(named["tokens"])
    prompt = tokens[: named["prompt"]] if named["begins"] else ids.take(named["prompt"])
    made = Request(
        **{name: request[name] for name in ("id", "max_tokens", "seed")},
        prompt=prompt,
        params=SamplingParams(**request["params"]),
        stop_ids=frozenset(request["stop_ids"]),
        scheduling=SchedulingParams(**request["scheduling"]),
    )
    return Admission(named["slot"], made, named["index"], tokens)


# -- what a step sampled -----------------------------------------------------------------------------------------------

PARTS = struct.Struct("<2I")  # bytes of JSON, tokens


def pack_sampled(sampled: Sampled) -> bytes:
    """Pack the result of a step without drafts."""
    named = {
        "counts": list(sampled.counts),
        "faults": list(sampled.faults.items()),
        "logprobs": [len(row) for row in sampled.logprobs],
        "scores": [[len(row) for row in span] for span in sampled.scores],
    }
    head = json.dumps(named).encode()
    rows = [*sampled.logprobs, *(row for span in sampled.scores for row in span)]
    return b"".join([PARTS.pack(len(head), len(sampled.tokens)), head, sampled.tokens.astype("<i8").tobytes(), *rows])


def unpack_sampled(packed: bytes) -> Sampled:
    """Unpack what `pack_sampled` has packed."""
    named_bytes, count = PARTS.unpack_from(packed)
    start = PARTS.size + named_bytes
    named = json.loads(packed[PARTS.size : start])
    tokens = np.frombuffer(packed, "<i8", count, start).astype(np.int64)
    rest = io.BytesIO(packed[start + 8 * count :])
    logprobs = [rest.read(length) for length in named["logprobs"]]
    scores = [tuple(rest.read(length) for length in span) for span in named["scores"]]
    return Sampled(tokens, named["counts"], logprobs, faults=dict(named["faults"]), scores=scores)
