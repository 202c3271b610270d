"""No request, of any kind, on any route, ends the engine, changes another answer, or leaves something behind."""

import json

import pytest

from gradus.server.api.schemas import bodies
from gradus.server.config import ServerConfig
from tests.fuzz.bodies import SEEDS
from tests.fuzz.running import attacked, fault_of, served

KINDS = {
    "ranks": ("--tensor-parallel", "2"),
    "drafts": ("--speculate", "ngram", "--policy", "priority", "--cache-tokens", "512"),
}


def test_every_route_that_takes_a_body_is_attacked():
    assert {path for path, _ in SEEDS} == {"/generate", *bodies(ServerConfig())}


@pytest.mark.parametrize("count", [144, pytest.param(10_000, marks=pytest.mark.stress)])
@pytest.mark.parametrize("kind", ["ranks", pytest.param("drafts", marks=pytest.mark.stress)])
@pytest.mark.timeout(3600)
def test_no_request_ends_an_engine(kind, count, tmp_path):
    log = tmp_path / "log"
    with served(log, *KINDS[kind], "--request-timeout", "5") as server:
        wanted = server.canaries()
        assert {status for status, _ in wanted} == {200}
        seeds = [(path, *server.ask("POST", path, json.dumps(body).encode())) for path, body in SEEDS]
        assert [each for each in seeds if each[1] != 200] == [], "a seed is a request that is answered"
        for round_ in range(4):
            attacked(server, count // 4, 12, seed=round_ + count)
            assert server.canaries() == wanted
        found = server.stats()
    assert server.faults == []
    assert (found["restarts"], found["failed_self_checks"], found["cache"]["held"]) == (0, 0, 0)
    assert server.statuses[200] > count / 10 and server.statuses[400] > count / 10
    assert "Traceback" not in log.read_text()


def test_the_judge_notices_faults():
    assert fault_of(500, b"{}") and fault_of(200, b"Traceback (most recent call last)")
    assert fault_of(400, b'{"error": {"message": "a\\nb"}}') and not fault_of(400, b'{"error": {"message": "a"}}')
