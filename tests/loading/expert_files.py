"""GGUF files of experts that are written quickly: their stacks hold random bits, or nothing at all."""

from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type

from gradus.bench.contenders import gguf_files
from gradus.loading.gguf.experts import APART
from gradus.models import ModelConfig, create_model
from gradus.models.weights import plan
from tests.loading.gguf_blocks import random_blocks

STACKED = "_exps."


def write_random(path: Path, config: ModelConfig, kind: Type, *, holes: bool = False) -> Path:
    """Write a model whose stacks have random blocks, and whose other tensors are float32.

    holes: the stacks come last and are holes in the file, all zeros, which take no room on the disk.
    """
    writer = gguf.GGUFWriter(path, gguf_files.architecture_of(config))
    gguf_files._describe(writer, config)
    pieces = sorted(plan(create_model(config, device="meta"), APART), key=lambda piece: STACKED in piece.stored.name)
    generator, left_out = torch.Generator().manual_seed(0), 0
    for piece in pieces:
        name, shape = gguf_files._name(config, piece.stored.name), piece.stored.file_shape(piece.shape)
        if STACKED not in name:
            values = torch.randn(shape, generator=generator) * (1.0 if len(shape) == 1 else 0.08)
            writer.add_tensor(name, values.numpy())
            continue
        row = shape[-1] // gguf.GGML_QUANT_SIZES[kind][0] * gguf.GGML_QUANT_SIZES[kind][1]
        stored = (*shape[:-1], row)
        if holes:
            writer.add_tensor_info(name, stored, np.dtype(np.uint8), int(np.prod(stored)), raw_dtype=kind)
            left_out += int(np.prod(stored))
        else:
            blocks = random_blocks(kind, int(np.prod(shape[:-1])), shape[-1])
            writer.add_tensor(name, blocks.reshape(stored), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    if holes:
        _write_all_but_holes(writer, path, left_out)
    else:
        writer.write_tensors_to_file()
        writer.close()
    return path


def _write_all_but_holes(writer: gguf.GGUFWriter, path: Path, left_out: int) -> None:
    writer.write_ti_data_to_file()
    (tensors,), (file,) = writer.tensors, writer.fout
    writer.write_padding(file, file.tell())
    for info in tensors.values():
        if info.tensor is not None:
            info.tensor.tofile(file)
            writer.write_padding(file, info.nbytes)
    assert left_out % writer.data_alignment == 0
    end = file.tell() + left_out
    writer.close()
    with open(path, "r+b") as whole:
        whole.truncate(end)
