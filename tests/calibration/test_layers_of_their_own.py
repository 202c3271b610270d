"""`gradus quantize` of layers that differ in size, share keys and values, or have embeddings of their own."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from gradus.calibration.layer import LoneLayer
from gradus.calibration.methods import METHODS, scale_columns
from gradus.errors import ConfigError
from gradus.loading import load_model, open_checkpoint
from gradus.models import SHAPES, Linear, create_model, load_weights, write_config
from gradus.models.weights import checked
from gradus.quantization.linear import QuantizedLinear
from gradus.quantization.mix import Mix, factory
from tests.calibration.test_quantize import CPU, TEXT, tame_folder, written
from tests.loading import builders
from tests.models.conftest import run

TOKENS = [5, 7, 11, 13, 17, 19, 23, 29] * 5


@pytest.fixture(params=["gemma4", "gemma4-e"])
def folder(request, tmp_path, monkeypatch):
    return made(request.param, tmp_path, monkeypatch)


def made(shape, tmp_path, monkeypatch):
    """A checkpoint whose norms are near 1 and whose scores are small, so that an error of one layer stays small."""
    raw = write_config(SHAPES[f"tiny-{shape}"]) | {"bos_token_id": 0, "eos_token_id": 2}
    monkeypatch.setitem(builders.CONFIGS, shape, raw)
    folder = tame_folder(tmp_path / "float", shape)
    tensors = load_file(folder / "model.safetensors")
    for name, value in tensors.items():
        if value.dim() == 1:
            value.mul_(0.1).add_(0.1 if "q_norm" in name else 1.0)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def loaded(folder, mix=None):
    """The checkpoint's model, by the mix that it is stored in or is to be quantized by."""
    checkpoint = open_checkpoint(str(folder))
    mix = mix or checkpoint.quantized
    model = create_model(checkpoint.config, linear=factory(mix, checkpoint.config, Linear))
    load_weights(model, checkpoint.tensors)
    return model


@pytest.mark.parametrize("scheme", ["int8", "fp8"])
def test_eight_bits_in_a_file_are_those_made_on_the_fly(folder, tmp_path, scheme):
    out = written(folder, tmp_path / "out", scheme=scheme)
    stored, here = loaded(out), loaded(folder, Mix.of(scheme))
    pairs = list(zip(stored.layers.modules(), here.layers.modules(), strict=True))
    pairs = [(one, other) for one, other in pairs if isinstance(one, Linear)]
    assert len(pairs) == len(stored.layers) * (6 if stored.config.per_layer_width else 4)
    assert all(isinstance(one, QuantizedLinear) for one, _ in pairs)
    assert all(torch.equal(one.dequantized(), other.dequantized()) for one, other in pairs)
    ignored = json.loads((out / "config.json").read_text())["quantization_config"]["ignore"]
    assert ignored == [*(["model.per_layer_model_projection"] if stored.config.per_layer_width else []), "lm_head"]


def test_four_bits_keep_most_of_it(folder, tmp_path):
    exact = run(load_model(open_checkpoint(str(folder)), dtype=torch.float32, device="cpu"), TOKENS)
    assert (run(loaded(written(folder, tmp_path / "out")), TOKENS) - exact).norm() < 0.5 * exact.norm()


def test_rounding_by_a_text_loses_less_of_it(tmp_path, monkeypatch):
    folder = made("gemma4", tmp_path, monkeypatch)
    checkpoint, errors = open_checkpoint(str(folder)), {}
    tokens = checkpoint.tokenizer.encode(TEXT)[:64]
    exact = run(load_model(checkpoint, dtype=torch.float32, device="cpu"), tokens)
    for method in METHODS:
        found = run(loaded(written(folder, tmp_path / method, method=method)), tokens)
        errors[method] = ((found - exact).norm() / exact.norm()).item()
    assert errors["gptq"] < errors["rtn"] and errors["awq"] < errors["rtn"], errors


def test_columns_are_scaled_where_that_changes_nothing_else(tmp_path, monkeypatch):
    """Values are normalized, and those of layer 1 are keys: their rows, and the columns that read them, stay."""
    checkpoint = open_checkpoint(str(made("gemma4", tmp_path, monkeypatch)))
    source = checked(create_model(checkpoint.config, device="meta"), checkpoint.tensors)
    layer = LoneLayer.load(checkpoint.config, 1, source, CPU)
    x = torch.randn(40, 64, generator=torch.Generator().manual_seed(0))
    x[:, 5] *= 10
    with torch.inference_mode():
        expected = layer.observed([x])[0]
        before = {role: linear.weight.clone() for role, linear in layer.linears().items()}
        scale_columns(layer, 32, torch.float16)
        torch.testing.assert_close(layer.run([x])[0], expected, rtol=1e-4, atol=1e-4)
    same = {role for role, linear in layer.linears().items() if torch.equal(linear.weight, before[role])}
    assert same == {"attn_out"}


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_methods_that_observe_a_layer_alone_are_refused_where_layers_share(tmp_path, monkeypatch, method):
    folder = made("gemma4-e", tmp_path, monkeypatch)
    with pytest.raises(ConfigError, match=f"method {method} observes one layer at a time"):
        written(folder, tmp_path / "out", method=method)
    assert not (tmp_path / "out").exists()
