"""Write a model's weights as GGUF files, as llama.cpp's own conversion would: it reads no other format.

The layers' matrices are in the file's format, as they are in our schemes; norms and biases are float32, embedding and
head float16. What the conversion changes is what `gradus.loading.gguf.model` changes back: Llama's q and k rows are
interleaved, Gemma's norm scales have their one, GPT-2's matrices are transposed. The file has no tokenizer: the peer
is given token ids.
"""

import tempfile
from collections.abc import Iterable, Iterator
from functools import cached_property
from math import isclose, prod
from pathlib import Path

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradus.bench.declare.declaration import GGUF_FORMATS
from gradus.bench.measure.drive import ContenderFailed
from gradus.bench.predict.roofline import Widths, streamed_parameters
from gradus.loading import Checkpoint
from gradus.loading.gguf.model import ARCHITECTURES
from gradus.models import LinearScaling, Llama3Scaling, Model, ModelConfig, TensorSource, create_model
from gradus.models.rope import frequencies
from gradus.models.source import Shape
from gradus.models.weights import Piece, checked, plan

Type = gguf.GGMLQuantizationType
KV_BYTES = 2  # of a key or value: float16


class GGUFFiles:
    """The files of one checkpoint, each written once, in a temporary folder that this object owns.

    ours: the same model as we run it, the source of the weights if the checkpoint is random.
    """

    def __init__(self, checkpoint: Checkpoint, ours: Model) -> None:
        self.config = checkpoint.config
        self._checkpoint, self._ours = checkpoint, ours

    def path(self, scheme: str | None) -> Path:
        """The file in that scheme's format. Raises ContenderFailed for a model that llama.cpp lacks."""
        path = Path(self._folder.name) / f"{format_of(scheme).name}.gguf"
        if not path.exists():
            part = path.with_suffix(".part")
            write(part, self.config, self._tensors(), format_of(scheme))
            part.rename(path)
        return path

    @cached_property
    def _folder(self) -> "tempfile.TemporaryDirectory[str]":
        return tempfile.TemporaryDirectory(prefix="gradus-gguf-")

    def _tensors(self) -> TensorSource:
        tensors = self._checkpoint.tensors
        return OwnTensors(self._ours) if tensors is None else checked(self._ours, tensors)


class OwnTensors:
    """A TensorSource over a loaded model: its weights under their checkpoint names."""

    def __init__(self, model: Model) -> None:
        self._pieces = {piece.stored.name: piece for piece in plan(model)}

    def names(self) -> Iterable[str]:
        return self._pieces

    def shape(self, name: str) -> Shape:
        piece = self._pieces[name]
        return piece.stored.file_shape(piece.shape)

    def read(self, name: str) -> Tensor:
        piece = self._pieces[name]
        rows = getattr(piece.module, piece.parameter)[piece.start : piece.start + piece.shape[0]]
        return piece.stored.restore(rows.detach()).cpu()

    def where(self, name: str) -> str:
        return "memory"


def format_of(scheme: str | None) -> Type:
    """The format of the scheme's width. Raises ContenderFailed if there is none."""
    if scheme not in GGUF_FORMATS:
        known = ", ".join(str(name) for name in GGUF_FORMATS if name)
        raise ContenderFailed(f"no GGUF format stands for {scheme}, only for {known} and unquantized weights")
    found: Type = getattr(Type, GGUF_FORMATS[scheme])
    return found


def widths(config: ModelConfig, scheme: str | None) -> Widths:
    """Bytes per weight, averaged over those that a step reads, and per stored key or value."""
    model = create_model(config, device="meta")
    read = [piece for piece in plan(model) if not is_looked_up(piece, config)]
    return Widths(sum(_nbytes(piece, format_of(scheme)) for piece in read) / streamed_parameters(config), KV_BYTES)


def is_looked_up(piece: Piece, config: ModelConfig) -> bool:
    """Whether a step only looks up rows: in an embedding that is not also the head, or in learned positions."""
    tables = ("wpe.weight",) if config.tie_embeddings else ("wpe.weight", "wte.weight", "model.embed_tokens.weight")
    return piece.stored.name in tables


def _nbytes(piece: Piece, kind: Type) -> float:
    block, size = gguf.GGML_QUANT_SIZES[_kind(piece.stored.name, piece.shape, kind)]
    return prod(piece.shape) * size / block


# -- one file ----------------------------------------------------------------------------------------------------------


def write(path: Path, config: ModelConfig, tensors: TensorSource, kind: Type) -> None:
    """Write all tensors of a model. kind: of the layers' matrices. Raises ContenderFailed if a shape does not fit."""
    if reason := _unknown(config):
        raise ContenderFailed(f"llama.cpp has no such model: {reason}")
    writer = gguf.GGUFWriter(path, config.family, use_temp_file=True)
    _describe(writer, config)
    for name, values in _converted(config, tensors):
        stored = _kind(name, values.shape, kind)
        block, _ = gguf.GGML_QUANT_SIZES[stored]
        if values.shape[-1] % block:
            raise ContenderFailed(f"{name}: {stored.name} has blocks of {block}, the rows are {values.shape[-1]} long")
        writer.add_tensor(_name(config, name), gguf.quants.quantize(values, stored), raw_dtype=stored)
    if config.ropes[0] is not None and isinstance(config.ropes[0].scaling, Llama3Scaling):
        writer.add_tensor("rope_freqs.weight", _rope_factors(config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _kind(name: str, shape: Shape, kind: Type) -> Type:
    """The type that a tensor is stored in."""
    if len(shape) == 1 or name == "wpe.weight":
        return Type.F32
    return kind if ".layers." in name or name.startswith("h.") else Type.F16


def _name(config: ModelConfig, name: str) -> str:
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[config.family.upper()], config.num_layers)
    found = names.get_name(name, try_suffixes=(".weight", ".bias"))
    assert found is not None, name
    return found


def _converted(config: ModelConfig, tensors: TensorSource) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Each tensor by its checkpoint name, with its values in llama.cpp's layout."""
    stored = {piece.stored.name: piece.stored for piece in plan(create_model(config, device="meta"))}
    interleaved = ARCHITECTURES[config.family].interleaved
    for name in tensors.names():
        value = tensors.read(name)
        if not isinstance(value, Tensor):
            raise ContenderFailed("the checkpoint is quantized already, and would have to be rounded again")
        value = stored[name].convert(value.float())
        if interleaved and (".q_proj." in name or ".k_proj." in name):
            value = _interleave(value, config.num_heads if ".q_proj." in name else config.num_kv_heads)
        yield name, value.contiguous().numpy()


def _interleave(value: Tensor, heads: int) -> Tensor:
    """Put each head's rows i and i + half next to each other: the layout that llama.cpp rotates for Llama."""
    return value.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(value.shape)


# -- what the model is -------------------------------------------------------------------------------------------------


def _unknown(config: ModelConfig) -> str | None:
    """The reason why llama.cpp would compute something different; None if it would not."""
    theirs = ARCHITECTURES.get(config.family)
    if theirs is None:
        return config.family
    windows = [window for window in config.windows if window is not None]
    if windows and not theirs.windows:
        return f"{config.family} with windows of {windows[0]} tokens"
    if config.attention_softcap is not None:
        return "attention scores with a soft cap"
    if not theirs.free_width and config.q_width != config.hidden_size:
        return f"{config.family} with heads of {config.head_dim} values, {config.num_heads} of which are not its width"
    width = theirs.score_width(config.num_layers, config.hidden_size, config.num_heads, config.head_dim)
    if not isclose(config.attention_scale, width**-0.5, rel_tol=1e-6):
        return f"attention scores scaled by {config.attention_scale:g}"
    return None


def _describe(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    writer.add_context_length(config.context_length)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_layers)
    writer.add_head_count(config.num_heads)
    rope = config.ropes[0]
    if rope is None:
        writer.add_layer_norm_eps(config.norm_eps)
        return
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(rope.theta)
    if isinstance(rope.scaling, LinearScaling):
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope.scaling.factor)
    if ARCHITECTURES[config.family].windows:
        _describe_windows(writer, config)


def _describe_windows(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    """Write which layers have a window, and their other metadata (Gemma 3)."""
    writer.add_sliding_window(next((window for window in config.windows if window is not None), 0))
    writer.add_sliding_window_pattern([window is not None for window in config.windows])
    local = next((rope for rope, window in zip(config.ropes, config.windows, strict=True) if window and rope), None)
    if local is not None:
        writer.add_rope_freq_base_swa(local.theta)
    if config.final_softcap is not None:
        writer.add_final_logit_softcapping(config.final_softcap)


def _rope_factors(config: ModelConfig) -> NDArray[np.float32]:
    """The factor by which Llama 3's scaling slows each rotation."""
    rope = config.ropes[0]
    assert rope is not None
    plain = rope.theta ** -(torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim)
    return (plain / frequencies(rope, config.head_dim)).numpy()
