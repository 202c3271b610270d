"""Plans and their results as bytes: for workers in other processes, and for recordings. No torch here.

A plan is mostly columns of numbers, packed as they are. Rare named values (an admission's parameters) are JSON. Objects
that only commit reads (sequences) stay behind: an unpacked plan can be run, not committed.
"""

import io
import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from gradus.cache import TableChange
from gradus.engine.plan import NO_DRAFTS, Admission, Decodes, Plan, Sampled, Scores, Span
from gradus.engine.request import Request, SamplingParams, SchedulingParams

MAGIC = b"gplan4"
COUNTS = struct.Struct("<7I")  # decodes, their columns, spans, numbers of spans, numbers of changes, wiped pages, bytes
# of JSON


class PackError(ValueError):
    """Bytes that are not a packed plan."""


def pack(plan: Plan) -> bytes:
    """Pack the plan without the fields that only commit reads. `unpack` returns an equal one."""
    decodes = plan.decodes
    spans = list(_span_numbers(plan.spans))
    changes = list(_change_numbers(decodes.pages))
    named = json.dumps([_admission(each) for each in plan.admissions]).encode()
    columns = [decodes.slots, decodes.starts, decodes.limits, *([decodes.drafts] if len(decodes.drafts) else [])]
    counts = len(decodes), len(columns), len(plan.spans), len(spans), len(changes), len(plan.wiped)
    numbers = np.concatenate([*columns, spans, changes, plan.wiped])
    return MAGIC + COUNTS.pack(*counts, len(named)) + numbers.astype("<i8").tobytes() + named


def unpack(packed: bytes) -> Plan:
    """Unpack a plan. Raises PackError for bytes that `pack` did not make."""
    head = len(MAGIC) + COUNTS.size
    if packed[: len(MAGIC)] != MAGIC or len(packed) < head:
        raise PackError("this is no packed plan")
    decodes, width, spans, span_numbers, change_numbers, wiped, named = COUNTS.unpack(packed[len(MAGIC) : head])
    numbers = width * decodes + span_numbers + change_numbers + wiped
    if len(packed) != head + 8 * numbers + named:
        raise PackError(f"a packed plan of {head + 8 * numbers + named} bytes has {len(packed)}")
    columns = np.frombuffer(packed, "<i8", numbers, head).astype(np.int64)
    reader = iter(columns[width * decodes :].tolist())
    slots, starts, limits, *drafts = columns[: width * decodes].reshape(width, decodes)
    plan = Plan([_span(reader) for _ in range(spans)])
    plan.decodes = Decodes(slots, starts, limits, _changes(reader), drafts=drafts[0] if drafts else NO_DRAFTS)
    plan.wiped = tuple(reader)
    plan.admissions = [_admitted(each) for each in json.loads(packed[head + 8 * numbers :])]
    return plan


# -- block tables: whether something changed, entries kept, groups, entries each, pages --------------------------------


def _change(change: TableChange | None) -> Iterator[int]:
    if change is None:
        yield 0
        return
    yield from (1, change.kept, len(change.pages), len(change.pages[0]))
    for pages in change.pages:
        yield from pages


def _changed(reader: Iterator[int]) -> TableChange | None:
    if not next(reader):
        return None
    kept, groups, entries = (next(reader) for _ in range(3))
    return TableChange(kept, tuple(tuple(next(reader) for _ in range(entries)) for _ in range(groups)))


def _change_numbers(pages: Iterable[tuple[int, TableChange]]) -> Iterator[int]:
    pages = list(pages)
    yield len(pages)
    for slot, change in pages:
        yield slot
        yield from _change(change)


def _changes(reader: Iterator[int]) -> list[tuple[int, TableChange]]:
    found = [(next(reader), _changed(reader)) for _ in range(next(reader))]
    return [(slot, change) for slot, change in found if change is not None]


# -- spans: slot, start, logits, number of tokens, tokens, block tables, scores ----------------------------------------


def _span_numbers(spans: Iterable[Span]) -> Iterator[int]:
    for span in spans:
        yield from (span.slot, span.start, span.logits, len(span.tokens), *span.tokens)
        yield from _change(span.pages)
        yield from (0,) if span.scores is None else (len(span.scores.targets), *span.scores.targets, span.scores.top)


def _span(reader: Iterator[int]) -> Span:
    slot, start, logits, count = (next(reader) for _ in range(4))
    tokens = tuple(next(reader) for _ in range(count))
    return Span(None, slot, start, tokens, logits, _changed(reader), _scores(reader))


def _scores(reader: Iterator[int]) -> Scores | None:
    targets = tuple(next(reader) for _ in range(next(reader)))
    return Scores(targets, next(reader)) if targets else None


# -- admissions --------------------------------------------------------------------------------------------------------


def _admission(admission: Admission) -> dict[str, Any]:
    request = admission.request
    return {
        "slot": admission.slot,
        "index": admission.index,
        "tokens": admission.tokens,
        "request": {
            **{name: getattr(request, name) for name in ("id", "prompt", "max_tokens", "seed")},
            "stop_ids": sorted(request.stop_ids),
            "params": asdict(request.params),
            "scheduling": asdict(request.scheduling),
        },
    }


def _admitted(named: dict[str, Any]) -> Admission:
    request = named["request"]
    made = Request(
        **{name: request[name] for name in ("id", "max_tokens", "seed")},
        prompt=tuple(request["prompt"]),
        params=SamplingParams(**request["params"]),
        stop_ids=frozenset(request["stop_ids"]),
        scheduling=SchedulingParams(**request["scheduling"]),
    )
    return Admission(named["slot"], made, named["index"], tuple(named["tokens"]))


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
