"""Prometheus's rules: each names what a real server measures, is quiet on a healthy one, and fires on its fault."""

import re
from pathlib import Path

import pytest
import yaml

from tests.server.conftest import eventually, running
from tests.server.scripted import KILL
from tests.shipping.conftest import LENGTH_S, STEP_S, TIMES, scraped
from tests.shipping.promql import Aggregate, Recording, Selector, duration, nodes, read

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RULES = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
ALERTS = {rule["alert"]: rule for rule in RULES}


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_says_how_bad_it_is_and_what_to_do(alert):
    rule = ALERTS[alert]
    assert alert.startswith("Gradus") and rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["annotations"].keys() == {"summary", "action", "runbook_url"}
    assert rule["annotations"]["action"].endswith(".") and not rule["annotations"]["summary"].endswith(".")
    assert rule["annotations"]["runbook_url"] == f"docs/operations.md#{alert.lower()}"
    # an alert without `for` looks back over a range itself
    assert "for" in rule or any(getattr(node, "range_s", None) for node in nodes(read(rule["expr"])))


def test_the_page_for_operators_has_a_section_per_alert():
    page = ROOT / "docs" / "operations.md"
    sections = re.findall(r"(?m)^#+ (\w+)$", page.read_text(encoding="utf-8"))
    assert ALERTS.keys() <= {*sections}


def test_no_alert_is_there_twice():
    assert len(ALERTS) == len(RULES)


def unknown(expression, known):
    """Names and labels in an expression that no scrape of a server has."""
    found = set()
    for node in nodes(read(expression)):
        if isinstance(node, Selector):
            labels = {label for label, _, _ in node.matchers}
            found |= {node.name} - known.keys() | labels - known.get(node.name, labels)
        if isinstance(node, Aggregate):
            below = [each for each in nodes(node.body) if isinstance(each, Selector)]
            found |= set(node.labels) - set.intersection(*(known.get(each.name, set()) for each in below))
    return found


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_asks_for_what_a_server_measures(alert, known):
    assert not unknown(ALERTS[alert]["expr"], known)


def test_the_check_for_what_a_server_measures_catches(known):
    assert unknown("rate(gradus_wating[5m]) > 0", known) == {"gradus_wating"}
    assert unknown('gradus_waiting{model_name="m"}', known) == {"model_name"}
    assert unknown("sum by (reason) (gradus_waiting)", known) == {"reason"}
    for broken in ("sum by (le (gradus_waiting)", "gradus_waiting >", "rat(gradus_waiting[5m])", "gradus_waiting) > 1"):
        with pytest.raises(ValueError):
            read(broken)


# -- what fires --------------------------------------------------------------------------------------------------------


def recorded(series, changes=()):
    """Record the series. changes: (name, labels, function of seconds) for those that take other values; None takes a
    series away."""
    series = dict(series)
    for name, wanted, function in changes:
        found = [key for key in series if key[0] == name and wanted.items() <= dict(key[1]).items()]
        base = dict(next(key for key in series if key[0] == name)[1]) if not found else {}
        for key in found or [(name, frozenset((base | wanted).items()))]:
            if function is None:
                del series[key]
            else:
                series[key] = [(t, function(t)) for t in TIMES]
    return Recording(series)


def fires(rule, recording):
    """Whether the alert is firing at the end: its expression has held for as long as `for` says."""
    tree, pending = read(rule["expr"]), duration(rule.get("for", "0s"))
    times = [LENGTH_S - back * STEP_S for back in range(int(pending / STEP_S) + 1)]
    results = [recording.evaluate(tree, now) for now in times]
    return all(any(value == value for value in result.values()) for result in results)


@pytest.mark.parametrize("alert", ALERTS)
def test_a_healthy_server_raises_no_alert(alert, series):
    assert not fires(ALERTS[alert], recorded(series))


def state(name):
    return [
        ("gradus_engine_state", {"state": "ready"}, lambda t: 0.0),
        ("gradus_engine_state", {"state": name}, lambda t: 1.0),
    ]


def slow(histogram):
    """All new observations are beyond the last edge."""
    return [
        (f"gradus_{histogram}_seconds_bucket", {}, lambda t: 5.0),
        (f"gradus_{histogram}_seconds_bucket", {"le": "+Inf"}, lambda t: 5.0 + t),
    ]


def grows(name, per_s, **labels):
    return [(f"gradus_{name}_total", labels, lambda t: per_s * t)]


FAULTS = {
    "GradusAbsent": [("up", {}, None)],
    "GradusDown": [("up", {}, lambda t: 0.0)],
    "GradusEngineFailed": state("failed"),
    "GradusEngineRestarted": grows("engine_restarts", 1 / 600),
    "GradusLoadingLong": state("loading"),
    # a scrape in three finds it between two long steps
    "GradusStalled": [("gradus_engine_state", {"state": "stalled"}, lambda t: float(t % 45 != 0))],
    "GradusSleepFlaps": [("gradus_engine_state", {"state": "asleep"}, lambda t: float(t // 180 % 2))],
    "GradusTtftHigh": slow("time_to_first_token"),
    "GradusTpotHigh": slow("time_per_output_token"),
    "GradusQueueGrowing": [("gradus_waiting", {}, lambda t: 1 + t // 60)],
    "GradusRefusing": grows("rejected_requests", 0.1),
    "GradusCacheFull": [("gradus_cache_use", {}, lambda t: 0.99), *grows("preemptions", 0.5)],
    "GradusPrefixDiskFailing": grows("disk_lost_pages", 0.01),
    "GradusServerErrors": grows("key_requests", 5.0, key="", route="/generate", status="500"),
    "GradusRequestsFailing": grows("samples_finished", 0.05, finish_reason="error"),
    "GradusSelfCheckFailed": grows("failed_self_checks", 1 / 1800),
}


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_fires_on_its_fault(alert, series):
    assert fires(ALERTS[alert], recorded(series, FAULTS[alert]))


@pytest.mark.parametrize(
    ("alert", "changes"),
    [
        ("GradusServerErrors", grows("key_requests", 5.0, key="", route="/generate", status="503")),
        ("GradusServerErrors", grows("key_requests", 5.0, key="", route="/health/ready", status="500")),
        ("GradusQueueGrowing", [("gradus_waiting", {}, lambda t: 3 + t // 60 % 2)]),
        ("GradusCacheFull", [("gradus_cache_use", {}, lambda t: 0.99)]),
        ("GradusLoadingLong", [("gradus_engine_state", {"state": "loading"}, lambda t: float(LENGTH_S - t < 600))]),
        ("GradusSleepFlaps", [("gradus_engine_state", {"state": "asleep"}, lambda t: float(t // 1200 % 2))]),
    ],
)
def test_what_is_no_fault_raises_no_alert(alert, changes, series):
    assert not fires(ALERTS[alert], recorded(series, changes))


@pytest.mark.parametrize("alert", ALERTS)
def test_a_summary_names_only_labels_that_its_result_has(alert, series):
    result = recorded(series, FAULTS[alert]).evaluate(read(ALERTS[alert]["expr"]), LENGTH_S)
    named = set(re.findall(r"\$labels\.(\w+)", ALERTS[alert]["annotations"]["summary"]))
    assert result and all(named <= dict(labels).keys() for labels in result)


def test_alerts_on_faults_of_the_engine_move_with_a_real_engine():
    """Between two scrapes, it is killed, another one fails a request, and more requests arrive than may wait."""
    with running("DeadlyCore(slots=1, step_s=0.01, poison=13)", max_waiting=1) as server:
        before = scraped(server)
        assert server.generate(prompt=[KILL], max_tokens=3).status_code == 503
        assert eventually(lambda: server.health() == 200, 20)
        assert server.generate(prompt=[13], max_tokens=3).status_code == 500
        leaving = [server.send(b'{"prompt": "a", "max_tokens": 4000, "stream": true}')]
        assert eventually(lambda: server.stats()["active"] == 1)
        leaving.append(server.send(b'{"prompt": "a", "max_tokens": 4000, "stream": true}'))
        assert eventually(lambda: server.stats()["waiting"] == 1)
        assert server.generate(prompt="a", max_tokens=3).status_code == 503
        after = scraped(server)
        for connection in leaving:
            server.leave(connection, reset=True)

    def grown(name, **labels):
        found = [key for key in after if key[0] == f"gradus_{name}_total" and labels.items() <= dict(key[1]).items()]
        return sum(after[key] - before.get(key, 0) for key in found)

    assert grown("engine_restarts") == grown("rejected_requests") == 1
    assert grown("samples_finished", finish_reason="error") == 2  # the one that was killed, and the one that failed
    assert grown("key_requests", route="/generate", status="500") == 1
    assert grown("key_requests", route="/generate", status="503") == 2


# -- the evaluation itself ---------------------------------------------------------------------------------------------


def test_expressions_are_computed_as_prometheus_defines_them():
    def label(**pairs):
        return frozenset(pairs.items())

    recording = Recording(
        {
            ("c_total", label(k="a")): [(0, 0), (60, 6), (120, 2), (180, 8)],  # restarted after 60 s
            ("c_total", label(k="b")): [(0, 0), (60, 60), (120, 120), (180, 180)],
            ("g", label(k="a")): [(180, 4.0)],
            ("h_bucket", label(le="1")): [(0, 0), (180, 50)],
            ("h_bucket", label(le="2")): [(0, 0), (180, 100)],
            ("h_bucket", label(le="+Inf")): [(0, 0), (180, 100)],
        }
    )

    def at(text, now=180):
        return recording.evaluate(read(text), now)

    assert at("increase(c_total[4m])") == {label(k="a"): 14, label(k="b"): 180}
    assert at('rate(c_total{k="b"}[4m])') == {label(k="b"): 1.0}
    assert at('rate(c_total{k!~"a|c"}[4m]) * 60 + 1') == {label(k="b"): 61.0}
    assert at("sum(increase(c_total[4m]))") == {frozenset(): 194}
    assert at("max by (k) (c_total) > 100") == {label(k="b"): 180}
    assert at("c_total and on (k) g == 4") == {label(k="a"): 8} and at("c_total unless on (k) g") == {label(k="b"): 180}
    assert at("c_total / on (k) g") == {label(k="a"): 2.0}
    assert at("g > bool 5") == {label(k="a"): 0.0} and at("g or vector(1)") == {label(k="a"): 4.0, frozenset(): 1.0}
    assert at("2 + 3 * 4 - -1") == 15
    assert at("histogram_quantile(0.75, rate(h_bucket[5m]))") == {frozenset(): 1.5}
    assert at('changes(c_total{k="a"}[4m])') == {label(k="a"): 3} and at("deriv(c_total[4m])")[label(k="b")] == 1.0
    assert at('absent(up{job="x"})') == {label(job="x"): 1.0} and at("absent(g)") == {}
    assert at("g", now=481) == {} and at("c_total offset 2m")[label(k="a")] == 6
