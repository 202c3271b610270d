"""The kernels' loops on an ARM: assembled with its vectors and its instructions, and run by an emulator."""

import re

import gguf
import numpy as np
import pytest
import torch

from gradus.kernels.cpu import machine, outer, vectors
from gradus.kernels.cpu.byte_products import PRODUCTS, _int8_code, _row_pairs_code
from gradus.kernels.cpu.gguf import blocks as gguf_blocks
from gradus.kernels.cpu.int4 import tile
from gradus.loading.gguf.packed import KEPT
from gradus.models.layers import MatrixId
from gradus.quantization.gguf import FORMATS
from gradus.quantization.int4 import Int4Linear
from tests.kernels.cpu.emitted import assembly_for_arm, code_of, needs_emulator, run_on_arm
from tests.kernels.cpu.products import int4_product
from tests.loading.gguf_blocks import random_blocks

COUNTS = (1, 2, 4, 8)


@pytest.fixture(autouse=True)
def arm(monkeypatch):
    """Make the modules find an Arm processor."""
    monkeypatch.setattr(machine, "IS_X86", False)
    for extension in ("HAS_BF16", "HAS_AVX512", "BY_PAIRS"):
        monkeypatch.setattr(vectors, extension, False)
    monkeypatch.setattr(tile, "HAS_AVX512", False)
    monkeypatch.setattr(vectors, "WIDE", 8)
    monkeypatch.setattr(outer, "WIDE", 8)
    monkeypatch.setattr(outer, "PANEL", 16)
    monkeypatch.setattr(outer, "BESIDE", 4)
    monkeypatch.setattr(vectors, "WIDENS_HALVES", True)
    monkeypatch.setattr(gguf_blocks, "WIDENS_HALVES", True)
    monkeypatch.setattr(tile, "WIDENS_HALVES", True)


# -- assembled ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize(
    ("loop", "literal", "words"),
    [(tile._int4_code, (0,), 14), (vectors._float_code, (1, 3, 1, vectors.KEEP), 13), (vectors._sum_code, (1,), 9)],
    ids=["int4", "float", "sum"],
)
def test_the_loops_are_vector_code_of_any_processor(loop, literal, words, count):
    code = code_of(loop(*literal[:2], count, *literal[2:]), words)
    assert "llvm.x86" not in code
    assert ".4s" in assembly_for_arm(code)  # its vectors of four floats


@pytest.mark.parametrize("halves", [0, 1])
@pytest.mark.parametrize("ends", [outer.ADDS, outer.WRITES, outer.SCATTERS])
def test_outer_products_keep_their_sums_in_an_arms_registers(halves, ends):
    code = assembly_for_arm(code_of(outer._outer_code(halves, outer.BESIDE, ends, 0), 12))
    assert "fmla" in code
    assert not re.search(r"str\s+q\d+, \[sp", code)  # no vector is spilled


def test_a_pause_is_left_out_where_there_is_none(monkeypatch):
    _, generate = machine.pause._defn(None)
    assert "llvm.x86" not in assembly_for_arm(code_of(generate, 0))
    monkeypatch.setattr(machine, "IS_X86", True)
    assert "llvm.x86.sse2.pause" in code_of(generate, 0)


def test_an_arm_multiplies_bytes_by_its_own_instructions():
    by_row = assembly_for_arm(code_of(_int8_code(PRODUCTS["sdot"], 2, 4), 11), "+dotprod")
    assert by_row.count("sdot") == 2 * 4 * 4  # rows, activations, and vectors of a step
    by_pairs = assembly_for_arm(code_of(_row_pairs_code(4, 8), 10), "+dotprod,+i8mm")
    assert by_pairs.count("smmla") == 2 * 4 * 8  # pairs of rows, of activations, and halves of a step's vectors
    assert not re.search(r"q\d+, .*\[sp", by_pairs)  # no vector is spilled


# -- run by an emulator ------------------------------------------------------------------------------------------------


def random_bytes(rows, count, width=640):
    """Among noise, rows of the largest products."""
    random = np.random.default_rng(rows * count)
    weights = random.integers(-128, 128, (rows, width), dtype=np.int8)
    x = random.integers(-127, 128, (count, width), dtype=np.int8)
    weights[0, : width // 2], x[0, : width // 4], x[0, width // 4 :] = -128, -127, 127
    return weights, x


@needs_emulator
@pytest.mark.stress
@pytest.mark.parametrize(("rows", "count"), [(1, 1), (2, 2), (2, 4), (1, 8)])
def test_sdot_gives_the_sums_of_integers(rows, count, tmp_path):
    weights, x = random_bytes(rows, count)
    ones, none, out = np.ones(8, np.float32), np.zeros(8, np.int32), np.zeros((count, rows), np.float32)
    width = weights.shape[1]
    run_on_arm(
        _int8_code(PRODUCTS["sdot"], rows, count), [0, 0, weights, ones, width, x, width, ones, none, out, 4 * rows],
        tmp_path, "+dotprod", "neoverse-n1",
    )  # fmt: skip
    assert np.array_equal(out.astype(np.int64), x.astype(np.int64) @ weights.astype(np.int64).T)


@needs_emulator
@pytest.mark.stress
@pytest.mark.parametrize(("rows", "count"), [(2, 2), (4, 2), (4, 4), (4, 8)])
def test_smmla_gives_the_sums_of_integers_and_each_row_its_scales(rows, count, tmp_path):
    weights, x = random_bytes(rows, count)
    width = weights.shape[1]
    pairs = np.zeros((count, 2 * width), np.int8)  # as narrow rows are
    pairs[::2] = x.reshape(count // 2, 2, width // 8, 8).swapaxes(1, 2).reshape(count // 2, -1)
    scales, x_scales = 2.0 ** np.arange(rows, dtype=np.float32), 2.0 ** -np.arange(count, dtype=np.float32)
    out = np.zeros((count, rows), np.float32)
    run_on_arm(
        _row_pairs_code(rows, count), [0, 0, weights, scales, width, pairs, 2 * width, x_scales, out, 4 * rows],
        tmp_path, "+dotprod,+i8mm",
    )  # fmt: skip
    expected = x.astype(np.int64) @ weights.astype(np.int64).T
    assert np.array_equal(out, expected * scales * x_scales[:, None])


@needs_emulator
@pytest.mark.stress
@pytest.mark.parametrize("halves", [0, 1])
@pytest.mark.parametrize(("rows", "count"), [(1, 1), (1, 8), (4, 4)])
def test_floats_are_multiplied_as_they_are(halves, rows, count, tmp_path):
    torch.manual_seed(rows * count)
    weights, x = torch.randn(rows, 256), torch.randn(count, 256)
    stored = weights.bfloat16().view(torch.int16).numpy() if halves else weights.numpy()
    wide, out = weights.bfloat16().double() if halves else weights.double(), np.zeros((count, rows), np.float32)
    stride = stored.strides[0]
    run_on_arm(
        vectors._float_code(halves, rows, count, 2, vectors.KEEP),
        [0] * 5 + [stored, stride, 256, 4096, x.numpy(), 4 * 256, out, 4 * rows], tmp_path,
    )  # fmt: skip
    torch.testing.assert_close(torch.from_numpy(out).double(), x.double() @ wide.t(), rtol=1e-5, atol=1e-4)


@needs_emulator
@pytest.mark.stress
@pytest.mark.parametrize("ends", [outer.ADDS, outer.WRITES, outer.SCATTERS])
@pytest.mark.parametrize(("halves", "rows"), [(0, 1), (0, 4), (1, 1), (1, 4)])
def test_outer_products_are_those_of_floats(halves, rows, ends, tmp_path):
    torch.manual_seed(rows)
    singles, panel = torch.randn(rows, 96), torch.randn(96, outer.PANEL)
    stored = singles.bfloat16().view(torch.int16).numpy() if halves else singles.numpy()
    expected = (singles.bfloat16().double() if halves else singles.double()) @ panel.double()
    out = np.full((outer.PANEL, rows) if ends == outer.SCATTERS else (rows, outer.PANEL), 3, np.float32)
    run_on_arm(
        outer._outer_code(halves, rows, ends, 1),
        [0] * 4 + [stored, stored.strides[0], stored.itemsize, 96, panel.numpy(), 4 * outer.PANEL, out, out.strides[0]],
        tmp_path,
    )  # fmt: skip
    found = torch.from_numpy(out).double()
    found = found.t() if ends == outer.SCATTERS else found - (3 if ends == outer.ADDS else 0)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


@needs_emulator
@pytest.mark.stress
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("count", COUNTS)
def test_int4_is_multiplied_as_its_floats(count, kind, tmp_path):
    torch.manual_seed(count)
    width, group = 256, 64
    linear = Int4Linear(MatrixId("down", 0), width, (vectors.LANES,), False, kind, group=group)
    linear.assign("weight", 0, torch.randn(vectors.LANES, width))
    expected, x = linear.dequantized().double(), torch.randn(count, width)
    linear.use_lanes()
    sums, out = x.view(count, -1, tile.PLANE).sum(2).numpy(), np.zeros((count, vectors.LANES), np.float32)
    words, pairs = (each.detach().contiguous().view(torch.uint8).numpy() for each in (linear.words, linear.pairs))
    run_on_arm(
        tile._int4_code(tile.FLOATS, count),
        [0, 0, int(linear.kind == torch.float16), words, pairs, group // (2 * tile.PLANE), width // (2 * tile.PLANE),
         x.numpy(), 4 * width, sums, sums, 4 * sums.shape[1], out, 4 * vectors.LANES], tmp_path,
    )  # fmt: skip
    torch.testing.assert_close(torch.from_numpy(out).double(), x.double() @ expected.t(), rtol=1e-5, atol=1e-4)


@needs_emulator
@pytest.mark.stress
@pytest.mark.parametrize("group", [32, 128])
@pytest.mark.parametrize("count", COUNTS)
def test_int4_is_multiplied_by_rounded_activations(count, group, tmp_path):
    arguments, expected, out = int4_product(group, count)
    run_on_arm(tile._int4_code(tile.BYTES, count, "sdot"), arguments, tmp_path, "+dotprod", "neoverse-n1")
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@needs_emulator
@pytest.mark.stress
@pytest.mark.parametrize("kind", KEPT)
def test_blocks_of_a_file_are_multiplied_by_rounded_activations(kind, tmp_path):
    name, random = KEPT[kind], np.random.default_rng(3)
    stored = random_blocks(kind, 1, 512)
    x, scales = random.integers(-127, 128, 512, dtype=np.int8), random.random(16, np.float32)
    rounded = x.reshape(-1, 32) * scales[:, None]
    sums, out = rounded.sum(1, dtype=np.float32), np.zeros(1, np.float32)
    dot = gguf_blocks._bytes_code(name, "sdot")

    def generate(context, builder, signature, args):
        code, *others, written = vectors.Code(builder), *args
        code.write(written, code.whole(0), dot(context, builder, signature, others))

    arguments = [0, stored, 512 // FORMATS[name].values, x, scales, sums, out]
    run_on_arm(generate, arguments, tmp_path, "+dotprod", "neoverse-n1")
    expected = rounded.astype(np.float64).ravel() @ gguf.quants.dequantize(stored, kind)[0]
    assert out[0] == pytest.approx(expected, rel=1e-4, abs=1e-4 * float(np.abs(rounded).sum()))


@needs_emulator
@pytest.mark.stress
@pytest.mark.parametrize("kind", KEPT)
def test_blocks_of_a_file_are_widened_to_the_bit(kind, tmp_path):
    stored = random_blocks(kind, 1, 512)
    expected, out = gguf.quants.dequantize(stored, kind), np.zeros((1, 512), np.float32)
    name = KEPT[kind]
    run_on_arm(gguf_blocks._widen_code(name, 0), [0, 0, stored, 512 // FORMATS[name].values, out], tmp_path)
    assert np.array_equal(out.view(np.uint32), expected.view(np.uint32))
