"""GGUF's blocks on a CUDA GPU: compiled kernels against the matrix that the bits mean, and engines on them.

Every output starts poisoned (torch fills new memory with NaN), so an element that no program wrote is seen.
"""

from typing import Any

import gguf
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is for Linux alone")

from gradus import LLM, SamplingParams
from gradus.loading.gguf.packed import KEPT
from gradus.quantization.gguf import FORMATS, GGUFLinear
from tests.gpu.runners import model_of
from tests.loading.builders import CONFIGS, tensors_of, write_gguf
from tests.loading.gguf_blocks import random_blocks
from tests.pairwise import pairwise

pytestmark = pytest.mark.gpu

KINDS = [kind for kind in KEPT if kind.name != "MXFP4"]  # which a GPU keeps in words

ROUNDING = {torch.float32: 2e-5, torch.float16: 1e-3, torch.bfloat16: 6e-3}  # of ‖out - reference‖ / ‖reference‖
WIDE = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "query_pre_attn_scalar": 64}


@pytest.fixture(autouse=True)
def _poisoned():
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)  # torch.empty then gives NaN
    yield
    torch.use_deterministic_algorithms(False)


def assert_close(out: Tensor, reference: Tensor) -> None:
    assert out.dtype == reference.dtype and out.shape == reference.shape
    error = (out.double() - reference.double()).norm() / reference.double().norm()
    assert error < ROUNDING[out.dtype], f"relative error {error:.2e}"


def matrix(kind, rows: int, width: int):
    from gradus.kernels.quantized.gguf import Blocks

    blocks = random_blocks(kind, rows, width)
    form = FORMATS[KEPT[kind]]
    return Blocks(torch.from_numpy(blocks).cuda(), form), torch.from_numpy(gguf.quants.dequantize(blocks, kind)).cuda()


@pytest.mark.quick
@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_widened_and_looked_up_to_the_bit(kind, dtype):
    from gradus.kernels.quantized.gguf import lookup

    weights, wide = matrix(kind, 300, 1280)
    out = torch.empty(170, 1280, dtype=dtype, device="cuda")
    weights.widen(100, out)
    assert torch.equal(out, wide[100:270].to(dtype))
    ids = torch.randint(0, 300, (33,), device="cuda")
    assert torch.equal(lookup(weights, ids, 1280, dtype), wide[ids].to(dtype))


@pytest.mark.quick
@pytest.mark.parametrize("kind, rows, dtype", pairwise([*KEPT], [1, 2, 7, 16, 33, 64, 200], [*ROUNDING]))
def test_a_product_is_that_of_the_wide_matrix(kind, rows, dtype):
    from gradus.kernels.quantized.gguf import gguf_product, launch_for
    from gradus.kernels.quantized.pieces import product_in_pieces

    widths = (768, 4096) if "K" in kind.name else (96, 576, 4096)
    for width in widths:
        weights, wide = matrix(kind, 2 * 333, width)
        x, stream = (torch.randn(rows, each, device="cuda").to(dtype) for each in (width, 666))
        bias = torch.randn(666, device="cuda").to(dtype)
        expected = x.double() @ wide.to(dtype).double().t()
        assert_close(product_in_pieces(x, weights, bias=bias), (expected + bias).to(dtype))
        if rows > (64 if dtype.itemsize == 2 else 16):
            continue
        launch = launch_for(rows, 666, width, processors=132)
        assert_close(gguf_product(x, weights, launch, bias=bias), (expected + bias).to(dtype))
        summed = (expected + stream).to(dtype)
        assert gguf_product(x, weights, launch, residual=stream) is stream
        assert_close(stream, summed)
        if dtype.itemsize == 2:
            x = x / 100
            gate, up = (x.double() @ wide.to(dtype).double().t()).chunk(2, dim=1)
            found = gguf_product(x, weights, launch, activation="silu", gated=True)
            assert_close(found, (torch.nn.functional.silu(gate) * up).to(dtype))


@pytest.mark.quick
@pytest.mark.plans_memory
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma3"])
def test_an_engine_s_tokens_are_those_of_the_widened_file(tmp_path, family):
    """float32, so that no two logits are close enough to change places; graphs, long prompts, and a mix of formats."""
    names = [name for name in tensors_of(CONFIGS[family]) if name.endswith("_proj.weight")]
    kinds = {name: [*KEPT][number % len(KEPT)] for number, name in enumerate(names)}
    kinds |= {"model.embed_tokens.weight": gguf.GGMLQuantizationType.Q6_K}
    path = str(write_gguf(tmp_path / "m.gguf", family, quantize=kinds, config=CONFIGS[family] | WIDE))
    prompts, params = [[5, 6, 7], [9] * 40, [3] * 90], SamplingParams(max_tokens=12, ignore_eos=True)
    found = []
    for quantize in ("stored", None):
        llm = LLM(path, device="cuda", dtype="float32", max_sequences=4, cache_tokens=1024, quantize=quantize)
        assert any(isinstance(part, GGUFLinear) for part in model_of(llm).modules()) == (quantize == "stored")
        found.append([done.token_ids for done in llm.generate(prompts, params)])
        llm.close()
    assert found[0] == found[1]


@pytest.mark.plans_memory
def test_bits_are_kept_if_asked_for_and_speculation_runs_on_them(tmp_path):
    names = [name for name in tensors_of(CONFIGS["llama"]) if name.endswith("_proj.weight")]
    kinds = dict.fromkeys(names, gguf.GGMLQuantizationType.Q4_K)
    path = str(write_gguf(tmp_path / "m.gguf", quantize=kinds, config=CONFIGS["llama"] | WIDE))
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    settings: dict[str, Any] = {"device": "cuda", "max_sequences": 2, "cache_tokens": 1024}
    widened = LLM(path, **settings)
    assert widened.checkpoint.quantized is None
    widened.close()
    settings["quantize"] = "stored"
    plain = LLM(path, **settings)
    assert plain.checkpoint.quantized is not None
    qkv = model_of(plain).layers[0].qkv
    assert isinstance(qkv, GGUFLinear) and qkv.out_features == (256, 128, 128), "one product, not three"
    assert qkv.blocks.is_cuda
    speculating = LLM(path, speculate="ngram", **settings)
    prompts = [[5, 6, 7, 5, 6, 7, 5, 6], [9] * 20]
    assert all(len(done.token_ids) == 30 for llm in (plain, speculating) for done in llm.generate(prompts, params))
