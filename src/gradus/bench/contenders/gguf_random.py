"""A GGUF file of random weights in the mix of formats that llama.cpp calls Q4_K_M, for a shape too large to quantize.

Blocks are drawn as they are stored: random integers under scales that give weights of a usual size. So a file of
billions of weights takes seconds, and both engines read the same numbers. Matrices are Q4_K; values, and the matrices
that end an MLP or an expert, are Q6_K in half of the layers, and so is the head.
"""

from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from gradus.bench.contenders.gguf_experts import layout
from gradus.bench.contenders.gguf_files import architecture_of, describe, name_of
from gradus.models import ModelConfig, create_model
from gradus.models.source import Shape
from gradus.models.weights import plan

Type = gguf.GGMLQuantizationType
SPREAD = 0.02
"""The standard deviation of weights: about that of trained ones."""

SCALES = {
    Type.Q4_K: {0: SPREAD / 258, 2: 7.5 * SPREAD / 258},  # of 0 to 63 times 0 to 15, less 0 to 63
    Type.Q6_K: {208: SPREAD / 1366},  # of -128 to 127 times -32 to 31
}
"""A block's float16 scales, by the byte where each lies: SPREAD by the standard deviation of what they multiply."""


def write_random(path: Path, config: ModelConfig, seed: int = 0) -> None:
    """Write the file. Raises ContenderFailed for a model that llama.cpp lacks."""
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, architecture_of(config), use_temp_file=True)
    describe(writer, config)
    for name, shape in _tensors(config):
        kind = _kind(name, len(shape), config.num_layers)
        writer.add_tensor(name, _values(kind, shape, random), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    """Each tensor's name in llama.cpp, and its shape."""
    for piece in plan(create_model(config, device="meta"), layout(config)):
        yield name_of(config, piece.stored.name), piece.stored.file_shape(piece.shape)


def _kind(name: str, dimensions: int, layers: int) -> Type:
    if dimensions == 1 or ".ffn_gate_inp." in name:
        return Type.F32
    _, layer, part = name.split(".")[:3] if name.startswith("blk.") else ("", "0", name)
    wide = part.startswith(("attn_v", "ffn_down")) and int(layer) % 2 == 0
    return Type.Q6_K if wide or part.startswith("output") else Type.Q4_K


def _values(kind: Type, shape: Shape, random: np.random.Generator) -> NDArray[np.generic]:
    if kind == Type.F32:
        center = 1.0 if len(shape) == 1 else 0.0  # of a norm
        return (center + SPREAD * random.standard_normal(shape)).astype(np.float32)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    found = random.integers(256, size=(*shape[:-1], shape[-1] // block, size), dtype=np.uint8)
    for at, each in SCALES[kind].items():
        found[..., at : at + 2] = np.array([each], np.float16).view(np.uint8)
    return found.reshape(*shape[:-1], -1)
