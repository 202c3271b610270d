"""The numbers of loads as tables for people, and as JSON."""

import math
from collections.abc import Sequence
from typing import Any

from gradus.load.answer import Answer
from gradus.load.measurements import METRICS
from gradus.load.search import Found, knee
from gradus.load.settings import LoadSettings
from gradus.load.trials import Trial

Table = tuple[list[str], list[list[str]]]

MOST_ROWS = 65  # requests with a row each


def requests_table(trial: Trial) -> Table:
    """A row per request: how long its prompt and answer were, and when its tokens came."""
    rows = []
    for answer in trial.answers:
        job = trial.jobs[answer.index]
        length = answer.prompt_tokens or len(job.prompt)
        waits = [answer.first - answer.sent, max(answer.gaps, default=0.0), _last_token(answer)]
        shown = [f"{1000 * wait:,.0f} ms" if answer.events else "–" for wait in waits]
        rows.append([str(answer.index + 1), str(length), str(answer.tokens), *shown])
        if answer.error:
            rows[-1][-1] = answer.error
    return ["request", "prompt", "answer", "first token", "longest gap", "in all"], rows


def _last_token(answer: Answer) -> float:
    return answer.ttft + sum(answer.gaps)


def latency_table(record: dict[str, Any], settings: LoadSettings) -> Table:
    """Latencies in ms by metric."""
    columns = ["mean", *(f"p{share:g}" for share in settings.percentiles)]
    rows = [
        [METRICS[name], *(shown(record[f"{name}_ms"].get(column)) for column in columns)] for name in settings.metrics
    ]
    return ["ms", *columns], rows


def summary_lines(record: dict[str, Any], settings: LoadSettings) -> str:
    """Describe a load in a few lines."""
    lines = [
        f"{record['completed']} of {record['requests']} requests completed in {shown(record['seconds'])} s, at most "
        f"{record['peak_concurrency']} at once",
        f"{shown(record['requests_s'])} requests/s · {shown(record['output_tok_s'])} tokens/s out · "
        f"{shown(record['total_tok_s'])} tokens/s in all",
    ]
    if record["errors"]:
        lines.append("not completed: " + ", ".join(f"{count} × {kind}" for kind, count in record["errors"].items()))
    if settings.objective:
        lines.append(
            f"goodput {shown(record['goodput_s'])} requests/s: {record['good_share']:.1%} keep {settings.objective}"
        )
    if record["users"] is None and record["rate"] is not None:
        lines.append(f"the generator was {shown(record['late_ms_p99'])} ms late (p99)")
    if record["generator_late"]:
        lines.append("INVALID: that is too late for an open load. Give the clients more cores, or ask for a lower rate")
    return "\n".join(lines)


def sweep_header(settings: LoadSettings) -> list[str]:
    asked = "users" if len(settings.users) > 1 else "requests/s"
    header = [asked, "completed", "tokens/s", "TTFT p50, ms", "p99", "TPOT p50, ms", "p99"]
    return [*header, "good"] if settings.objective else header


def sweep_row(record: dict[str, Any], settings: LoadSettings) -> list[str]:
    asked = record["users"] if record["users"] is not None else record["rate"]
    cells = [f"{asked:g}" if asked else "all at once", f"{record['completed']}/{record['requests']}"]
    cells += [shown(record["output_tok_s"])]
    for name in ("ttft_ms", "tpot_ms"):
        cells += [shown(record[name].get(column)) for column in ("p50", "p99")]
    marks = "".join(" (ended early)" if record["stopped_early"] else " (INVALID)" if record["generator_late"] else "")
    return [*cells, f"{record['good_share']:.1%}{marks}"] if settings.objective else cells


def knee_line(records: Sequence[dict[str, Any]], settings: LoadSettings) -> str:
    """Say where the latencies of several loads turn up; "" where too few loads show it."""
    by_users = len(settings.users) > 1
    points = [
        (float(one["users"] if by_users else one["rate"]), one["e2el_ms"]["mean"])
        for one in records
        if (one["users"] if by_users else one["rate"]) and one["e2el_ms"].get("mean")
    ]
    found = knee(points)
    what = "users" if by_users else "requests/s"
    return "" if found is None else f"the knee: up to {found:g} {what}, latency grows slowly; beyond, fast"


def found_line(found: Found, settings: LoadSettings) -> str:
    """Say what a search came to."""
    goal = f"{settings.share:.4g} of the requests keep {settings.objective}"
    if not found.best:
        return f"at no rate tried, down to {shown(min(rate for rate, _ in found.passed))} requests/s, did {goal}"
    above = "no rate above it was tried" if found.failed is None else f"not at {shown(found.failed)}"
    short = "" if found.whole else "; the budget ended before the precision was reached"
    if found.unsent:
        short = f"; {shown(found.unsent)} could not be sent in time, which takes more cores for the clients"
    return f"{shown(found.best)} requests/s: the highest rate at which {goal} ({above}){short}"


def result(
    settings: LoadSettings, records: Sequence[dict[str, Any]], found: Found | None, model: str
) -> dict[str, Any]:
    """Everything for a file of results: what was asked for, every load, and what a search found."""
    asked = {
        name: value for name, value in vars(settings).items() if value not in (None, ()) and name != "key_variable"
    }
    made: dict[str, Any] = {"asked": asked, "model": model, "loads": list(records)}
    if found is not None:
        probes = [list(one) for one in found.passed]
        made["found"] = {"best": found.best, "failed": found.failed, "whole": found.whole, "unsent": found.unsent}
        made["found"]["probes"] = probes
    return made


def shown(value: float | None) -> str:
    """Three significant digits, and none after the point from 100 on."""
    if value is None:
        return "–"
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
