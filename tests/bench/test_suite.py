"""A whole benchmark, quick, on a tiny model; and the two front ends."""

import json
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gradus.bench import __main__ as plain
from gradus.bench import command
from gradus.bench.contenders.workbench import Workbench
from gradus.bench.measure import fingerprint, gpu
from gradus.bench.predict.roofline import streamed_parameters
from gradus.bench.record import results
from gradus.bench.run.profiler import profile_steps, without_markers
from tests.bench.conftest import TINY
from tests.cli.conftest import gradus  # noqa: F401  # the command line, as a fixture
from tests.loading.quantized_builders import quantize_folder

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.usefixtures("known_machine")


def test_a_quick_look_measures_every_table_and_writes_the_report(gradus, tmp_path):  # noqa: F811
    done = gradus("bench", "p01", "--quick", "--no-peers", "--out", str(tmp_path), *TINY)
    assert done.code == 0, done.err
    folder = tmp_path / "cpu" / "p01"
    assert done.out.splitlines()[-1] == str(folder / "report.md")
    assert "One request, longer and longer answers" in done.out and "6 tokens out" in done.out
    found = results.read(folder / "results.json")
    (run,) = found.runs
    assert {(cell.table, cell.row) for cell in run.cells} == {
        *(("output-length", output) for output in ("4", "40")),
        *(("prompt-length", prompt) for prompt in ("16", "96")),
    }
    for cell in run.cells:
        assert [entry.contender for entry in cell.entries] == ["p00", "p01"]
        for entry in cell.entries:
            assert entry.skipped is None and len(entry.samples) == 2 and entry.prediction
            wanted = int(cell.row) if cell.table == "output-length" else 6  # a row's name says what was run
            assert entry.samples[0]["output_tokens"] == wanted
    assert [profile["contender"] for profile in run.profiles] == ["p00", "p01"]
    assert all(profile["kernels"] > 10 and profile["top"] for profile in run.profiles)
    assert run.settings["quick"] and run.settings["commit"] and run.fingerprint["versions"]["torch"]
    text = (folder / "report.md").read_text()
    assert "not to be quoted" in text and "p01 KV cache" in text
    assert "| tokens generated |" in text and "| prompt tokens |" in text
    assert command.report(tmp_path, check=True) == 0


@pytest.fixture
def mine(tmp_path):
    """A folder with a student's p01, under a name of their own."""
    folder = tmp_path / "mine"
    folder.mkdir()
    shutil.copy(ROOT / "phases/p01_kv_cache/contiguous.py", folder / "my_cache.py")
    return folder


def test_a_students_phase_has_a_row_of_its_own_and_a_sentence(gradus, tmp_path, mine):  # noqa: F811
    asked = ["p01", "--quick", "--no-peers", "--table", "output-length", "--out", str(tmp_path), *TINY]
    done = gradus("bench", *asked, "--impl", str(mine))
    assert done.code == 0, done.err
    (run,) = results.read(tmp_path / "cpu" / "p01" / "results.json").runs
    assert all([entry.contender for entry in cell.entries] == ["p00", "p01", "your p01"] for cell in run.cells)
    assert all(entry.samples and entry.prediction for cell in run.cells for entry in cell.entries)
    assert run.settings["your p01"] == "your p01: my_cache.py"
    *tables, report = done.out.splitlines()
    first = next(line for line in tables if line.startswith("your p01 ("))
    assert re.fullmatch(r"your p01 \(4 tokens generated\): [\d.,]+ tok/s, [\d.]+ × p00 \(ours: [\d.,]+ tok/s\)", first)
    assert first in Path(report).read_text() and "| your p01 |" in Path(report).read_text()


@pytest.mark.stress
def test_the_students_own_baseline_is_what_theirs_is_compared_with(gradus, tmp_path, mine):  # noqa: F811
    shutil.copy(ROOT / "phases/p00_baseline/scheduler.py", mine / "first.py")
    asked = ["ladder", "--quick", "--no-peers", "--out", str(tmp_path), *TINY, "--impl", str(mine)]
    done = gradus("bench", *asked, *(f"--contender={name}" for name in ("p00", "your p00", "your p01")))
    assert done.code == 0, done.err
    assert re.search(r"^your p00: [\d.,]+ tok/s \(ours: [\d.,]+ tok/s\)$", done.out, re.MULTILINE)
    assert re.search(r"^your p01: [\d.,]+ tok/s, [\d.]+ × your p00$", done.out, re.MULTILINE)


@pytest.mark.parametrize(
    ("text", "asked", "says"),
    [
        ("x = 1\n", ["p01"], "mine has no function of p00, p01: "),
        ("1 / 0\n", ["p01"], "my_cache.py, line 1: ZeroDivisionError: division by zero"),
        ("", ["p01", "--resume"], "leave it or --impl out"),
        ("", ["quality"], "--impl is for a phase (p01) or the ladder, not for quality"),
        (
            "",
            ["p01", "--contender", "your p00"],
            "p01 has no contender 'your p00', only p00, p01, transformers, your p01",
        ),
    ],
)
def test_a_students_folder_that_cannot_be_measured_gets_one_line(gradus, tmp_path, mine, text, asked, says):  # noqa: F811
    file = mine / "my_cache.py"
    file.write_text(text if text == "x = 1\n" else text + file.read_text())
    done = gradus("bench", *asked, "--impl", str(mine), "--out", str(tmp_path), *TINY)
    assert done.code == 2 and done.out == "" and len(done.err.splitlines()) == 1
    assert says in done.err


def test_resuming_keeps_what_is_there_and_adds_what_is_not(tmp_path):
    arguments = ["p02", "--quick", "--no-peers", "--repeats", "1", "--out", str(tmp_path), *TINY]
    file = tmp_path / "cpu" / "p02" / "results.json"
    assert plain.main([*arguments, "--commit", "abc", "--table", "batch-size"]) == 0
    before = results.read(file).runs[0]
    assert {cell.table for cell in before.cells} == {"batch-size"}
    assert plain.main([*arguments, "--commit", "abc", "--resume"]) == 0
    after = results.read(file).runs[0]
    assert after.cells[: len(before.cells)] == before.cells
    assert {cell.table for cell in after.cells} == {"batch-size", "padding"} and after.profiles
    # another commit's results are no place to go on from
    assert plain.main([*arguments, "--commit", "def", "--resume", "--table", "padding"]) == 0
    assert {cell.table for cell in results.read(file).runs[0].cells} == {"padding"}


def test_a_quantized_model_is_measured_under_the_name_of_its_scheme(tmp_path):
    """Two schemes of one model are two runs, also where the second was to be resumed; p07 has a scheme of its own."""
    for scheme in ("int8", "int4"):
        arguments = ["ladder", "--quick", "--resume", "--commit", "abc", "--quantize", scheme, "--out", str(tmp_path)]
        assert plain.main([*arguments, "--contender", "p06", "--contender", "p07", *TINY]) == 0
    narrow, narrower = results.read(tmp_path / "cpu" / "ladder" / "results.json").runs
    assert (narrow.dtype, narrower.dtype) == ("int8 weights, float32", "int4 weights, float32")
    assert narrow.settings["quantize"] == "int8" and narrower.settings["scheme"] == "int4"
    for run in (narrow, narrower):
        (cell,) = run.cells
        paged, rounding = cell.entries
        assert len(paged.samples) == 2 and paged.skipped is None
        assert not rounding.samples and "p07 rounds weights itself" in rounding.skipped
    text = (tmp_path / "cpu" / "ladder" / "report.md").read_text()
    assert "int8 weights, float32" in text and "**Quantized matrices.**" in text
    assert "--model random:tiny-llama --dtype float32 --quantize int4\n" in text


def test_a_checkpoint_that_is_quantized_is_measured_as_it_is(tmp_path):
    quantize_folder(tmp_path / "model", "awq")
    arguments = ["ladder", "--quick", "--contender", "p06", "--model", str(tmp_path / "model"), *TINY[2:]]
    assert plain.main([*arguments, "--out", str(tmp_path)]) == 0
    (run,) = results.read(tmp_path / "cpu" / "ladder" / "results.json").runs
    assert run.dtype == "awq int4-g32 weights, float32" and run.settings["quantize"] == "stored"
    assert len(run.cells[0].entries[0].samples) == 2
    assert "--dtype float32 --quantize stored\n" in (tmp_path / "cpu" / "ladder" / "report.md").read_text()


def test_the_prediction_counts_the_bytes_of_quantized_matrices(bench):
    narrow = Workbench.open("random:tiny-llama", "cpu", "float32", quantize="int8")
    matrices = [weight for weight in bench.model.layers.parameters() if weight.dim() == 2]
    saved = sum(3 * weight.numel() - 4 * len(weight) for weight in matrices)  # a byte for four, and a scale per row
    assert bench.widths("final").weight == 4
    assert narrow.widths("final").weight == pytest.approx(4 - saved / streamed_parameters(bench.model.config))


def test_the_plain_front_end_needs_no_docstring(monkeypatch, capsys):
    """`python -OO` strips them."""
    monkeypatch.setattr(plain, "__doc__", None)
    with pytest.raises(SystemExit) as ending:
        plain.main(["--help"])
    assert ending.value.code == 0 and "--quick" in capsys.readouterr().out


def test_a_profile_says_where_the_time_goes_and_leaves_a_timeline(gradus, tmp_path):  # noqa: F811
    done = gradus("profile", "p01", "--context", "16", "--out", str(tmp_path), *TINY)
    assert done.code == 0, done.err
    assert "a step takes" in done.out and "aten::" in done.out
    trace = json.loads((tmp_path / "traces" / "p01-cpu.json").read_text())
    assert any(event.get("name", "").startswith("aten::") for event in trace["traceEvents"])


def test_of_what_a_profiled_step_says_on_stderr_only_the_profilers_marks_are_left_out(bench, capfd):
    profile_steps(bench, "p01", context=16)
    with without_markers():
        os.write(2, b"USDT:2026-01-01 1:1 Handler.cpp:52] profiler_start\nan error\n")
    assert capfd.readouterr().err == "an error\n"


def test_the_ceilings_are_measured(monkeypatch):
    monkeypatch.undo()
    fingerprint.rates.cache_clear()
    found = fingerprint.rates(torch.device("cpu"), quick=True)
    assert set(found) == {"read_gb_s", "copy_gb_s", "float32_tflop_s", "bfloat16_tflop_s", "launch_us"}
    assert all(value > 0 for value in found.values())
    assert 0.1 < found["read_gb_s"] < 10_000 and 0.01 < found["launch_us"] < 1000
    narrow = fingerprint.machine_of(found, torch.float32, torch.bfloat16)  # either type may multiply them
    assert narrow.rate == max(found["float32_tflop_s"], found["bfloat16_tflop_s"]) * 1e12
    machine = fingerprint.machine_of(found, torch.float32)
    assert machine.bandwidth == found["read_gb_s"] * 1e9 and machine.rate == found["float32_tflop_s"] * 1e12


def test_the_fingerprint_names_machine_and_versions(monkeypatch):
    found = fingerprint.fingerprint(torch.device("cpu"))
    assert {"processor", "cores", "instruction sets", "memory"} <= found["hardware"].keys()
    assert {"python", "torch", "gradus"} <= found["versions"].keys()
    assert fingerprint.hardware_name(torch.device("cpu")) == "cpu"
    for told, name in {
        "NVIDIA H100 80GB HBM3": "h100",
        "NVIDIA H200": "h200",
        "NVIDIA A100-SXM4-40GB": "a100-sxm4",
        "NVIDIA GeForce RTX 4090": "rtx-4090",
    }.items():
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device, told=told: SimpleNamespace(name=told))
        assert fingerprint.hardware_name(torch.device("cuda")) == name


def test_without_nvml_there_is_none_and_no_complaint(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    with gpu.nvml() as known:
        assert known is None
    with gpu.Utilization(period_s=0.001) as use:
        pass
    assert "no NVML" in use.summary()
