"""The table of benchmarks/needle*.json: needles found over a long text, by the format of keys and values."""

import math
from collections.abc import Sequence
from typing import Any

from gradus.bench.record.study import Part
from gradus.bench.statistics import paired, significant, wilson

NAMES = {"auto": "the model's type", "fp8": "`fp8`"}
PLAIN, FEWER = "auto", "fp8"
MUST_LOSE = 2.0  # points of needles found, at most
JUDGED = (32768, 131072)  # lengths, in tokens


def needle_parts(found: dict[str, Any], samples: str) -> list[Part]:
    """Describe the study, show its table, and say whether the goal is met."""
    hardware = found["hardware"]
    machine = hardware.get("gpu") or f"{hardware['processor']}, {hardware['cores']} cores"
    each = len(found["rows"][0]["found"])
    return [
        f"**{machine}**, {found['model']} in {found['dtype']}, {found['text']}, "
        f"haystacks per length: {each}, with {len(found['depths'])} needles each, "
        f"perplexity of the last {found['tail']} tokens. Commit {found['commit']}. {samples}",
        needle_rows(found),
        verdict(found),
    ]


def needle_rows(found: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """A row per length and format. Lost and gained: questions whose answer only the model's type, or only this format,
    gave. A run that was cut off has read fewer haystacks with its last format: only those are compared."""
    header = ["tokens", "positions", "keys and values", "found (95 %)", "lost, gained", "log p", "perplexity", "ratio"]
    plain = {row["length"]: row for row in found["rows"] if row["kv_dtype"] == PLAIN}
    rows = []
    for row in sorted(found["rows"], key=lambda row: row["length"]):
        against = plain[row["length"]]
        low, high = wilson(sum(hits(row)), len(hits(row)))
        share = f"{100 * mean(hits(row)):.1f} % ({100 * low:.0f} to {100 * high:.0f})"
        first = row is against
        pairs = _pairs(against, row)
        rows.append([
            f"{row['length']:,}",
            row["rope"],
            NAMES[row["kv_dtype"]],
            share,
            "" if first else f"{pairs.count((1, 0))}, {pairs.count((0, 1))}",
            f"{mean([value for each in row['log_p'] for value in each]):.3f}",
            f"{math.exp(mean(row['nll'])):.2f}",
            "" if first else f"{math.exp(mean(row['nll']) - mean(against['nll'][: len(row['nll'])])):.4f}",
        ])  # fmt: skip
    return header, rows


def verdict(found: dict[str, Any]) -> str:
    """Say what was lost at the judged lengths, how sure that is, and whether it meets the goal."""
    of = {(row["length"], row["kv_dtype"]): row for row in found["rows"]}
    judged = [length for length in JUDGED if (length, FEWER) in of]
    if not judged:
        return f"The lengths that are judged, {' and '.join(f'{length:,}' for length in JUDGED)}, were not measured."
    said = [_judged(length, of[length, PLAIN], of[length, FEWER]) for length in judged]
    return f"The goal is at most {MUST_LOSE:g} points of needles lost. {' '.join(said)}"


def _judged(length: int, plain: dict[str, Any], fewer: dict[str, Any]) -> str:
    """One length's loss in points, its interval, and what follows."""
    pairs = _pairs(plain, fewer)
    lost, gained = pairs.count((1, 0)), pairs.count((0, 1))
    low, high = (100 * end for end in paired(lost, gained, len(pairs)))
    points = 100 * (lost - gained) / len(pairs)
    if low <= MUST_LOSE < high:
        # an interval narrows with the root of its questions
        needed = significant(len(pairs) * ((high - low) / 2 / MUST_LOSE) ** 2, 2)
        judgment = f"open, since {len(pairs)} questions cannot show {MUST_LOSE:g} points; about {needed:,.0f} would"
    else:
        judgment = "met" if high <= MUST_LOSE else "missed"
    read, all_of = len(fewer["found"]), len(plain["found"])
    part = "" if read == all_of else f", cut off after {read} of {all_of} haystacks"
    return f"At {length:,} tokens{part}: {points:.1f} points (95 %: {low:.1f} to {high:.1f}), {judgment}."


def _pairs(plain: dict[str, Any], fewer: dict[str, Any]) -> list[tuple[int, int]]:
    """Both formats' answers to the questions that both were asked."""
    return list(zip(hits(plain), hits(fewer), strict=False))


def hits(row: dict[str, Any]) -> list[int]:
    return [hit for haystack in row["found"] for hit in haystack]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
