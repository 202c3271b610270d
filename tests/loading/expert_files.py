"""GGUF files of experts that take no room on the disk: their stacks are holes, all zeros."""

from math import prod
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type

from gradus.bench.contenders.gguf_files import architecture_of, describe, name_of
from gradus.loading.gguf.experts import APART
from gradus.models import ModelConfig, create_model
from gradus.models.weights import plan

STACKED = "_exps."


def write_with_holes(path: Path, config: ModelConfig, kind: Type) -> Path:
    """Write a model whose stacks come last and are holes, and whose other tensors are random float32."""
    writer = gguf.GGUFWriter(path, architecture_of(config))
    describe(writer, config)
    pieces = sorted(plan(create_model(config, device="meta"), APART), key=lambda piece: STACKED in piece.stored.name)
    generator, holes = torch.Generator().manual_seed(0), 0
    block, size = gguf.GGML_QUANT_SIZES[kind]
    for piece in pieces:
        name, shape = name_of(config, piece.stored.name), piece.stored.file_shape(piece.shape)
        if STACKED in name:
            stored = (*shape[:-1], shape[-1] // block * size)
            writer.add_tensor_info(name, stored, np.dtype(np.uint8), prod(stored), raw_dtype=kind)
            holes += prod(stored)
        else:
            values = torch.randn(shape, generator=generator) * (1.0 if len(shape) == 1 else 0.08)
            writer.add_tensor(name, values.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    (tensors,), (file,) = writer.tensors, writer.fout
    writer.write_padding(file, file.tell())
    for info in tensors.values():
        if info.tensor is not None:
            info.tensor.tofile(file)
            writer.write_padding(file, info.nbytes)
    end = file.tell() + holes
    writer.close()
    with open(path, "r+b") as whole:
        whole.truncate(end)
    return path
