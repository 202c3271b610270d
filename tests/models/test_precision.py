"""Which numbers to compute with: narrow storage keeps the result, and the choice is by name or by measurement."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from gradus import phases
from gradus.config.options import EngineOptions
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.errors import ConfigError
from gradus.models import create_model, precision, randomize
from gradus.models.layers import Linear, MatrixId
from gradus.models.precision import NarrowLinear, measure_cpu, resolve_device, resolve_precision
from gradus.models.shapes import SHAPES

CONFIG = SHAPES["tiny-llama"]


@pytest.mark.parametrize("rows", [1, 3, 4, 9])
@pytest.mark.parametrize("bias", [False, True])
def test_narrow_weights_multiply_as_their_rounded_values_do(rows, bias):
    narrow = NarrowLinear(MatrixId("down", 0), 24, (5, 7), bias, widen_from=4)
    exact = Linear(MatrixId("down", 0), 24, (5, 7), bias)
    generator = torch.Generator().manual_seed(rows)
    for name, shape in [("weight", (12, 24))] + [("bias", (12,))] * bias:
        values = torch.randn(shape, generator=generator)
        narrow.assign(name, 0, values)
        exact.assign(name, 0, values.bfloat16().float() if name == "weight" else values)
    x = torch.randn(rows, 24, generator=generator)
    out = narrow(x)
    assert narrow.weight.dtype == torch.bfloat16
    if rows >= 4:  # widened: float32 products of the rounded weights
        torch.testing.assert_close(out, exact(x))
    else:  # straight: the input and the result are rounded too, to 8 bits
        torch.testing.assert_close(out.float(), exact(x), rtol=0.02, atol=0.05)


@pytest.mark.parametrize("room", [5, 24, 60, 288])
@pytest.mark.parametrize("bias", [False, True])
def test_widening_piece_by_piece_gives_the_same_product(monkeypatch, room, bias):
    """12 rows of 24 values through room for none, one, two and all of them; the next product finds the room used."""
    scratch = torch.full((room,), float("nan"))
    monkeypatch.setattr(precision, "_scratch", lambda: scratch)
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        x, weight, shift = (torch.randn(shape, generator=generator) for shape in [(3, 24), (12, 24), (12,)])
        shift = shift if bias else None
        product = precision.widened_product(x, weight.bfloat16(), shift)
        torch.testing.assert_close(product, torch.nn.functional.linear(x, weight.bfloat16().float(), shift))


def test_a_model_of_narrow_weights_shares_them_with_its_embedding():
    model = create_model(replace(CONFIG, tie_embeddings=True), linear=partial(NarrowLinear, widen_from=4))
    randomize(model)
    assert model.embedding.weight is model.head.weight and model.head.weight.dtype == torch.bfloat16
    assert model.embed(torch.tensor([3]), torch.tensor([0])).dtype == torch.float32


@pytest.mark.parametrize(
    "shape", ["tiny-gpt2", "tiny-llama", "tiny-mistral", "tiny-qwen2", "tiny-qwen3", "tiny-gemma3"]
)
@pytest.mark.parametrize("phase", ["p01", "p03"])
def test_every_family_runs_on_narrow_weights_and_stays_close(shape, phase):
    """Decodes (one row) and prompts (nine rows) take the two ways to multiply; both stay near float32's logits."""
    limits = ModelLimits(SHAPES[shape].vocab_size, 64)
    request = Request.create("r", range(1, 10), SamplingParams(max_tokens=4, logprobs=20, ignore_eos=True), limits)
    answers = []
    for linear in (Linear, partial(NarrowLinear, widen_from=4)):
        model = create_model(SHAPES[shape], linear=linear)
        randomize(model, std=0.1)
        engine = phases.load(phase).build(model, EngineOptions(limits))
        engine.submit(request)
        answers.append([output.logprobs[0] for _ in range(4) for output in engine.step()])
    compared = 0
    for exact, narrow in zip(*answers, strict=True):
        likely = dict(narrow.top)
        for token, logprob in exact.top[:3]:
            assert likely[token] == pytest.approx(logprob, abs=0.25)
        compared += 1
        if exact.token_id != narrow.token_id:
            break  # a close call: from here on the two continue different texts
    assert compared >= 2  # a prompt and a decode


def test_what_is_measured_is_one_of_the_two_and_says_why():
    precision = measure_cpu(CONFIG)
    assert precision.activations == torch.float32
    assert precision.weights in (torch.float32, torch.bfloat16)
    assert precision.reason.startswith("measured: ") and " x as long" in precision.reason
    layer = precision.linear(MatrixId("down", 0), 8, (4,), False, torch.float32, "cpu")
    assert layer.weight.dtype == precision.weights


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_a_named_dtype_is_taken_at_its_word(name):
    found = resolve_precision(name, torch.device("cpu"), CONFIG)
    assert found.weights == found.activations == getattr(torch, name)
    wide = found.linear is Linear
    assert wide if name != "bfloat16" else wide or found.linear.func is NarrowLinear  # prompts may be widened


def test_a_named_type_whose_prompts_are_slow_is_taken_with_one_line_that_says_so(monkeypatch, caplog):
    monkeypatch.setattr(precision, "_prompts_in", lambda kind, shape, threads: (4, 6.12))
    precision._warn.cache_clear()
    for _ in range(2):
        found = resolve_precision("bfloat16", torch.device("cpu"), CONFIG)
        resolve_precision("float32", torch.device("cpu"), CONFIG)
    assert found.linear.keywords == {"widen_from": 4}
    line = "dtype bfloat16: on this processor a prompt takes 6.1 x as long as in float32 (measured)"
    assert caplog.messages == [line]


@pytest.mark.parametrize("bias", [False, True])
def test_a_widened_product_of_bfloat16_is_rounded_once(bias):
    part = NarrowLinear(MatrixId("down", 0), 24, (12,), bias, torch.bfloat16, widen_from=4)
    generator = torch.Generator().manual_seed(0)
    for each in part.parameters():
        each.copy_(torch.randn(each.shape, generator=generator))
    x = torch.randn(5, 24, generator=generator).bfloat16()
    shift = part.bias.float() if bias else None
    assert torch.equal(part(x), torch.nn.functional.linear(x.float(), part.weight.float(), shift).bfloat16())
    torch.testing.assert_close(part(x[:1]), part(x)[:1])


def test_the_choice_counts_prompts_too(monkeypatch):
    """Weights in bfloat16 are a little faster for a row and far slower for a prompt: float32 wins."""
    races = iter([[1.0, 0.9], *[[1.0, 2.0]] * 5, [1e4, 5e4]])
    monkeypatch.setattr(precision, "race", lambda *contenders, rounds=5: next(races))
    found = precision._measured.__wrapped__((64, 32), 2, 1)
    assert found.weights == torch.float32 and found.reason.endswith("x as long, prompt and decode")


@pytest.mark.parametrize("name", ["float64", "fp16", "", "AUTO"])
def test_an_unknown_dtype_is_refused(name):
    with pytest.raises(ConfigError, match="dtype must be auto, float32, bfloat16, float16"):
        resolve_precision(name, torch.device("cpu"), CONFIG)


@pytest.mark.parametrize("name", ["tpu", "", "cpu:x", "meta", "cuda" if not torch.cuda.is_available() else "mps"])
def test_a_device_that_is_not_there_is_refused(name):
    with pytest.raises(ConfigError, match="device"):
        resolve_device(name)


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)


def test_a_gpu_may_be_named_by_its_number_and_without_one_is_the_current_one_for_good(two_gpus, monkeypatch):
    assert [str(resolve_device(name)) for name in ("auto", "cuda", "cuda:0")] == ["cuda:1", "cuda:1", "cuda:0"]
    with pytest.raises(ConfigError, match=r"^device 'cuda:9': the GPUs here are cuda:0 to cuda:1$"):
        resolve_device("cuda:9")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match=r"^device 'cuda:1': the only GPU here is cuda:0$"):
        resolve_device("cuda:1")


def test_an_engine_that_is_built_again_keeps_its_precision(monkeypatch) -> None:
    """Two races can have two winners, where the machine is busy, and a text would change with its precision."""
    first = measure_cpu(CONFIG)
    monkeypatch.setattr("gradus.models.precision.race", lambda *contenders: pytest.fail("raced again"))
    assert measure_cpu(CONFIG) is first
