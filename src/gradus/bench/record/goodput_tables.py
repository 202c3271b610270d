"""The tables of benchmarks/goodput.json: the rate that each server keeps, its curve, and what a crowd gains."""

from collections.abc import Mapping
from typing import Any

from gradus.bench.record.metrics import shown
from gradus.bench.record.study import Part
from gradus.bench.statistics import median

Table = tuple[list[str], list[list[str]]]
NAMES = {"gradus": "Gradus", "vllm": "vLLM"}
MUST_GAIN = 15.0  # times one user's tokens per second, by the most users


def goodput_parts(found: dict[str, Any], samples: str) -> list[Part]:
    """The highest rates that were kept, and every rate that was tried."""
    return [f"{_about(found['runs'])} {samples}", goodput_rows(found["runs"]), curve_rows(found["runs"])]


def users_parts(found: dict[str, Any], samples: str) -> list[Part]:
    """Tokens per second by the number of users."""
    run = next(iter(found["runs"].values()))
    prompt, output = run["crowd"]
    return [
        f"{prompt} tokens in, {output} out, each user one request after the other. {samples}",
        users_rows(found["runs"]),
    ]


def _about(runs: Mapping[str, Any]) -> str:
    run = next(iter(runs.values()))
    hardware, versions = run["hardware"], [each["vllm"] for each in runs.values() if "vllm" in each]
    machine = hardware.get("gpu") or hardware["processor"]
    peer = f", vLLM {versions[0]}" if versions else ""
    commits = ", ".join(dict.fromkeys(str(each["commit"]) for each in runs.values()))
    return f"**{machine}**{peer}. {run['share']:.0%} of the requests keep {run['objective']}. Commit {commits}."


def goodput_rows(runs: Mapping[str, Any]) -> Table:
    """A row per model and block: the highest rate that kept the objective, and how it was there."""
    header = ["model", "server", "requests/s", "not at", "TTFT p99, ms", "TPOT p99, ms", "tokens/s", "to vLLM"]
    rows = []
    for shape, run in runs.items():
        blocks = [block for block in run["blocks"].values() if "found" in block]
        theirs = [block["found"]["best"] for block in blocks if block["engine"] == "vllm"]
        for block in blocks:
            best, failed = block["found"]["best"], block["found"]["failed"]
            load = next((one for one in block["loads"] if one["rate"] == best), None)
            there = ["", "", ""] if load is None else [*_p99(load), shown(load["output_tok_s"])]
            ratio = f"{best / theirs[0]:.2f} ×" if block["engine"] != "vllm" and theirs and theirs[0] else ""
            rows.append([shape, NAMES[block["engine"]], shown(best), shown(failed) if failed else "", *there, ratio])
    return header, rows


def _p99(load: dict[str, Any]) -> list[str]:
    return [shown(load[name]["p99"]) if load[name] else "" for name in ("ttft_ms", "tpot_ms")]


def curve_rows(runs: Mapping[str, Any]) -> Table:
    """A row per rate that was tried, in growing order."""
    header = ["model", "server", "requests/s", "good", "TTFT p50 (p99), ms", "TPOT p50 (p99), ms"]
    rows = []
    for shape, run in runs.items():
        for block in run["blocks"].values():
            for load in sorted(block.get("loads", []), key=lambda load: float(load["rate"])):
                good = f"{100 * load['good_share']:.1f} %" + (", ended early" if load["stopped_early"] else "")
                times = [
                    f"{shown(load[name]['p50'])} ({shown(load[name]['p99'])})" if load[name] else ""
                    for name in ("ttft_ms", "tpot_ms")
                ]
                rows.append([shape, NAMES[block["engine"]], shown(load["rate"]), good, *times])
    return header, rows


def users_rows(runs: Mapping[str, Any]) -> Table:
    """A row per model and block: tokens per second by users, and the most users' in multiples of one user's."""
    blocks = [(shape, block) for shape, run in runs.items() for block in run["blocks"].values() if block.get("users")]
    counts = sorted({int(count) for _, block in blocks for count in block["users"]})
    header = [
        "model",
        "server",
        *(f"{count} users" if count > 1 else "1 user" for count in counts),
        "gain",
        "must",
        "reached",
    ]
    rows = []
    for shape, block in blocks:
        rates = {int(count): median([one["output_tok_s"] for one in found]) for count, found in block["users"].items()}
        gain = rates[max(rates)] / rates[min(rates)]
        ours = [f"{MUST_GAIN:g} ×", "yes" if gain >= MUST_GAIN else "no"] if block["engine"] == "gradus" else ["", ""]
        cells = [shown(rates[count]) if count in rates else "" for count in counts]
        rows.append([shape, NAMES[block["engine"]], *cells, f"{gain:.1f} ×", *ours])
    return header, rows
