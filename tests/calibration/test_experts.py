"""`gradus quantize` of models with experts: each expert is a matrix of its own in the file, routers stay in floats."""

import json

import pytest
import torch
from safetensors.torch import load_file

from gradus import LLM
from gradus.errors import ConfigError
from gradus.loading import open_checkpoint
from tests.calibration.test_quantize import GREEDY, hidden_of, tame_folder, written
from tests.loading.builders import write_folder
from tests.loading.quantized_builders import matrices

ROUTER = "model.layers.{}.mlp.gate"


@pytest.mark.parametrize("scheme", ["int8", "fp8"])
@pytest.mark.parametrize("family", ["qwen3-moe", "qwen2-moe"])
def test_eight_bits_in_a_file_are_those_made_on_the_fly(tmp_path, family, scheme):
    folder = tame_folder(tmp_path / "float", family)
    out = written(folder, tmp_path / "out", scheme=scheme)
    settings = {"device": "cpu", "dtype": "float32"}
    found = dict(matrices(LLM(str(out), **settings)))
    expected = dict(matrices(LLM(str(folder), quantize=scheme, **settings)))
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)
    assert any(".experts.7.down_proj" in name for name in found)


def test_routers_stay_in_floats_and_are_said_to(tmp_path):
    folder = tame_folder(tmp_path / "float", "qwen3-moe")
    out = written(folder, tmp_path / "out", scheme="int8")
    ignored = json.loads((out / "config.json").read_text())["quantization_config"]["ignore"]
    assert ignored == ["lm_head", *(ROUTER.format(layer) for layer in (0, 2, 3))]
    stored = {}
    for file in out.glob("*.safetensors"):
        stored |= load_file(file)
    router = stored[f"{ROUTER.format(2)}.weight"]
    assert torch.equal(router, load_file(folder / "model.safetensors")[f"{ROUTER.format(2)}.weight"].bfloat16())
    assert stored["model.layers.2.mlp.experts.5.up_proj.weight"].dtype == torch.int8


def test_four_bits_keep_most_of_it(tmp_path):
    folder = tame_folder(tmp_path / "float", "qwen3-moe")
    out = written(folder, tmp_path / "out", scheme="int4", text=None)
    exact, found = hidden_of(folder), hidden_of(out)
    assert {scheme for _, scheme in open_checkpoint(str(out)).quantized.rules} == {"int4-g32"}
    assert (found - exact).norm() / exact.norm() < 0.7
    (done,) = LLM(str(out), device="cpu", dtype="float32").generate(["the cat"], GREEDY)
    assert len(done.token_ids) == 8


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_methods_that_observe_each_matrix_are_refused(tmp_path, method):
    folder = write_folder(tmp_path / "float", "qwen3-moe")
    with pytest.raises(ConfigError, match=f"method {method} observes what each matrix reads, of .*: take method rtn$"):
        written(folder, tmp_path / "out", method=method)
    assert not (tmp_path / "out").exists()


def test_experts_in_one_stack_are_refused(tmp_path):
    folder = write_folder(tmp_path / "float", "gpt-oss")
    with pytest.raises(ConfigError, match="no format has quantized gpt_oss, whose experts lie in one stack"):
        written(folder, tmp_path / "out", scheme="int8")
    assert not (tmp_path / "out").exists()
