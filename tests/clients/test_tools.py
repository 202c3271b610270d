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
