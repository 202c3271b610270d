"""p09's first kernel, interpreted: run by test_p09.py, and by `gradus check p09` on a student's file.

Tiny on purpose: the interpreter takes milliseconds per program. New memory is poisoned with NaN, and so is whatever a
GPU leaves undefined.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from triton.runtime.interpreter import interpreter_builder

from gradus.config.options import EngineOptions
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.models import SHAPES, create_model, randomize
from gradus.models.layers import RMSNorm
from phases.p01_kv_cache.engine import build as build_p01
from phases.p09_triton_attention import norm
from phases.p09_triton_attention.watch import watched
from tests.kernels.cases import parted
from tests.phases.drive import parting, run


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch):
    load = interpreter_builder.create_masked_load

    def undefined(ptrs, mask, other, *rest):
        """The interpreter puts 0 into lanes that a mask keeps from memory; a GPU leaves them undefined."""
        found = load(ptrs, mask, other, *rest)
        if other is None and found.data.dtype.kind == "f":
            found.data[~mask.data] = float("nan")
        return found

    monkeypatch.setattr(interpreter_builder, "create_masked_load", undefined)
    torch.manual_seed(0)
    torch.set_deterministic_debug_mode("error")  # torch.empty then gives NaN
    yield
    torch.set_deterministic_debug_mode("default")


def rows(count: int = 3, width: int = 80, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return torch.randn(count, width).to(dtype), torch.randn(count, width).to(dtype)


def assert_close(out: Tensor, reference: Tensor, what: str) -> None:
    assert not out.isnan().any(), (
        f"{what} has values that nothing wrote, or that came from beyond the row, where a masked load without `other` "
        "leaves anything"
    )
    error = (out.double() - reference.double()).norm() / reference.double().norm()
    assert error < (1e-6 if out.dtype == torch.float32 else 2e-3), (
        f"{what}, {len(out)} random rows of width {out.shape[1]}: {parted(out, reference)}"
    )


def test_eps_is_added_to_the_mean_square_before_the_root():
    y = norm.add_rms_norm(torch.ones(1, 4), torch.zeros(1, 4), torch.ones(4), 3.0)[0].tolist()
    assert y == pytest.approx([0.5] * 4), f"the row [1, 1, 1, 1] with eps 3: 1 / √(1 + 3) is 0.5; yours: {y}"


def test_a_program_touches_its_row_alone_and_reads_it_once():
    """80 numbers lie in a block of 128. Each tensor has room around it, so that a stray store hits nothing else."""
    x, delta, y = (torch.zeros(1024)[256:496].view(3, 80) for _ in range(3))
    weight = torch.zeros(1024)[256:336]
    with watched() as seen:
        norm.add_rms_norm_kernel[(3,)](x, delta, weight, y, 1e-5, D=80, BLOCK=128)
    kernel, row = seen["add_rms_norm_kernel"], 4 * 80
    read, written = max(kernel.read), max(kernel.written)
    assert read <= 3 * row, (
        f"80 numbers of x, delta and weight are {3 * row} bytes, and a program of yours reads {read}: "
        "every load needs a mask, and the sum need not be read again"
    )
    assert written <= 2 * row, (
        f"80 numbers of x and y are {2 * row} bytes, and a program of yours writes {written}: every store needs a mask"
    )


@pytest.mark.parametrize("width", [64, 80, 1])
def test_a_row_is_divided_by_its_root_mean_square_whatever_its_width(width):
    """80 values lie in a block of 128: the lanes beyond the row are no part of its mean square."""
    x, _ = rows(width=width)
    weight, nothing = torch.randn(width), torch.zeros_like(x)
    y = norm.add_rms_norm(x.clone(), nothing, weight, 1e-5)
    assert_close(y, norm.add_rms_norm_reference(x.clone(), nothing, weight, 1e-5), "y")


def test_the_sum_is_written_back_and_is_what_is_normalized():
    x, delta = rows()
    weight, mine, theirs = torch.randn(80), x.clone(), x.clone()
    y = norm.add_rms_norm(mine, delta, weight, 1e-5)
    expected = norm.add_rms_norm_reference(theirs, delta, weight, 1e-5)
    assert_close(mine, theirs, "x, which is to be x + delta afterwards")
    assert_close(y, expected, "y")


def test_the_rounded_sum_is_what_is_normalized():
    """float16 rounds 2048 + 1 to 2048 and 2050 + 1 to 2052. Later layers read these, so the norm is of these."""
    x = torch.tensor([2048.0, 2050.0], dtype=torch.float16).repeat(1, 40)
    y = norm.add_rms_norm(x, torch.ones_like(x), torch.ones(80), 1e-5)
    found = [f"{value:.4f}" for value in y[0, :2].tolist()]
    assert found == ["0.9990", "1.0010"], f"of the rounded sums 2048 and 2052, y is 0.9990 and 1.0010; yours: {found}"


def test_the_arithmetic_is_float32():
    """100² · 80 overflows float16."""
    x, delta = rows(dtype=torch.float16)
    x = x * 100
    weight, mine, theirs = torch.randn(80), x.clone(), x.clone()
    y = norm.add_rms_norm(mine, delta, weight, 1e-5)
    expected = norm.add_rms_norm_reference(theirs, delta, weight, 1e-5)
    assert torch.equal(mine, theirs), "x is not the rounded sum"
    assert_close(y, expected, "y")


def test_a_row_of_zeros_stays_zero():
    y = norm.add_rms_norm(torch.zeros(2, 80), torch.zeros(2, 80), torch.ones(80), 1e-5)
    assert not y.any(), "eps keeps 0 / 0 away, and y is not all zero"


def test_no_rows_are_no_work():
    assert norm.add_rms_norm(*rows(count=0), torch.ones(80), 1e-5).shape == (0, 80)


def test_a_model_with_this_norm_gives_the_tokens_that_it_gives_without(monkeypatch):
    """Two layers, three tokens: every norm of the model adds nothing and normalizes."""
    config = replace(SHAPES["tiny-llama"].stage(range(2)), context_length=16)
    model = create_model(config)
    randomize(model, seed=0, std=0.1)
    limits = ModelLimits(config.vocab_size, 16)
    request = Request.create("a", [5, 6], SamplingParams(max_tokens=3, ignore_eos=True), limits)
    wanted = run(build_p01(model, EngineOptions(limits)), [request])["a", 0].tokens
    calls = []

    def forward(self, x: Tensor) -> Tensor:
        calls.append(len(x))
        return norm.add_rms_norm(x.clone(), torch.zeros_like(x), self.weight, self.eps)

    monkeypatch.setattr(RMSNorm, "forward", forward)
    found = run(build_p01(model, EngineOptions(limits)), [request])["a", 0].tokens
    assert len(calls) == 3 * 5, "five norms per step: two per layer, and one at the end"
    assert found == wanted, parting([5, 6], found, wanted)
