"""The table of benchmarks/needle*.json: needles found over a long text, by the format of keys and values."""

import math
from collections.abc import Sequence
from typing import Any

from gradus.bench.record.study import Part
from gradus.bench.statistics import wilson

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
        pairs = list(zip(hits(against), hits(row), strict=False))
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
    """Say at which of the judged lengths the goal is met."""
    all_hits = {(row["length"], row["kv_dtype"]): hits(row) for row in found["rows"]}
    judged = [length for length in JUDGED if (length, FEWER) in all_hits]
    if not judged:
        return f"The lengths that are judged, {' and '.join(f'{length:,}' for length in JUDGED)}, were not measured."
    lost = {length: _points_lost(all_hits[length, PLAIN], all_hits[length, FEWER]) for length in judged}
    missed = [length for length in judged if lost[length] > MUST_LOSE]
    where = " and ".join(f"{length:,}" for length in judged)
    goal = f"The goal, at most {MUST_LOSE:g} points lost at {where} tokens, is"
    return f"{goal} met." if not missed else f"{goal} missed at {' and '.join(f'{length:,}' for length in missed)}."


def _points_lost(plain: list[int], fewer: list[int]) -> float:
    """Points of needles found that are lost, over the questions that both were asked."""
    return 100 * (mean(plain[: len(fewer)]) - mean(fewer))


def hits(row: dict[str, Any]) -> list[int]:
    return [hit for haystack in row["found"] for hit in haystack]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
