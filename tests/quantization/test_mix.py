"""Which matrix gets which scheme, by name; and what is refused."""

import logging
import re
from itertools import product

import pytest
import torch

from gradus import LLM, SamplingParams
from gradus.errors import ConfigError
from gradus.models import create_model, load_weights, write_config
from gradus.models.layers import Linear, MatrixId
from gradus.models.shapes import SHAPES
from gradus.quantization import mix as mix_module
from gradus.quantization.int4 import Int4Linear
from gradus.quantization.int8 import Int8Linear
from gradus.quantization.mix import Mix, factory, matrix_ids, names_of
from gradus.quantization.parts import SideBySide
from tests.loading.builders import tensors_of
from tests.models.conftest import InMemory
from tests.pairwise import each_once
from tests.phases.conftest import MIXTURES, NEWER

LLAMA = SHAPES["tiny-llama"]
GREEDY = SamplingParams(max_tokens=12, ignore_eos=True)


def written(folder, text):
    path = folder / "mix.yaml"
    path.write_text(text)
    return str(path)


def kinds(quantize, config=LLAMA):
    """MatrixId → the class that its matrix is made of."""
    make = factory(Mix.of(quantize), config, Linear)
    return {
        matrix_id: type(make(matrix_id, 64, (64,) * len(names_of(matrix_id, config)), False, torch.float32, "meta"))
        for matrix_id in matrix_ids(config)
    }


def test_a_scheme_s_name_is_for_all_matrices_but_the_head():
    found = kinds("int8")
    assert found.pop(MatrixId("head", None)) is Linear
    assert set(found.values()) == {Int8Linear} and len(found) == 4 * LLAMA.num_layers


def test_names_are_the_checkpoint_s_one_for_each_matrix_there():
    assert names_of(MatrixId("qkv", 2), LLAMA) == [f"model.layers.2.self_attn.{part}_proj" for part in "qkv"]
    assert names_of(MatrixId("gate_up", 0), LLAMA)[1] == "model.layers.0.mlp.up_proj"
    assert names_of(MatrixId("qkv", 1), SHAPES["tiny-gpt2"]) == ["h.1.attn.c_attn"]
    assert names_of(MatrixId("gate_up", 1), SHAPES["tiny-gpt2"]) == ["h.1.mlp.c_fc"]
    assert names_of(MatrixId("head", None), SHAPES["tiny-gemma3"]) == ["lm_head"]


def test_the_first_pattern_that_matches_decides(tmp_path):
    text = '"model.layers.0.*": none\n"*.mlp.*": int4\n"*.v_proj": null\n"*.self_attn.*": int8\nlm_head: int8\n'
    found = kinds(written(tmp_path, text))
    assert {found[MatrixId(role, 0)] for role in ("qkv", "attn_out", "gate_up", "down")} == {Linear}
    assert found[MatrixId("gate_up", 1)] is found[MatrixId("down", 3)] is Int4Linear
    assert found[MatrixId("qkv", 1)] is SideBySide and found[MatrixId("attn_out", 1)] is Int8Linear
    assert found[MatrixId("head", None)] is Int8Linear


def test_matrices_side_by_side_compute_what_they_do_alone():
    make = factory(Mix("x", (("*.q_proj", "int8"), ("*.k_proj", "int4"))), LLAMA, Linear)
    fused = make(MatrixId("qkv", 0), 64, (48, 16, 16), True, torch.float32, "cpu")
    generator = torch.Generator().manual_seed(0)
    weight, bias, x = (torch.randn(shape, generator=generator) for shape in ((80, 64), (80,), (3, 64)))
    for start, rows in ((0, 30), (30, 30), (60, 20)):  # pieces that straddle matrices
        fused.assign("weight", start, weight[start : start + rows])
    fused.assign("bias", 0, bias)
    out, first = fused(x), 0
    for kind, rows in ((Int8Linear, 48), (Int4Linear, 16), (Linear, 16)):
        alone = kind(MatrixId("qkv", 0), 64, (rows,), True)
        alone.assign("weight", 0, weight[first : first + rows])
        alone.assign("bias", 0, bias[first : first + rows])
        torch.testing.assert_close(out[:, first : first + rows], alone(x))
        first += rows


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('"*.gate": int8', r"pattern '\*.gate' matches no matrix of this llama model, whose names are like 'model.lay"),
        ('"*": int3', r"'\*' must be one of int8, .*none, got 'int3'"),
        ("3: int8", "3 must be one of"),
        ("- int8", "must map patterns"),
        ("", "must map patterns"),
        ("{", "not valid YAML"),
    ],
)
def test_a_file_that_says_nothing_sensible_is_refused(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message) as refused:
        LLM("random:tiny-llama", device="cpu", dtype="float32", quantize=written(tmp_path, text))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("quantize", "message"),
    [
        ("int9", "quantize must be int8, fp8, .* a .yaml file of patterns, or stored .* got 'int9'"),
        ("nowhere.yaml", "quantize nowhere.yaml: cannot be read: No such file"),
        (
            "int4-g128",
            "model.layers.0.self_attn.q_proj: int4: groups of 128 do not divide rows of 64",
        ),
    ],
)
def test_an_unknown_scheme_and_groups_that_do_not_fit_are_refused(quantize, message):
    with pytest.raises(ConfigError, match=message):
        LLM("random:tiny-llama", device="cpu", dtype="float32", quantize=quantize)


def test_fp8_is_refused_on_a_gpu_that_has_none(monkeypatch):
    from gradus.device.capability import Capability
    from gradus.quantization import precision, schemes

    monkeypatch.setattr(schemes, "capability", lambda device: Capability(8, 6))
    with pytest.raises(ConfigError, match=r"fp8 needs a GPU of compute capability 8.9 or later, this one has 8.6"):
        precision.resolve("bfloat16", "fp8", torch.device("cuda"), LLAMA)
    assert precision.resolve("bfloat16", "int8", torch.device("cuda"), LLAMA).scheme == "int8"


def test_groups_that_are_smaller_than_usual_are_said_once_per_width(caplog):
    mix_module._say_group.cache_clear()
    with caplog.at_level(logging.WARNING, logger=mix_module.__name__):
        LLM("random:tiny-llama", device="cpu", dtype="float32", quantize="int4")
    said = [record.getMessage() for record in caplog.records if record.name == mix_module.__name__]
    assert sorted(said) == sorted(
        f"int4: groups of {group}, since 128 does not divide rows of {width} weights"
        for width, group in ((64, 64), (96, 32), (160, 32))
    )


# -- whole models ------------------------------------------------------------------------------------------------------


SCHEMES = ["int8", "fp8", "fp8-block", "int4"]
CLOSE = ("fp8-block", "tiny-gemma4-moe")
"""Its third answer has no clear ninth token. In layer 3 two experts' scores are 0.0005 apart; where the whole text is
multiplied at once, an activation is rounded to the other side one layer before, and the other expert is chosen."""
BY_ROW = ["int8", "fp8", "int4"]  # blocks of several rows end where an expert does: test_experts.py
OLDER = ["tiny-gpt2", "tiny-llama", "tiny-qwen3", "tiny-gemma3", "tiny-mistral"]
USUAL = [
    ("int8", "tiny-phi3"),
    ("int8", "tiny-gpt-oss"),
    ("fp8", "tiny-olmo3"),
    ("fp8-block", "tiny-granite4"),
    ("int4", "tiny-gemma4-e"),
]


def with_newer_families() -> list:
    """Each scheme with one of them; `make stress` has the others."""
    pairs = [pair for pair in product(SCHEMES, [*NEWER, *MIXTURES]) if pair != CLOSE]
    return [pytest.param(*pair, marks=() if pair in USUAL else pytest.mark.stress) for pair in pairs]


@pytest.mark.parametrize(("quantize", "shape"), [*each_once(SCHEMES, OLDER), *with_newer_families()])
def test_every_engine_gives_a_quantized_model_s_tokens(quantize, shape):
    """The oracle: the plainest engine, over the same quantized weights."""
    settings = {"device": "cpu", "dtype": "float32", "quantize": quantize}
    prompts = [[5, 6, 7], [9] * 20, list(range(40, 80))]
    plain = LLM(f"random:{shape}", phase="p00", **settings)
    expected = [done.token_ids for done in plain.generate(prompts, GREEDY)]
    for phase in ("p06", None):
        engine = LLM(f"random:{shape}", phase=phase, max_sequences=2, **settings)
        assert [done.token_ids for done in engine.generate(prompts, GREEDY)] == expected, phase
    assert engine.precision.name == f"{quantize} weights, float32"


@pytest.mark.parametrize(("quantize", "shape"), [*product(SCHEMES, NEWER), *each_once(BY_ROW, MIXTURES)])
def test_a_checkpoint_s_matrices_are_rounded_as_ours_are(quantize, shape):
    """Rows that come in another order, or with those of other matrices, have scales of their own."""
    config = SHAPES[shape]
    tensors = InMemory(tensors_of(write_config(config)))
    wide, narrow = (create_model(config, linear=make) for make in (Linear, factory(Mix.of(quantize), config, Linear)))
    for model in (wide, narrow):
        load_weights(model, tensors)
    pairs = [pair for pair in zip(wide.modules(), narrow.modules(), strict=True) if isinstance(pair[0], Linear)]
    assert {type(mine) for _, mine in pairs} > {Linear}
    for float_one, mine in pairs:
        again = type(mine)(mine.matrix_id, mine.in_features, mine.out_features, mine.has_bias)
        again.assign("weight", 0, float_one.weight)
        for name, value in again.named_parameters():
            assert name == "bias" or torch.equal(value, mine.get_parameter(name)), mine.matrix_id


def test_a_mix_goes_through_an_engine_from_a_file_of_weights(tmp_path):
    text = '"*.q_proj": int8\n"*.mlp.*": int4\nlm_head: fp8\n'
    llm = LLM("random:tiny-llama", device="cpu", dtype="float32", quantize=written(tmp_path, text))
    (done,) = llm.generate([[5, 6, 7]], GREEDY)
    assert len(done.token_ids) == 12
    assert re.fullmatch(r"mix-[0-9a-f]{6} weights, float32 activations", llm.precision.title)


def test_two_files_of_one_name_are_told_apart(tmp_path):
    """Results are kept by this label: rows of other rules would else take each other's place."""
    folders = [tmp_path / name for name in ("one", "other", "same")]
    for folder, scheme in zip(folders, ("int8", "int4", "int8"), strict=True):
        folder.mkdir()
        (folder / "mix.yaml").write_text(f"lm_head: {scheme}")
    one, other, same = (Mix.of(str(folder / "mix.yaml")).label for folder in folders)
    assert one != other and one == same and one.startswith("mix-")
