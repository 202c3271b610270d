"""The soak: each check can fail, its requests are the same in every cycle, and a rehearsal runs from end to end."""

import json
import sys
from collections import Counter
from dataclasses import replace

import pytest

from benchmarks.soak import __main__ as script
from benchmarks.soak.checks import CHECKS, Soak, slope, verdicts
from benchmarks.soak.client import Got, judged
from benchmarks.soak.endings import fault_of
from benchmarks.soak.loads import CLOSED, LOADS, Tally
from benchmarks.soak.observed import Body, Rest, Scraper, Watcher
from benchmarks.soak.requests import KINDS, Asked, Served, asked
from gradus.load.asking.wire import Response

SERVED = Served("m", 1000, 512)
MIB = 1 << 20


def rest(at, **changed):
    """The server at rest, as it should be."""
    stats = {"active": 0, "waiting": 0, "preemptions": 3, "cached_tokens": 9, "abandoned": 2}
    stats |= {"failed_self_checks": 0, "self_checks": 7, "restarts": 0}
    stats |= {"cache": {"pages": 64, "held": 0, "idle": 60, "free": 4}}
    processes = {"server": Body(80 * MIB, 15, 4, 1.0), "engine": Body(300 * MIB, 5, 8, 9.0)}
    finished = {"length": 90, "timeout": 5, "cancelled": 5, "error": 0}
    return replace(Rest(at, processes, stats, 100, finished, False), **changed)


def whole(**changed):
    """A run of 25 minutes in which all was well."""
    load = {"seconds": 20.0, "tokens": 2000, "requests": 50, "cpu_s": 1.0, "preemptions": 1}
    tally = Tally()
    tally.add(Got("plain", 200, "whole"))
    soak = Soak(
        cycle_s=100.0,
        tally=tally,
        scraper=Scraper(None, scrapes=9),
        watcher=Watcher(0, events=900, seconds=900.0),
        cycles=[{one.name: dict(load) for one in LOADS} for _ in range(9)],
        rests=[rest(167.0 * number) for number in range(1, 10)],
        log="loading\n",
        code=0,
    )
    return replace(soak, **changed)


def last(**changed):
    """Rests. The last one is not as it should be."""
    return [*whole().rests[:-1], rest(1503.0, **changed)]


def statistics(**changed):
    return rest(0).stats | changed


def grown(per_rest, name):
    """Rests. Each time, a process has `per_rest` bytes more."""
    rests = whole().rests
    for number, one in enumerate(rests):
        one.processes[name] = replace(one.processes[name], pss=one.processes[name].pss + number * per_rest)
    return rests


def slower(share):
    cycles = whole().cycles
    for cycle in cycles[-3:]:
        for name in CLOSED:
            cycle[name]["tokens"] *= share
    return cycles


def faulty():
    tally = Tally()
    tally.add(Got("plain", 500, "refused", "/generate answered 500"))
    return tally


BODIES = rest(0).processes
WRONG = {
    "an answer is not as meant": {"tally": faulty()},
    "nothing was preempted": {"rests": last(stats=statistics(preemptions=0))},
    "a request is left": {"rests": last(busy=True)},
    "a page is held": {"rests": last(stats=statistics(cache={"pages": 64, "held": 1, "idle": 60, "free": 3}))},
    "a page is lost": {"rests": last(stats=statistics(cache={"pages": 64, "held": 0, "idle": 60, "free": 3}))},
    "a self-check failed": {"rests": last(stats=statistics(failed_self_checks=1))},
    "the engine was started again": {"rests": last(stats=statistics(restarts=1))},
    "a sample has no end": {"rests": last(entered=101)},
    "a sample ended with an error": {"rests": last(entered=101, finished=rest(0).finished | {"error": 1})},
    "a counter fell": {"scraper": Scraper(None, fell=["samples_total: 9, then 1"])},
    "the front end grows": {"rests": grown(MIB, "server")},
    "the engine grows": {"rests": grown(MIB, "engine")},
    "a descriptor is left": {"rests": last(processes=BODIES | {"server": replace(BODIES["server"], descriptors=16)})},
    "a thread is left": {"rests": last(processes=BODIES | {"engine": replace(BODIES["engine"], threads=9)})},
    "it became slower": {"cycles": slower(0.96)},
    "the X-ray broke": {"watcher": Watcher(0, 900, 900.0, ["the server closed the stream"])},
    "the X-ray floods": {"watcher": Watcher(0, 20_000, 900.0)},
    "an error was logged": {"log": "2026-11-29 05:00:00,000 ERROR gradus: the engine failed\n"},
    "it did not end by itself": {"code": -9},
}


def test_all_checks_pass_where_all_is_well():
    found = verdicts(whole())
    assert len(found) == len(CHECKS) and all(verdict.holds is True for verdict in found), found


@pytest.mark.parametrize("wrong", WRONG)
def test_each_check_finds_its_own_fault_alone(wrong):
    failed = [verdict for verdict in verdicts(whole(**WRONG[wrong])) if verdict.holds is False]
    assert len(failed) == 1, failed
    assert str(failed[0]).startswith("FAILED: ")


def test_small_changes_are_no_fault():
    assert all(verdict.holds for verdict in verdicts(whole(cycles=slower(0.98), rests=grown(100_000, "engine"))))


def test_a_short_run_does_not_judge_what_takes_time():
    short = whole(cycle_s=6.0, rests=grown(9 * MIB, "engine")[:4], cycles=slower(0.5)[-4:])
    assert [verdict.what for verdict in verdicts(short) if verdict.holds is None] == [
        "memory is flat",
        "throughput is kept",
    ]


def test_a_slope_is_not_moved_by_one_odd_look():
    assert slope([(0, 5.0), (1, 5.0), (2, 90.0), (3, 5.0), (4, 5.0)]) == 0
    assert slope([(0, 1.0), (10, 21.0)]) == 2.0
    assert slope([(0, 1.0)]) == 0


def test_a_counter_that_falls_is_noted_and_a_gauge_may():
    scraper = Scraper(None)
    scraper.compare({("samples_total", 'model="m"'): 5.0, ("running", ""): 5.0})
    scraper.compare({("samples_total", 'model="m"'): 4.0, ("running", ""): 0.0})
    assert scraper.fell == ['samples_total{model="m"}: 5, then 4'] and scraper.scrapes == 2


def test_a_request_is_the_same_in_every_cycle_but_for_its_prompt():
    first, later = ([asked(SERVED, "8 users", cycle, number) for number in range(2000)] for cycle in (1, 2))
    fields = ("kind", "path", "stream", "leaves", "reset", "samples")
    for one, other in zip(first, later, strict=True):
        assert [getattr(one, name) for name in fields] == [getattr(other, name) for name in fields]
    assert sum(one.raw != other.raw for one, other in zip(first, later, strict=True)) > 1800
    kinds = Counter(one.kind for one in first)
    assert all(0.5 < kinds[kind] / 20 / share < 1.6 for kind, share in KINDS.items())
    valid = [one for one in first if one.kind != "malformed"]
    assert 0.17 < sum(one.leaves is not None for one in valid) / len(valid) < 0.23


GENERATED = {"index": 0, "text": "a", "token_ids": [5], "finish_reason": "length"}
BEGUN = {"index": 0, "text": "a", "token_ids": [5]}


def stream(*events):
    texts = [event if isinstance(event, bytes) else json.dumps(event).encode() for event in events]
    return b"".join(b"data: %s\n\n" % text for text in texts)


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/generate", stream(BEGUN, GENERATED, b"[DONE]"), ""),
        ("/generate", stream(BEGUN, GENERATED), "no [DONE]"),
        ("/generate", stream(BEGUN, b"[DONE]"), "a sample has no end"),
        ("/generate", stream(GENERATED, BEGUN, b"[DONE]"), "goes on after its end"),
        ("/generate", stream(BEGUN, {"error": {"type": "restarting"}}, b"[DONE]"), "restarting"),
        ("/generate", stream(GENERATED, b"[DONE]")[:-1], "ends within an event"),
        ("/generate", b"data: {\n\ndata: [DONE]\n\n", "JSONDecodeError"),
        ("/v1/completions", stream({"choices": [{"index": 0, "finish_reason": "stop"}]}, b"[DONE]"), ""),
        ("/v1/completions", stream({"choices": [{"index": 0, "finish_reason": None}]}, b"[DONE]"), "no end"),
        ("/v1/responses", stream({"type": "response.completed", "sequence_number": 0}), ""),
        ("/v1/responses", stream({"type": "response.completed", "sequence_number": 1}), "a gap"),
        ("/v1/responses", stream({"type": "response.failed", "sequence_number": 0}), "response.failed"),
        ("/v1/messages", stream({"type": "message_start"}, {"type": "message_stop"}), ""),
        ("/v1/messages", stream({"type": "message_start"}), "the last event is message_start"),
        ("/v1/messages", b"", "ends within an event"),
    ],
)
def test_a_stream_is_whole_or_its_fault_is_named(path, body, says):
    fault = fault_of(path, True, body)
    assert says in fault and bool(fault) == bool(says)


@pytest.mark.parametrize(
    ("status", "body", "kind", "fault"),
    [
        (200, json.dumps(GENERATED).encode(), "plain", ""),
        (200, json.dumps(BEGUN).encode(), "plain", "KeyError"),
        (503, b'{"error": "the queue is full (at most 64)"}', "plain", ""),
        (503, b'{"error": "restarting"}', "plain", "no full queue"),
        (500, b"{}", "plain", "answered 500"),
        (504, b"{}", "plain", "answered 504"),
        (504, b"{}", "late", ""),
    ],
)
def test_an_answer_is_judged_by_what_its_request_may_meet(status, body, kind, fault):
    request = Asked(kind, "/generate", b"", False, frozenset({200, 503} | ({504} if kind == "late" else set())))
    response = Response()
    response.feed(b"HTTP/1.1 %d X\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n" % status)
    found = judged(request, response, body)
    assert fault in found.fault and bool(found.fault) == bool(fault)


@pytest.mark.slow
def test_a_rehearsal_finds_nothing_wrong(monkeypatch, tmp_path, capsys):
    out = tmp_path / "soak.json"
    monkeypatch.setattr(sys, "argv", ["soak", "--minutes", "0.2", "--out", str(out), "--", "--device", "cpu"])
    code = script.main()
    found = json.loads(out.read_text())
    assert code == 0 and not found["faults"], capsys.readouterr().out
    assert {what: holds for what, holds, _ in found["verdicts"] if not holds} == {
        "memory is flat": None,
        "throughput is kept": None,
    }
    assert len(found["cycles"]) == len(found["rests"]) >= 2
    kinds = {kind for kind, _, _, _ in found["outcomes"]}
    assert {"plain", "grammar", "several", "malformed"} <= kinds
