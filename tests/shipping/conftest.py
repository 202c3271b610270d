"""The metrics of a real server, which rules and dashboards are compared with."""

from functools import partial

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.server.conftest import running, serving
from tests.server.scripted import ScriptedCore

__all__ = ["known", "scrapes", "serving"]


def scraped(server):
    """{(name, labels as a frozenset of pairs): value}, as Prometheus stores a scrape."""
    families = text_string_to_metric_families(server.http.get("/metrics").text)
    target = {"job": "gradus", "instance": "gpu-1:8000"}
    series = {
        (sample.name, frozenset((sample.labels | target).items())): sample.value
        for family in families
        for sample in family.samples
    }
    return series | {("up", frozenset(target.items())): 1.0}


@pytest.fixture(scope="session")
def scrapes():
    """Two scrapes of a server, with ordinary traffic between them."""
    with running(partial(ScriptedCore, step_s=0.002), price_per_hour=2.0) as server:
        for _ in range(3):
            assert server.generate(prompt="a", max_tokens=20).status_code == 200
        server.http.get("/health")
        before = scraped(server)
        for _ in range(3):
            assert server.generate(prompt="abc", max_tokens=20, stream=True).status_code == 200
        assert server.generate(prompt="a", max_tokens=0).status_code == 400
        return before, scraped(server)


COUNTERS = ("_total", "_bucket", "_count", "_sum")
STEP_S, LENGTH_S = 15.0, 2 * 3600.0
TIMES = [step * STEP_S for step in range(int(LENGTH_S / STEP_S) + 1)]


@pytest.fixture(scope="session")
def series(scrapes):
    """Two hours of a server: gauges stay, and counters grow in each step as they did between two scrapes."""
    before, after = scrapes
    found = {}
    for (name, labels), value in after.items():
        growth = value - before.get((name, labels), 0.0) if name.endswith(COUNTERS) else 0.0
        found[name, labels] = [(t, value + growth * step) for step, t in enumerate(TIMES)]
    return found


@pytest.fixture(scope="session")
def known(scrapes):
    """The labels of each series' name."""
    labels: dict[str, set[str]] = {}
    for name, pairs in scrapes[1]:
        labels.setdefault(name, set()).update(label for label, _ in pairs)
    return labels
