"""The benchmark of small GPUs on a CPU, where nothing is held: its rows, and what makes it fail."""

import json
import logging
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from benchmarks import small_gpu
from benchmarks.small_gpu import Case, parted
from gradus.errors import ConfigError

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    for name, value in {"REQUESTS": 5, "LONGEST": 40, "ANSWERS": (2, 6), "ENGINES": 3}.items():
        monkeypatch.setattr(small_gpu, name, value)


@pytest.fixture
def nothing_held(monkeypatch):
    monkeypatch.setattr(small_gpu, "others_hold", lambda device, leave: nullcontext(0))


@pytest.mark.usefixtures("nothing_held")
def test_every_case_has_a_row_and_engines_leave_nothing(tmp_path, monkeypatch, capsys, process):
    out = tmp_path / "small_gpu.json"
    monkeypatch.setattr(small_gpu, "CASES", (Case("random:tiny-llama", 1), Case("random:tiny-qwen3", 1, "int8")))
    monkeypatch.setattr("sys.argv", ["small_gpu.py", "--device", "cpu", "--commit", "0123", "--out", str(out)])
    assert small_gpu.main() == 0
    found = json.loads(out.read_text())
    assert found == json.loads(capsys.readouterr().out) and found["commit"] == "0123"
    for row, model in zip(found["rows"], ("random:tiny-llama", "random:tiny-qwen3"), strict=True):
        assert (row["model"], row["same"], row["of"], row["parted_by"], row["ok"]) == (model, 5, 5, [], True)
        assert row["settings"] == {"max_sequences": 8, "token_budget": 256, "cache_tokens": 4096, "context_length": 512}
    assert found["engines"]["count"] == 3 and found["engines"]["after_last"]["descriptors"] > 0


@pytest.mark.usefixtures("nothing_held")
def test_an_engine_that_does_not_start_is_a_row_and_a_failure(monkeypatch):
    def refuse(*_, **__):
        raise ConfigError("no memory is left")

    monkeypatch.setattr(small_gpu, "LLM", refuse)
    row = small_gpu.measured(Case("random:tiny-llama", 1), CPU)
    assert (row["ok"], row["failed"]) == (False, "no memory is left")
    monkeypatch.setattr(small_gpu, "measured", lambda case, device: row)
    monkeypatch.setattr(small_gpu, "in_a_row", lambda device: {"ok": True})
    monkeypatch.setattr("sys.argv", ["small_gpu.py", "--device", "cpu", "--commit", "0123"])
    assert small_gpu.main() == 1


def test_the_other_process_holds_memory_until_it_is_let_go():
    with small_gpu.others_hold(CPU, leave=0) as held:
        assert held == small_gpu.CPU_HOLDS


def test_a_holder_that_does_not_start_is_said(monkeypatch):
    monkeypatch.setattr(small_gpu, "__file__", "/nowhere.py")
    with pytest.raises(SystemExit, match="no process holds memory"), small_gpu.others_hold(CPU, leave=0):
        pass


def test_where_tokens_part_the_other_engine_says_how_close_it_was():
    known = SimpleNamespace(top=((8, -0.5), (9, -0.75)))
    other = SimpleNamespace(token_ids=(7, 8, 6), logprobs=(None, known, None))
    assert parted((7, 8, 6), other) is None
    assert parted((7, 9, 1), other) == 0.25
    assert parted((7, 5, 1), other) == float("inf")


def test_threads_that_stay_are_a_failure(monkeypatch):
    uses = iter([{"gpu_bytes": 0, "threads": count, "descriptors": 4} for count in (3, 5, 6)])
    monkeypatch.setattr(small_gpu, "LLM", lambda *_, **__: SimpleNamespace(generate=lambda *_: []))
    monkeypatch.setattr(small_gpu, "in_use", lambda device: next(uses))
    assert small_gpu.in_a_row(CPU)["ok"] is False


def test_what_the_log_says_is_collected(caplog):
    with small_gpu.listening() as said:
        logging.getLogger("gradus.assembly.checkpoint").warning("token_budget %d", 2048)
    logging.getLogger("gradus.assembly.checkpoint").warning("later")
    assert said == ["token_budget 2048"]
