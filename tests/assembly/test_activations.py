"""Activations that are rounded to int8 where that is asked for, and what is refused."""

import gguf
import pytest

from gradus import LLM, ConfigError, SamplingParams
from gradus.quantization.gguf import GGUFLinear
from gradus.quantization.int4 import Int4Linear
from tests.loading.quantized_builders import quantize_folder
from tests.loading.test_gguf_packed import write

Q4_K = gguf.GGMLQuantizationType.Q4_K
CPU = {"device": "cpu", "max_sequences": 2}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return str(write(tmp_path_factory.mktemp("activations") / "m.gguf", [Q4_K]))


def rounding(llm) -> set[bool]:
    """Whether the model's int4 matrices and blocks round their activations."""
    parts = llm.engine.runner.model.modules()
    return {part.rounds for part in parts if isinstance(part, GGUFLinear | Int4Linear)}


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize(("settings", "expected"), [({}, False), ({"activations": "int8"}, True)])
def test_activations_are_rounded_if_that_is_asked_for(file, settings, expected, kernels):
    off = {"switch_off": [] if kernels else ["kernels"]}
    for model, quantize in ((file, "stored"), ("random:tiny-qwen3", "int4-g32")):
        llm = LLM(model, quantize=quantize, **settings, **off, **CPU)
        assert rounding(llm) == {expected}
        assert llm.settings["activations"] == settings.get("activations", "float")


def test_a_draft_rounds_as_its_model_does(file):
    llm = LLM(file, speculate=f"draft:{file}", activations="int8", **CPU)
    parts = llm.engine.runner.step.drafter.passes.model.modules()
    assert {part.rounds for part in parts if isinstance(part, GGUFLinear)} == {True}


def test_kernels_and_torch_compute_the_same_logits(file):
    """Not to the bit: sums that differ in their last bit may round an activation to the other neighbor."""
    params = SamplingParams(max_tokens=1, logprobs=5, ignore_eos=True)
    in_kernels, in_torch = (
        LLM(file, quantize="stored", activations="int8", switch_off=off, **CPU).generate([[5, 9, 7]], params)[0]
        for off in ([], ["kernels"])
    )
    (one,), (other,) = in_kernels.logprobs, in_torch.logprobs
    assert [token for token, _ in one.top] == [token for token, _ in other.top]
    assert [value for _, value in one.top] == pytest.approx([value for _, value in other.top], abs=0.02)


@pytest.mark.parametrize("settings", [{}, {"quantize": "int8"}])
def test_int8_that_would_do_nothing_is_refused(settings):
    with pytest.raises(ConfigError, match="activations int8 does nothing: no matrix of this model is in int4") as error:
        LLM("random:tiny-llama", activations="int8", **settings, **CPU)
    assert "\n" not in str(error.value)


def test_weights_that_a_checkpoint_quantizes_alone_are_refused(tmp_path):
    folder = tmp_path / "model"
    quantize_folder(folder, "awq")
    assert rounding(LLM(str(folder), **CPU)) == {False}
    with pytest.raises(ConfigError, match="this checkpoint quantizes its weights alone"):
        LLM(str(folder), activations="int8", **CPU)


def test_an_unknown_kind_is_refused():
    with pytest.raises(ConfigError, match="activations must be one of float, int8, got 'int4'"):
        LLM("random:tiny-llama", activations="int4", **CPU)
