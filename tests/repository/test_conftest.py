"""The suite's own promises: it reaches no other machine, skips or leaves out what its markers say, and does not look
for garbage in what it imported."""

import gc
import importlib
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus import LLM
from tests.server.conftest import running

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("host", ["192.0.2.1", "example.org", "2001:db8::1"])
def test_another_machine_cannot_be_reached(host):
    with pytest.raises(OSError, match="tests need no network"):
        socket.create_connection((host, 80), timeout=0.1)


@pytest.mark.parametrize("method", ["connect", "connect_ex"])
def test_a_bare_socket_is_guarded_too(method):
    with socket.socket() as client, pytest.raises(OSError, match="tests need no network"):
        getattr(client, method)(("192.0.2.1", 80))


def test_this_machine_can_be_reached():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(("localhost", server.getsockname()[1]), timeout=5) as client,
    ):
        assert client.getpeername()[0] == "127.0.0.1"


def examples() -> list[int]:
    """Return the examples of a property test."""
    drawn = []

    @settings(max_examples=300, database=None)
    @given(st.integers(0, 1 << 40))
    def test(number):
        drawn.append(number)

    test()
    return drawn


def test_examples_do_not_depend_on_what_is_imported(tmp_path, monkeypatch):
    before = examples()
    (tmp_path / "numbers_of_ours.py").write_text(f"NUMBERS = {list(range(1 << 30, (1 << 30) + 1_000))}")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("numbers_of_ours")
    assert examples() == before


MARKED = """
import pytest

def test_ordinary():
    pass

@pytest.mark.stress
def test_stressful():
    pass

@pytest.mark.weights("no-such-model")
def test_with_weights():
    raise AssertionError("ran without its weights")
"""


@pytest.mark.parametrize(
    ("arguments", "outcome"),
    [([], "1 passed, 1 skipped, 1 deselected"), (["-m", "stress"], "1 passed, 2 deselected")],
)
def test_marked_tests_run_only_where_they_can_and_when_asked_for(tmp_path, arguments, outcome):
    (tmp_path / "test_marked.py").write_text(MARKED)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run([*command, "-c", ROOT / "pyproject.toml", tmp_path], cwd=ROOT, capture_output=True, text=True)
    assert outcome in done.stdout


@pytest.mark.parametrize("turn", [1, 2])
def test_torchs_random_numbers_do_not_depend_on_the_tests_before(turn):
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(0)))


def test_what_was_imported_for_the_tests_stays_out_of_the_collectors_sight():
    """Looking through it takes longer than most tests, and an engine or a server, as it starts, would have it done."""
    llm = LLM("random:tiny-llama", device="cpu", dtype="float32", max_sequences=1)
    with running():
        pass
    llm.close()
    gc.unfreeze()  # a benchmark does, behind its engine
    assert gc.get_freeze_count() > 50_000
