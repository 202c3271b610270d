"""Programs that test servers: schemathesis writes bodies by our own /openapi.json, prometheus reads our metrics."""

import re

import pytest

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]


def test_no_body_of_the_schema_makes_the_server_fail(client):
    """The server may refuse what it is sent, or run out of the time that a body gives it; nothing else."""
    home = client("schemathesis")
    settings = home.work / "schemathesis.toml"
    settings.write_text('[checks.not_a_server_error]\nexpected-statuses = ["2xx", "4xx", 504]\n')
    said = home.run(
        "schemathesis", "--config-file", str(settings), "run", f"{home.server.url}/openapi.json",
        "--checks", "not_a_server_error", "--phases", "coverage,fuzzing", "--max-examples", "60", "--seed", "1",
        "--request-timeout", "20", seconds=800,
    )  # fmt: skip
    passed = re.search(r"(\d+) generated, \1 passed", said)
    assert passed and int(passed[1]) > 1000, said


PARSE = """
import os
from urllib.request import urlopen
from prometheus_client.parser import text_string_to_metric_families

families = list(text_string_to_metric_families(urlopen(os.environ["GRADUS"] + "/metrics").read().decode()))
names = [family.name for family in families]
assert len(names) == len(set(names)), names
for family in families:
    assert family.type in ("counter", "gauge", "histogram") and family.documentation and family.samples, family
print(len(families), "families")
"""


def test_metrics_are_what_prometheus_reads(client):
    home = client("prometheus")
    home.server.generate(prompt="a", max_tokens=3)
    assert int(home.python(PARSE).split()[0]) > 10
