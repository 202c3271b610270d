"""The choice between compiled kernels and torch on a CPU: what the table says of results, and what the engine takes."""

import json

import pytest

pytest.importorskip("numba")

from benchmarks.kernels import cpu_rows
from gradus.engine.request import SamplingParams
from gradus.kernels.cpu import rows
from gradus.text.llm import LLM


def measured(**milliseconds: list[tuple[int, float, float]]) -> dict:
    """Return results with these times by kind: (rows, in the kernels, in torch)."""
    found = [
        {"kind": kind, "hidden_size": 64, "tokens": count, "kernels_ms": ours, "torch_ms": torchs}
        for kind, times in milliseconds.items()
        for count, ours, torchs in times
    ]
    return {
        "commit": "0123",
        "hardware": {"processor": "A Processor (TM) 7", "instruction sets": "asimd sve"},
        "rows": found,
    }


def test_kernels_are_taken_as_far_as_they_are_no_slower(monkeypatch, tmp_path):
    monkeypatch.setattr(cpu_rows, "MEASURED", tmp_path)
    found = measured(
        bfloat16=[(8, 1, 2), (16, 2, 3), (32, 4, 3)], int8=[(8, 3, 2), (16, 5, 4), (32, 6, 9)], int4=[(32, 1, 2)]
    )
    file = cpu_rows.write_table(found)
    assert file.name == "a-processor-tm-7-asimd-sve.json"
    most = json.loads(file.read_text())["most_rows"]
    assert most == {"bfloat16": {"64": 16}, "int8": {"64": 8}, "int4": {"64": 32}}


def test_a_model_takes_the_nearest_width_and_a_processor_without_a_file_all_rows(monkeypatch):
    monkeypatch.setattr(rows, "stored", lambda: {("mine", "avx2"): {"int8": {576: 16, 2048: 24}}})
    monkeypatch.setattr(rows, "processor", lambda: ("mine", "avx2"))
    assert [rows.most_rows("int8", width) for width in (64, 1024, 1536)] == [16, 16, 24]
    assert rows.most_rows("int4", 576) == rows.most_rows("q4_1", 576) == rows.UNKNOWN
    monkeypatch.setattr(rows, "processor", lambda: ("another", "avx2"))
    assert rows.most_rows("int8", 576) == 16, "as one with the same instruction sets"
    monkeypatch.setattr(rows, "processor", lambda: ("mine", "avx2 avx512f"))
    assert rows.most_rows("int8", 576) == rows.UNKNOWN


def test_what_is_stored_is_within_what_the_kernels_can():
    for kinds in rows.stored().values():
        for widths in kinds.values():
            assert all(cpu_rows.ALWAYS <= most <= cpu_rows.ROWS[-1] for most in widths.values())


@pytest.mark.parametrize(("most", "taken_rows"), [(8, [8]), (64, [8, 9, 24]), (80, [8, 9, 24, 64, 6])])
def test_longer_steps_go_through_torch_or_the_kernels_in_passes(monkeypatch, most, taken_rows):
    monkeypatch.setattr("gradus.execution.compiled.most_rows", lambda kind, width: most)
    monkeypatch.setattr("gradus.execution.compiled.MOST_ROWS", 64)
    llm = LLM("random:tiny-llama", device="cpu", dtype="float32")
    runner, taken = llm.engine.runner, []
    run = runner.step.passes.decode.run

    def noted(*given, **more):
        taken.append(len(given[0]))
        return run(*given, **more)

    monkeypatch.setattr(runner.step.passes.decode, "run", noted)
    for tokens in (8, 9, 24, 70, 90):
        cpu_rows.logits(runner.step.passes, cpu_rows.chunk(tokens))
    assert taken == taken_rows


@pytest.mark.parametrize("shape", ["tiny-llama", "tiny-gemma3"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_prompt_has_the_same_tokens_in_passes_as_in_torch(monkeypatch, shape, temperature):
    prompts = [[(7 * place + number) % 250 for place in range(length)] for number, length in enumerate((70, 33, 5))]
    answers = []
    monkeypatch.setattr("gradus.execution.compiled.MOST_ROWS", 64)
    for most in (1, 300):
        monkeypatch.setattr("gradus.execution.compiled.most_rows", lambda kind, width, most=most: most)
        with LLM(f"random:{shape}", device="cpu", dtype="float32", context_length=128, max_sequences=4) as llm:
            params = SamplingParams(max_tokens=8, temperature=temperature, seed=5)
            answers.append([each.token_ids for each in llm.generate(prompts, params)])
    assert answers[0] == answers[1]


def test_both_ways_are_measured():
    found = cpu_rows.measure("random:tiny-llama", "bfloat16", rounds=1)
    assert [row["tokens"] for row in found] == list(cpu_rows.ROWS[: len(found)])
    assert len(found) == len(cpu_rows.ROWS) or found[-1]["kernels_ms"] > found[-1]["torch_ms"]
    assert all(row["kernels_ms"] > 0 and row["torch_ms"] > 0 and row["kind"] == "bfloat16" for row in found)
