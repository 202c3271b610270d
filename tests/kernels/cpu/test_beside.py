"""Products that run outside a model's step and share its threads."""

import numpy as np
import pytest
import torch

from gradus.kernels.cpu.activations import MOST_ROWS
from gradus.models import Linear, MatrixId
from gradus.quantization.int8 import Int8Linear
from gradus.quantization.mix import Mix, factory
from tests.kernels.cpu.steps import Pages, Step, close, dense, generator, made, poison, same

MATRIX = MatrixId("gate_up", None)
SIZES = [(96, (64,)), (64, (160, 160)), (576, (21,)), (33, (700,))]  # wider than the model's, and longer; and odd ones


def matrices(dtype: torch.dtype, bias: bool = False) -> list[Linear]:
    found = [Linear(MATRIX, width, outputs, bias, dtype) for width, outputs in SIZES]
    for seed, linear in enumerate(found):
        for part in linear.parameters():
            part.copy_(torch.randn(part.shape, generator=generator(seed)) / 8)
    return found


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("dtype", "bias"), [(torch.float32, True), (torch.bfloat16, False)])
@torch.inference_mode()
def test_a_product_is_that_of_its_matrix_whatever_ran_before(dtype, bias, threads):
    """Between steps of the model, and after wider and narrower products of more rows and of fewer."""
    model = made("tiny-llama")
    beside = matrices(dtype, bias)
    step, alone = Step(model, [5, 31, 0]), Pages(model).decode_model(model, threads)
    decode = Pages(model).decode_model(model, threads, beside)
    expected = step.compiled(alone)
    poison(decode)
    for rows in (1, 3, MOST_ROWS, 8, 1):
        for number in (0, 3, 2, 1):
            linear = beside[number]
            x = torch.randn(rows, linear.in_features, generator=generator(rows + number))
            found = decode.multiply(number, x)
            assert found.dtype == torch.float32 and found.is_contiguous()
            close(found, x @ dense(linear).t() + (linear.bias if bias else 0))
        same(step.compiled(decode), expected)


@torch.inference_mode()
def test_a_quantized_matrix_is_multiplied_as_it_is_in_a_step():
    model = made("tiny-llama")
    make = factory(Mix.of("int8"), model.config, Linear)
    linear = make(MatrixId("gate_up", 0), 64, (80,), False, torch.float32, "cpu")
    assert isinstance(linear, Int8Linear)
    linear.assign("weight", 0, torch.randn(80, 64, generator=generator(1)) / 8)
    x = torch.randn(5, 64, generator=generator(2))
    close(Pages(model).decode_model(model, 2, [linear]).multiply(0, x), linear(x))


@torch.inference_mode()
def test_what_a_step_leaves_is_there_after_a_product():
    """The hidden states of its rows, which heads draft from, and its logits, until the next step."""
    model, (linear, *_) = made("tiny-qwen3"), matrices(torch.float32)
    step, decode = Step(model, [5, 31, 0]), Pages(model).decode_model(model, 2, [linear])
    logits, states = step.compiled(decode), decode.hidden(np.array([0, 2]))
    decode.multiply(0, torch.ones(4, linear.in_features))
    same(decode.logits[:3], logits)
    same(decode.hidden(np.array([0, 2])), states)


def test_a_model_alone_has_room_for_no_product():
    decode = Pages(made("tiny-llama")).decode_model(made("tiny-llama"))
    assert decode.given.numel() == decode.made.numel() == 0 and decode.count == len(decode.step.stages)
