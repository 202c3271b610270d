"""Random quantized matrices in the formats of others, written from the formats' definitions, with loops and numpy.

Each function returns the tensors by their ends, and the float matrix [N, K] that they stand for, found independently of
how anything is packed.
"""

from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from gradus import LLM
from gradus.loading.json_file import read_object
from gradus.quantization.mix import matrix_ids, names_of
from gradus.quantization.parts import SideBySide
from tests.loading.builders import write_folder, write_json

Matrix = tuple[dict[str, Tensor], Tensor]


def words(values: np.ndarray, order: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """[rows, n] integers 0 … 15 → int32 [rows, ⌈n / 8⌉]: nibble i of a word is its column order[i]."""
    rows, count = values.shape
    padded = np.zeros((rows, -(-count // 8) * 8), np.uint64)
    padded[:, :count] = values
    found = np.zeros((rows, padded.shape[1] // 8), np.uint64)
    for word in range(found.shape[1]):
        for nibble, column in enumerate(order):
            found[:, word] |= padded[:, 8 * word + column] << np.uint64(4 * nibble)
    return torch.from_numpy(found.astype(np.uint32).view(np.int32))


def random_groups(n: int, k: int, group: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Integers [N, K]; scales (exact in float16) and zero points 1 … 14, [N, K / group]."""
    draw = np.random.default_rng(seed)
    scales = (draw.uniform(0.005, 0.02, (n, k // group))).astype(np.float16).astype(np.float64)
    return draw.integers(0, 16, (n, k)), scales, draw.integers(1, 15, (n, k // group))


def stand_for(values: np.ndarray, scales: np.ndarray, zeros: np.ndarray, group_of: np.ndarray) -> Tensor:
    found = np.zeros(values.shape)
    for column, group in enumerate(group_of):
        found[:, column] = (values[:, column] - zeros[:, group]) * scales[:, group]
    return torch.from_numpy(found).float()


def awq(n: int, k: int, seed: int, group: int = 32) -> Matrix:
    values, scales, zeros = random_groups(n, k, group, seed)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    tensors = {
        "qweight": words(values.T, order),
        "qzeros": words(zeros.T, order),
        "scales": torch.from_numpy(scales.T.copy()).half(),
    }
    return tensors, stand_for(values, scales, zeros, np.arange(k) // group)


def gptq(
    n: int, k: int, seed: int, group: int = 32, *, version: int = 1, ordered: bool = False, sym: bool = False
) -> Matrix:
    values, scales, zeros = random_groups(n, k, group, seed)
    if sym:
        zeros[:] = 8
    group_of = np.arange(k) // group
    if ordered:
        group_of = np.random.default_rng(seed).permutation(group_of)
    tensors = {
        "qweight": words(values).t().contiguous(),  # [K / 8, N]: nibble i of word r is row 8 r + i
        "qzeros": words((zeros - (version == 1)).T),
        "scales": torch.from_numpy(scales.T.copy()).half(),
        "g_idx": torch.from_numpy(group_of).int(),
    }
    return tensors, stand_for(values, scales, zeros, group_of)


def pack_quantized(
    n: int, k: int, seed: int, group: int = 32, *, asymmetric: bool = False, ordered: bool = False
) -> Matrix:
    values, scales, zeros = random_groups(n, k, group, seed)
    if not asymmetric:
        zeros[:] = 8
    group_of = np.arange(k) // group
    if ordered:
        group_of = np.random.default_rng(seed).permutation(group_of)
    tensors = {
        "weight_packed": words(values),
        "weight_scale": torch.from_numpy(scales).to(torch.float16),
        "weight_shape": torch.tensor([n, k]),
    }
    if asymmetric:
        tensors["weight_zero_point"] = words(zeros.T).t().contiguous()
    if ordered:
        tensors["weight_g_idx"] = torch.from_numpy(group_of).int()
    return tensors, stand_for(values, scales, zeros, group_of)


def int8(n: int, k: int, seed: int, *, one: bool = False) -> Matrix:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randint(-127, 128, (n, k), generator=generator, dtype=torch.int8)
    scale = torch.rand((1,) if one else (n, 1), generator=generator) / 500
    return {"weight": weight, "weight_scale": scale}, weight.float() * scale


def fp8(n: int, k: int, seed: int, *, scales: str = "row", name: str = "weight_scale") -> Matrix:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn((n, k), generator=generator).mul(60).to(torch.float8_e4m3fn)
    shape = {"one": (), "row": (n, 1), "block": (-(-n // 128), -(-k // 128))}[scales]
    scale = torch.rand(shape, generator=generator) / 2000
    wide = scale.repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k] if scales == "block" else scale
    return {"weight": weight, name: scale, "input_scale": torch.tensor(0.5)}, weight.float() * wide


def mxfp4(experts: int, n: int, k: int, seed: int) -> Matrix:
    """A stack of experts: float32 [E, N, K]."""
    draw = np.random.default_rng(seed)
    blocks = draw.integers(0, 256, (experts, n, k // 32, 16), dtype=np.uint8)
    scales = draw.integers(118, 124, (experts, n, k // 32), dtype=np.uint8)
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    found = np.zeros((experts, n, k), np.float32)
    for column in range(k):
        byte = blocks[..., column // 32, column % 32 // 2]
        nibble = byte >> 4 if column % 2 else byte & 15
        found[..., column] = values[nibble] * 2.0 ** (scales[..., column // 32].astype(int) - 127)
    return {"blocks": torch.from_numpy(blocks), "scales": torch.from_numpy(scales)}, torch.from_numpy(found)


def compressed(strategy: str, kind: str = "int", *, symmetric: bool = True) -> dict[str, Any]:
    """By groups in 4 bits, otherwise in 8."""
    bits, group_size, activations = (
        (4, 32, None) if strategy == "group" else (8, None, {"num_bits": 8, "dynamic": True})
    )
    weights = {"num_bits": bits, "type": kind, "strategy": strategy, "group_size": group_size, "symmetric": symmetric}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {
        "quant_method": "compressed-tensors",
        "format": "x",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


FORMATS: dict[str, tuple[Callable[..., Matrix], dict[str, Any]]] = {
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}),
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "gptq"}),
    "gptq sym": (partial(gptq, sym=True), {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True}),
    "gptq sym, version 2 by the name of 1": (
        partial(gptq, version=2, sym=True),
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "checkpoint_format": "gptq"},
    ),
    "gptq sym, version 1 by the name of 2": (
        partial(gptq, sym=True),
        {"quant_method": "gptq", "bits": 4, "sym": True, "checkpoint_format": "gptq_v2"},
    ),
    "gptq v2": (partial(gptq, version=2), {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"}),
    "gptq desc_act": (partial(gptq, ordered=True), {"quant_method": "gptq", "bits": 4, "desc_act": True}),
    "pack-quantized": (pack_quantized, compressed("group")),
    "pack-quantized asymmetric": (partial(pack_quantized, asymmetric=True), compressed("group", symmetric=False)),
    "pack-quantized actorder": (partial(pack_quantized, ordered=True), compressed("group")),
    "int-quantized": (int8, compressed("channel")),
    "int-quantized tensor": (partial(int8, one=True), compressed("tensor")),
    "float-quantized": (fp8, compressed("channel", "float")),
    "float-quantized block": (partial(fp8, scales="block"), compressed("block", "float")),
    "fp8 tensor": (partial(fp8, scales="one"), {"quant_method": "fp8", "activation_scheme": "static"}),
    "fp8 block": (
        partial(fp8, scales="block", name="weight_scale_inv"),
        {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"},
    ),
}


@cache
def matrix(form: str, n: int, k: int, seed: int) -> Matrix:
    """Loops over words take long, and every test of a format has the same matrices."""
    make, _ = FORMATS[form]
    return make(n, k, seed)


def quantize_folder(folder: Path, form: str, family: str = "llama", *, ends: str = "_proj.weight") -> dict[str, Tensor]:
    """Rewrite a checkpoint's matrices in a format, with new random values. Returns the float matrix that each encodes,
    by name. ends: the suffix of the matrices' names."""
    _, config = FORMATS[form]
    write_folder(folder, family)
    tensors = load_file(folder / "model.safetensors")
    found = {}
    for number, name in enumerate(sorted(tensors)):
        if name.endswith(ends):
            n, k = tensors.pop(name).shape
            prefix = name.removesuffix(".weight")
            parts, found[prefix] = matrix(form, n, k, number)
            tensors |= {f"{prefix}.{end}": part.contiguous() for end, part in parts.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "config.json", read_object(folder / "config.json") | {"quantization_config": config})
    return found


MXFP4_CONFIG = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}


def mxfp4_folder(folder: Path) -> dict[str, Tensor]:
    """Rewrite gpt-oss's experts as it is published. Returns the float stack [E, N, K] that each encodes, by name."""
    write_folder(folder, "gpt-oss")
    tensors, found = load_file(folder / "model.safetensors"), {}
    for number, name in enumerate(sorted(tensors)):
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            experts, k, n = tensors.pop(name).shape
            parts, found[name] = mxfp4(experts, n, k, number)
            tensors |= {f"{name}_{end}": part for end, part in parts.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "config.json", read_object(folder / "config.json") | {"quantization_config": MXFP4_CONFIG})
    return found


def matrices(llm: LLM) -> Iterator[tuple[str, Tensor]]:
    """Name in the checkpoint → the float matrix that is stored here, for every quantized one."""
    model = llm.engine.runner.model
    modules = {
        "qkv": "qkv", "attn_out": "output", "gate_up": "gate_up", "down": "down",
        "embed_gate": "embedded.gate", "embed_out": "embedded.out",
        "experts_up": "experts.up", "experts_down": "experts.down",
    }  # fmt: skip
    for matrix_id in matrix_ids(llm.config):
        if matrix_id.role == "head":
            continue
        whole = matrix_id.layer is None
        module = model.inputs.product if whole else model.layers[matrix_id.layer].get_submodule(modules[matrix_id.role])
        names = names_of(matrix_id, llm.config)
        parts = module.parts if isinstance(module, SideBySide) else [module]
        whole_matrix = torch.cat([part.dequantized() for part in parts])
        each = len(names) // len(module.out_features) or 1
        sizes = (
            [rows // each for rows in module.out_features for _ in range(each)] if len(names) > 1 else len(whole_matrix)
        )
        yield from zip(names, whole_matrix.split(sizes), strict=True)
