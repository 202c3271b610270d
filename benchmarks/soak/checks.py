"""What must hold after a soak, each as one verdict. A run that is too short to judge something says so."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

from benchmarks.soak.loads import CLOSED, Tally
from benchmarks.soak.observed import Rest, Scraper, Watcher
from gradus.bench.statistics import median

KEPT = 0.97  # of the first throughput, at the end
WINDOW_S = 300.0  # of load, at the beginning and at the end
LEAST_WINDOW_S = 100.0
LEAST_S = 1200.0  # of a run whose memory is judged: before, caches fill
GROWTH = 0.01  # of a process's memory after the first quarter, and at least
GROWTH_BYTES = 4 << 20
XRAY_PER_S = 10.5
HOUR_S = 3600.0
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Verdict:
    """holds: None if the run was too short to judge it. said: with the numbers."""

    what: str
    holds: bool | None
    said: str

    def __str__(self) -> str:
        return f"{ {True: 'ok', False: 'FAILED', None: 'not judged'}[self.holds] }: {self.what}: {self.said}"


@dataclass
class Soak:
    """Everything that a run has seen. cycles: of each, what was measured of its loads. log: the server's. code: its
    exit code. cycle_s: of a cycle's loads."""

    cycle_s: float
    tally: Tally
    scraper: Scraper
    watcher: Watcher
    cycles: list[dict[str, dict[str, Any]]]
    rests: list[Rest]
    log: str
    code: int | None

    @property
    def later(self) -> list[Rest]:
        """The rests after the first quarter: caches have filled, kernels are compiled."""
        return self.rests[max(1, len(self.rests) // 4) :]

    def record(self) -> dict[str, Any]:
        outcomes = sorted(self.tally.outcomes.items())
        return {
            "outcomes": [[*key, count] for key, count in outcomes],
            "faults": self.tally.faults,
            "scrapes": self.scraper.scrapes,
            "xray_events": self.watcher.events,
            "cycles": self.cycles,
            "rests": [asdict(rest) for rest in self.rests],
        }


def verdicts(soak: Soak) -> list[Verdict]:
    return [check(soak) for check in CHECKS]


def answers(soak: Soak) -> Verdict:
    statuses = soak.tally.statuses()
    first = f"; the first: {soak.tally.faults[0]}" if soak.tally.faults else ""
    said = f"{soak.tally.faulty} of {sum(statuses.values())} are not as meant{first}"
    counts = ", ".join(f"{count} × {status or 'none'}" for status, count in sorted(statuses.items()))
    return Verdict("every answer is whole, or refused as it should be", not soak.tally.faulty, f"{said} ({counts})")


def reached(soak: Soak) -> Verdict:
    """The load was what it claims to be."""
    last = soak.rests[-1]
    found = {
        "preemptions": last.stats["preemptions"],
        "prefix hits": last.stats["cached_tokens"],
        "abandoned requests": last.stats["abandoned"],
        "timeouts": last.finished.get("timeout", 0),
        "X-ray events": soak.watcher.events,
    }
    said = ", ".join(f"{count} {what}" for what, count in found.items())
    return Verdict("the load reached what it should", all(found.values()), said)


def books(soak: Soak) -> Verdict:
    """At rest no request is left, no page is held, and the engine's own checks pass."""
    wrong = []
    for rest in soak.rests:
        cache = rest.stats["cache"]
        if rest.busy:
            wrong.append(f"at {rest.at:.0f} s {rest.stats['active']} samples run, {rest.stats['waiting']} wait")
        if cache["free"] + cache["idle"] != cache["pages"] or cache["held"]:
            wrong.append(f"at {rest.at:.0f} s {cache['held']} of {cache['pages']} pages are held")
    stats = soak.rests[-1].stats
    if stats["failed_self_checks"] or stats["restarts"]:
        wrong.append(f"{stats['failed_self_checks']} self-checks failed, {stats['restarts']} restarts")
    said = "; ".join(wrong[:3]) or f"{len(soak.rests)} rests, {stats['self_checks']} self-checks"
    return Verdict("nothing is left at rest", not wrong, said)


def reconciled(soak: Soak) -> Verdict:
    """Samples that entered have all ended, none with an error; and no counter ever went down."""
    last = soak.rests[-1]
    total = sum(last.finished.values())
    wrong = soak.scraper.fell[:3]
    if last.entered != total:
        wrong.append(f"{last.entered} samples entered, {total} ended")
    if last.finished.get("error"):
        wrong.append(f"{last.finished['error']} samples ended with an error")
    said = "; ".join(wrong) or ", ".join(f"{count} {reason}" for reason, count in last.finished.items() if count)
    return Verdict("counters reconcile", not wrong, f"{said} ({soak.scraper.scrapes} scrapes)")


def memory(soak: Soak) -> Verdict:
    said, flat, later = [], True, soak.later
    for name in later[0].processes:
        points = [(rest.at, rest.processes[name].pss) for rest in later]
        per_s, level = slope(points), median([size for _, size in points])
        growth = per_s * (points[-1][0] - points[0][0])
        flat = flat and growth <= max(GROWTH * level, GROWTH_BYTES)
        said.append(f"{name} {level / MIB:.1f} MiB, {per_s * HOUR_S / MIB:+.2f} MiB/h ({growth / MIB:+.2f} MiB)")
    long_enough = soak.rests[-1].at >= LEAST_S and len(later) >= 4
    return Verdict("memory is flat", flat if long_enough else None, "; ".join(said))


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The median of all pairs' slopes (Theil and Sen): one odd look does not move it. 0 for one point."""
    pairs = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2) if x2 > x1]
    return median(pairs) if pairs else 0.0


def _flat(what: str, attribute: str) -> Callable[[Soak], Verdict]:
    def check(soak: Soak) -> Verdict:
        series = {name: [getattr(rest.processes[name], attribute) for rest in soak.later] for name in _names(soak)}
        flat = all(counts[-1] <= counts[0] for counts in series.values())
        said = "; ".join(f"{name} {counts[0]}, then {counts[-1]}" for name, counts in series.items())
        return Verdict(f"{what} are flat", flat, said)

    return check


def _names(soak: Soak) -> list[str]:
    return list(soak.rests[-1].processes)


def throughput(soak: Soak) -> Verdict:
    """Tokens per second of the closed loads: compare the last cycles with the first ones after the warm-up."""
    measured = soak.cycles[1:] or soak.cycles
    window = max(1, min(round(WINDOW_S / soak.cycle_s), len(measured) // 2))
    first, last = measured[:window], measured[-window:]
    share = _per_second(last, "tokens") / _per_second(first, "tokens")
    cpu = [1e6 * _per_second(part, "cpu_s") / _per_second(part, "tokens") for part in (first, last)]
    said = (
        f"{_per_second(first, 'tokens'):.0f}, then {_per_second(last, 'tokens'):.0f} tokens/s ({share:.3f}; must be "
        f"{KEPT}), by {window} cycles each; {cpu[0]:.0f}, then {cpu[1]:.0f} µs of processor time per token"
    )
    long_enough = window * soak.cycle_s >= LEAST_WINDOW_S and len(measured) >= 2
    return Verdict("throughput is kept", share >= KEPT if long_enough else None, said)


def _per_second(cycles: Sequence[Mapping[str, Mapping[str, Any]]], what: str) -> float:
    loads = [cycle[name] for cycle in cycles for name in CLOSED]
    return sum(load[what] for load in loads) / sum(load["seconds"] for load in loads)


def watched(soak: Soak) -> Verdict:
    watcher = soak.watcher
    rate = watcher.events / watcher.seconds if watcher.seconds else 0.0
    said = "; ".join(watcher.faults[:2]) or f"{watcher.events} events, {rate:.1f} a second"
    return Verdict("the X-ray is watched undisturbed", not watcher.faults and 0 < rate <= XRAY_PER_S, said)


def logged(soak: Soak) -> Verdict:
    wrong = [line for line in soak.log.splitlines() if "Traceback" in line or " ERROR " in line or " CRITICAL " in line]
    return Verdict("no error is logged", not wrong, wrong[0][:200] if wrong else f"{len(soak.log.splitlines())} lines")


def ended(soak: Soak) -> Verdict:
    return Verdict("SIGTERM ends the server with 0", soak.code == 0, f"exit code {soak.code}")


CHECKS: tuple[Callable[[Soak], Verdict], ...] = (
    answers,
    reached,
    books,
    reconciled,
    memory,
    _flat("descriptors", "descriptors"),
    _flat("threads", "threads"),
    throughput,
    watched,
    logged,
    ended,
)
