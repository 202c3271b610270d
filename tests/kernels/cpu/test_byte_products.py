"""Products of int8 by each processor's instruction: equal integers, and the right one for each target."""

import ctypes

import numpy as np
import pytest
from llvmlite import binding

from gradus.kernels.cpu.byte_products import PRODUCTS, _int8_code, chosen
from gradus.kernels.cpu.int4 import tile
from tests.kernels.cpu.emitted import code_of
from tests.kernels.cpu.products import int4_product

FEATURES = {
    "avx512vnni": {"avx512f", "avx512bw", "avx512vnni"},
    "avxvnni": {"avx2", "avxvnni", "f16c"},
    "avx2": {"avx2", "fma", "f16c"},
}
"""What LLVM compiles for: each product alone, as on a processor with nothing newer."""


def target(features: set[str]) -> binding.TargetMachine:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    found = ",".join(f"+{feature}" for feature in sorted(features))
    return binding.Target.from_default_triple().create_target_machine(cpu="x86-64", features=found, opt=2, jit=True)


@pytest.mark.parametrize(("rows", "count"), [(1, 1), (2, 2), (2, 4), (1, 8)])
@pytest.mark.parametrize("name", FEATURES)
def test_every_instruction_gives_the_sums_of_integers(name, rows, count):
    """Among noise, rows of the largest products, which would saturate int16 if two of them were added carelessly."""
    here = binding.get_host_cpu_features()
    if not all(here.get(feature, False) for feature in FEATURES[name]):
        pytest.skip(f"this processor has no {name}")
    width, random = 640, np.random.default_rng(rows * count)
    weights = random.integers(-128, 128, (rows, width), dtype=np.int8)
    x = random.integers(-127, 128, (count, width), dtype=np.int8)
    weights[0, : width // 2], x[0, : width // 4], x[0, width // 4 :] = -128, -127, 127
    scales, x_scales = np.ones(rows, np.float32), np.ones(count, np.float32)
    corrections, out = 128 * x.sum(1, dtype=np.int32), np.zeros((count, rows), np.float32)
    module = binding.parse_assembly(code_of(_int8_code(PRODUCTS[name], rows, count), 11))  # two literals come first
    engine = binding.create_mcjit_compiler(module, target(FEATURES[name]))
    engine.finalize_object()
    kernel = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 11)(engine.get_function_address("kernel"))
    at = {key: each.ctypes.data for key, each in locals().items() if isinstance(each, np.ndarray)}
    kernel(
        0, 0, at["weights"], at["scales"], width, at["x"], width, at["x_scales"], at["corrections"], at["out"], 4 * rows
    )
    assert np.array_equal(out.astype(np.int64), x.astype(np.int64) @ weights.astype(np.int64).T)


@pytest.mark.parametrize("count", [1, 2, 4, 8])
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("name", FEATURES)
def test_every_instruction_multiplies_int4_by_int8(name, group, count):
    """Among noise, the largest nibbles times the largest activations, whose sums would not fit into int16."""
    here = binding.get_host_cpu_features()
    if not all(here.get(feature, False) for feature in FEATURES[name]):
        pytest.skip(f"this processor has no {name}")
    if name == "avx512vnni" and not tile.HAS_AVX512:
        pytest.skip("numba's target has too few registers for it")
    arguments, expected, out = int4_product(group, count)
    module = binding.parse_assembly(code_of(tile._int4_code(tile.BYTES, count, name), 14))
    engine = binding.create_mcjit_compiler(module, target(FEATURES[name]))
    engine.finalize_object()
    kernel = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 14)(engine.get_function_address("kernel"))
    kernel(*(each.ctypes.data if isinstance(each, np.ndarray) else each for each in arguments))
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("features", "is_x86", "name"),
    [
        ({"avx512f", "avx512vnni", "avx2", "avxvnni"}, True, "avx512vnni"),
        ({"avx512f", "avx2"}, True, "avx2"),
        ({"avx2", "avxvnni"}, True, "avxvnni"),
        ({"avx2"}, True, "avx2"),
        ({"sse4.2", "avx"}, True, None),
        ({"neon", "dotprod", "i8mm"}, False, "i8mm"),
        ({"neon", "dotprod"}, False, "sdot"),
        ({"neon"}, False, None),
    ],
)
def test_a_target_takes_the_best_that_it_has(features, is_x86, name):
    assert chosen(features, is_x86) == name
