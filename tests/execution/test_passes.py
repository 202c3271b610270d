"""Long steps on a CPU: through the compiled kernels in passes, or through torch, as the processor's table says."""

import pytest

pytest.importorskip("numba")

from benchmarks.kernels import cpu_rows
from gradus.engine.request import SamplingParams
from gradus.kernels.cpu import rows
from gradus.text.llm import LLM


def test_a_model_takes_the_nearest_width_and_a_processor_without_a_file_all_rows(monkeypatch):
    monkeypatch.setattr(rows, "stored", lambda: {("mine", "avx2"): {"int8": {576: 16, 2048: 24}}})
    monkeypatch.setattr(rows, "processor", lambda: ("mine", "avx2"))
    assert [rows.most_rows("int8", width) for width in (64, 1024, 1536)] == [16, 16, 24]
    assert rows.most_rows("int4", 576) == rows.most_rows("q4_1", 576) == rows.UNKNOWN
    monkeypatch.setattr(rows, "processor", lambda: ("another", "avx2"))
    assert rows.most_rows("int8", 576) == 16, "as one with the same instruction sets"
    monkeypatch.setattr(rows, "processor", lambda: ("mine", "avx2 avx512f"))
    assert rows.most_rows("int8", 576) == rows.UNKNOWN


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
