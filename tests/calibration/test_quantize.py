"""`gradus quantize`: what it writes is loaded as it is, loses as little as it should, and a cut-off run goes on."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from gradus import LLM, SamplingParams
from gradus.attention.whole import WholeSequence
from gradus.calibration import quantize as quantize_module
from gradus.calibration.layer import LoneLayer
from gradus.calibration.methods import METHODS, scale_columns
from gradus.calibration.observed import ObservedLinear
from gradus.calibration.quantize import Recipe, quantize
from gradus.errors import ConfigError
from gradus.loading import load_model, open_checkpoint
from gradus.loading.progress import Silent
from gradus.models.create import create_model
from gradus.models.weights import checked
from tests.loading.builders import write_folder, write_gguf
from tests.loading.quantized_builders import matrices
from tests.pairwise import each_once, first

CPU = torch.device("cpu")
TEXT = "the cat sat on the mat, and the hat was on the cat: that is a fact. " * 40
GREEDY = SamplingParams(max_tokens=8, ignore_eos=True)


@pytest.fixture
def folder(tmp_path):
    return tame_folder(tmp_path / "float")


def tame_folder(folder, family="llama"):
    """A checkpoint whose matrices are small enough that an error of one layer does not grow in the next."""
    write_folder(folder, family)
    tensors = load_file(folder / "model.safetensors")
    tensors = {name: value if value.dim() == 1 else 0.1 * value for name, value in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def written(folder, out, text=TEXT, **recipe):
    quantize(
        open_checkpoint(str(folder)),
        out,
        Recipe(**{"samples": 4, "length": 32} | recipe),
        text,
        device=CPU,
        progress=Silent(),
    )
    return out


def test_a_head_of_its_own_is_written_and_said_to_be_its_own(tmp_path):
    """The configuration calls it tied; others than Gradus believe that."""
    folder = tame_folder(tmp_path / "tied", "qwen3")
    tensors = load_file(folder / "model.safetensors")
    head = 0.1 * torch.randn(tensors["model.embed_tokens.weight"].shape, generator=torch.Generator().manual_seed(3))
    save_file(tensors | {"lm_head.weight": head}, folder / "model.safetensors", metadata={"format": "pt"})
    out = written(folder, tmp_path / "int8", scheme="int8")
    assert json.loads((out / "config.json").read_text())["tie_word_embeddings"] is False
    model = LLM(str(out), phase="p00", device="cpu", dtype="bfloat16").engine.runner.model
    assert torch.equal(model.head.weight, head.bfloat16())


def hidden_of(folder):
    """Return the whole model's hidden states for a text, in float32."""
    llm = LLM(str(folder), phase="p00", device="cpu", dtype="float32")
    model = llm.engine.runner.model
    ids = torch.tensor(llm.tokenizer.encode(TEXT)[:64])
    with torch.inference_mode():
        return model(ids, torch.arange(64), WholeSequence(model.config))


FAMILIES = ["llama", "gemma3", "phi3", "olmo2", "granite4", "qwen3"]


@pytest.mark.parametrize("family, scheme", each_once(FAMILIES, ["int8", "fp8"]))
def test_eight_bits_in_a_file_are_those_made_on_the_fly(tmp_path, family, scheme):
    folder = tame_folder(tmp_path / "float", family)
    out = written(folder, tmp_path / "out", scheme=scheme)
    checkpoint = open_checkpoint(str(out))
    assert checkpoint.quantized.label == f"compressed-tensors {scheme}"
    assert {found for _, found in checkpoint.quantized.rules} == {scheme}
    settings = {"device": "cpu", "dtype": "float32"}
    found = dict(matrices(LLM(str(out), **settings)))
    expected = dict(matrices(LLM(str(folder), quantize=scheme, **settings)))
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)


@pytest.mark.parametrize("family", first(FAMILIES, 5))  # the last one's layers have the parts that a Llama's have
def test_rounding_by_a_text_loses_less_of_it(tmp_path, family):
    folder = tame_folder(tmp_path / "float", family)
    exact, errors = hidden_of(folder), {}
    for method in METHODS:
        out = written(folder, tmp_path / method, method=method)
        assert {found for _, found in open_checkpoint(str(out)).quantized.rules} == {"int4-g32"}
        errors[method] = ((hidden_of(out) - exact).norm() / exact.norm()).item()
    assert errors["rtn"] < 0.7 and errors["gptq"] < errors["rtn"] and errors["awq"] < errors["rtn"], errors
    (done,) = LLM(str(out), device="cpu", dtype="float32").generate(["the cat"], GREEDY)
    assert len(done.token_ids) == 8


def test_a_gguf_becomes_a_folder_with_its_tokenizer(tmp_path):
    file = write_gguf(tmp_path / "tiny.gguf")
    out = written(file, tmp_path / "out", scheme="int8")
    before, after = (open_checkpoint(str(path)) for path in (file, out))
    assert after.tokenizer.encode(TEXT) == before.tokenizer.encode(TEXT) and after.config == before.config
    assert after.tokenizer.has_chat_template


def test_a_layer_on_its_own_computes_what_it_does_in_its_model(folder):
    checkpoint = open_checkpoint(str(folder))
    model = load_model(checkpoint, dtype=torch.float32, device="cpu")
    source = checked(create_model(checkpoint.config, device="meta"), checkpoint.tensors)
    x = torch.randn(20, 64, generator=torch.Generator().manual_seed(0))
    positions = torch.arange(20)
    with torch.inference_mode():
        expected = model.run_layers(x, positions, WholeSequence(model.config))
        for number in range(checkpoint.config.num_layers):
            (x,) = LoneLayer.load(checkpoint.config, number, source, CPU).run([x])
    torch.testing.assert_close(x, expected)


def test_statistics_are_of_all_rows_since_observing():
    linear = ObservedLinear(("qkv", 0), 8, (4,), False)
    linear.weight.copy_(torch.eye(4, 8))
    x = torch.randn(7, 8, generator=torch.Generator().manual_seed(0))
    linear(x)
    linear.observe()
    for part in x.split(3):
        torch.testing.assert_close(linear(part), F.linear(part, linear.weight))
    torch.testing.assert_close(linear.gram, x.T @ x)
    torch.testing.assert_close(linear.magnitude, x.abs().mean(0))


@pytest.mark.parametrize("family", ["llama", "gemma3", "olmo2"])
def test_scaled_columns_change_nothing_but_what_is_rounded(tmp_path, family):
    checkpoint = open_checkpoint(str(tame_folder(tmp_path / "float", family)))
    source = checked(create_model(checkpoint.config, device="meta"), checkpoint.tensors)
    layer = LoneLayer.load(checkpoint.config, 0, source, CPU)
    x = torch.randn(40, 64, generator=torch.Generator().manual_seed(0))
    x[:, 5] *= 10
    with torch.inference_mode():
        expected = layer.observed([x])[0]
        before = {role: linear.weight.clone() for role, linear in layer.linears().items()}
        scale_columns(layer, 32, torch.float16)
        torch.testing.assert_close(layer.run([x])[0], expected, rtol=1e-4, atol=1e-4)
    assert not torch.equal(layer.linears()["qkv"].weight, before["qkv"])
    assert not torch.equal(layer.linears()["down"].weight, before["down"])


def test_a_run_that_was_cut_off_goes_on_and_gives_the_same(folder, tmp_path, monkeypatch):
    whole = written(folder, tmp_path / "whole", method="gptq")
    stopped = tmp_path / "stopped"
    real = quantize_module._quantized

    def once(layer, *rest):
        if layer.number == 1:
            raise KeyboardInterrupt
        return real(layer, *rest)

    def not_the_first(layer, *rest):
        assert layer.number > 0
        return real(layer, *rest)

    monkeypatch.setattr(quantize_module, "_quantized", once)
    with pytest.raises(KeyboardInterrupt):
        written(folder, stopped, method="gptq")
    assert json.loads((stopped / "quantize.json").read_text())["done"] == 1
    monkeypatch.setattr(
        quantize_module, "_quantized", lambda layer, *rest: real(layer, *rest) if layer.number else pytest.fail("again")
    )
    with pytest.raises(ConfigError, match="holds 1 layers that were quantized with another method"):
        written(folder, stopped, method="awq")
    written(folder, stopped, method="gptq")
    assert sorted(path.name for path in stopped.iterdir()) == sorted(path.name for path in whole.iterdir())
    for path in whole.glob("*.safetensors"):
        found, expected = load_file(stopped / path.name), load_file(path)
        assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)


def test_what_is_there_already_is_not_written_over(folder, tmp_path):
    out = written(folder, tmp_path / "out", scheme="int8")
    with pytest.raises(ConfigError, match="is there already"):
        written(folder, out, scheme="int8")


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"scheme": "int3"}, "scheme must be int4, int8, fp8, got 'int3'"),
        ({"method": "hqq"}, "method must be rtn, awq, gptq, got 'hqq'"),
        ({"scheme": "int8", "method": "awq"}, "method awq is for int4: int8 is rounded to nearest"),
        ({"group": 48}, "group is for int4, and one of 128, 64, 32, got 48"),
        ({"scheme": "int8", "group": 64}, "group is for int4"),
        ({"group": 128}, "int4: groups of 128 would divide rows of 64, 96 weights"),
        ({"samples": 0}, "samples must be 1 or more"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused_before_anything_is_written(folder, tmp_path, recipe, message):
    with pytest.raises(ConfigError, match=message):
        written(folder, tmp_path / "out", **recipe)
    assert not (tmp_path / "out").exists()


def test_a_text_that_is_missing_or_too_short_is_said(folder, tmp_path):
    for text, message in (
        (None, r"method gptq needs a text to calibrate by \(--calibration FILE\)"),
        ("a", "fewer than one seq"),
    ):
        with pytest.raises(ConfigError, match=message):
            written(folder, tmp_path / "out", text=text, method="gptq")
    assert not (tmp_path / "out").exists()


def test_what_has_no_files_or_is_quantized_already_is_refused(folder, tmp_path):
    out = written(folder, tmp_path / "out", scheme="int8")
    for name, message in (
        (str(out), r"is quantized already \(compressed-tensors int8\)"),
        ("random:tiny-llama", "random weights have no files"),
        (str(write_folder(tmp_path / "gpt2", "gpt2")), "whose matrices lie transposed"),
    ):
        with pytest.raises(ConfigError, match=message):
            written(name, tmp_path / "again", scheme="int8")


TOKENS_IN_8_BITS = {"num_bits": 8, "symmetric": True, "dynamic": True, "strategy": "token"}
WORDS = {  # format; of weights; of activations
    "int8": (
        "int-quantized",
        {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "group_size": None},
        TOKENS_IN_8_BITS | {"type": "int"},
    ),
    "fp8": (
        "float-quantized",
        {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel", "group_size": None},
        TOKENS_IN_8_BITS | {"type": "float"},
    ),
    "int4": (
        "pack-quantized",
        {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": 32},
        None,
    ),
}
STORED = {  # of down, which is 64 by 96: type and shape by the end of a name
    "int8": {"weight": ("int8", (64, 96)), "weight_scale": ("float32", (64, 1))},
    "fp8": {"weight": ("float8_e4m3fn", (64, 96)), "weight_scale": ("float32", (64, 1))},
    "int4": {
        "weight_packed": ("int32", (64, 96 // 8)),
        "weight_scale": ("bfloat16", (64, 96 // 32)),
        "weight_zero_point": ("int32", (64 // 8, 96 // 32)),
        "weight_shape": ("int64", (2,)),
    },
}


@pytest.mark.parametrize("scheme", WORDS)
def test_the_words_of_compressed_tensors_for_it(folder, tmp_path, scheme):
    """Every field that vLLM 0.26 and compressed-tensors 0.17 choose a reader by, and every tensor that it reads."""
    out = written(folder, tmp_path / "out", scheme=scheme)
    found = json.loads((out / "config.json").read_text())["quantization_config"]
    name, weights, activations = WORDS[scheme]
    assert found == {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": name,
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": weights | {"dynamic": False},
                "input_activations": activations,
            }
        },
        "ignore": ["lm_head"],
    }
    tensors = load_file(out / "model-00001.safetensors")
    prefix = "model.layers.0.mlp.down_proj."
    assert {
        name.removeprefix(prefix): (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    } == STORED[scheme]
    if scheme == "int4":
        assert tensors[f"{prefix}weight_shape"].tolist() == [64, 96]


def test_every_method_is_offered():
    assert set(METHODS) == {"rtn", "awq", "gptq"}
