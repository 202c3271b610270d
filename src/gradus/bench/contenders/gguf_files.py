"""Write a model's weights as GGUF files, as llama.cpp's own conversion would: it reads no other format.

The layers' matrices are in the file's format, as they are in our schemes; norms and biases are float32, embedding and
head float16. What the conversion changes is what `gradus.loading.gguf.model` changes back: Llama's q and k rows are
interleaved, Gemma 3's norm scales have their one, GPT-2's matrices are transposed. The file has no tokenizer: the peer
is given token ids.
"""

import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from math import isclose, log, prod
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gradus.bench.contenders import gguf_experts
from gradus.bench.contenders.gguf_experts import ExpertTensors
from gradus.bench.declare.declaration import GGUF_FORMATS
from gradus.bench.measure.drive import ContenderFailed
from gradus.bench.predict.roofline import Widths, streamed_parameters
from gradus.loading import Checkpoint
from gradus.loading.gguf.architectures import ARCHITECTURES, Architecture
from gradus.loading.gguf.model import CONVERTED
from gradus.loading.gguf.rotary import FACTORS, LONG, SHORT
from gradus.models import LinearScaling, Llama3Scaling, Model, ModelConfig, TensorSource, create_model
from gradus.models.config import LongRope, Yarn
from gradus.models.rope import frequencies
from gradus.models.source import Shape
from gradus.models.weights import Piece, checked, plan

Type = gguf.GGMLQuantizationType
STOPPED = 1e30  # llama.cpp's factor for a rotation that is to rest
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
    read = [piece for piece in plan(model, gguf_experts.layout(config)) if not is_looked_up(piece, config)]
    return Widths(sum(_nbytes(piece, format_of(scheme)) for piece in read) / streamed_parameters(config), KV_BYTES)


def is_looked_up(piece: Piece, config: ModelConfig) -> bool:
    """Whether a step only looks up rows: in an embedding that is not also the head, or in learned positions."""
    tables = {"wpe.weight", "model.embed_tokens_per_layer.weight"}
    return piece.stored.name in (
        tables if config.tie_embeddings else tables | {"wte.weight", "model.embed_tokens.weight"}
    )


def _nbytes(piece: Piece, kind: Type) -> float:
    block, size = gguf.GGML_QUANT_SIZES[_kind(piece.stored.name, piece.shape, kind)]
    return prod(piece.shape) * size / block


# -- one file ----------------------------------------------------------------------------------------------------------


def write(path: Path, config: ModelConfig, tensors: TensorSource, kind: Type) -> None:
    """Write all tensors of a model. kind: of the layers' matrices. Raises ContenderFailed if a shape does not fit."""
    if reason := _unknown(config):
        raise ContenderFailed(f"llama.cpp has no such model: {reason}")
    writer = gguf.GGUFWriter(path, architecture_of(config), use_temp_file=True)
    describe(writer, config)
    for name, values in _converted(config, tensors):
        stored = _kind(name, values.shape, kind)
        block, _ = gguf.GGML_QUANT_SIZES[stored]
        if values.shape[-1] % block:
            raise ContenderFailed(f"{name}: {stored.name} has blocks of {block}, the rows are {values.shape[-1]} long")
        writer.add_tensor(name_of(config, name), gguf.quants.quantize(values, stored), raw_dtype=stored)
    for name, factors in _rope_factors(config).items():
        writer.add_tensor(name, factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def architecture_of(config: ModelConfig) -> str:
    """llama.cpp's name for a family. Raises ContenderFailed if it has none."""
    names = {family: name for name, each in reversed(ARCHITECTURES.items()) for family in each.families}
    name = names.get(config.family)  # the first, where two architectures spell a family
    if name is None:
        raise ContenderFailed(f"llama.cpp has no such model: {config.family}")
    return name


def _theirs(config: ModelConfig) -> Architecture:
    return ARCHITECTURES[architecture_of(config)]


def _kind(name: str, shape: Shape, kind: Type) -> Type:
    """The type that a tensor is stored in."""
    if len(shape) == 1 or name == "wpe.weight" or ".ffn_gate_inp." in name or name.endswith(".bias"):
        return Type.F32
    return kind if ".layers." in name or name.startswith(("h.", "blk.")) else Type.F16


def name_of(config: ModelConfig, name: str) -> str:
    if name.startswith("blk."):
        return name
    if router := re.fullmatch(r"(model\.layers\.)(\d+)(\.router\..*scale)", name):  # Gemma 4's
        spelled = {value: key for key, value in _theirs(config).names.items()}
        return f"blk.{router[2]}.{spelled[f'{router[1]}{{}}{router[3]}']}"
    architecture = architecture_of(config)
    kind = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture)
    found = gguf.get_tensor_name_map(kind, config.num_layers).get_name(name, try_suffixes=(".weight", ".bias"))
    assert found is not None, name
    return found if found.endswith((".weight", ".bias")) else f"{found}.weight"


def _converted(config: ModelConfig, tensors: TensorSource) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Each tensor by its checkpoint name, with its values in llama.cpp's layout."""
    stored = {piece.stored.name: piece.stored for piece in plan(create_model(config, device="meta"))}
    interleaved, experts = _theirs(config).interleaved, ExpertTensors(config)
    for name, stack in experts.stacks(tensors):
        yield name, stack.contiguous().numpy()
    for name in tensors.names():
        if name in experts.replaced:
            continue
        value = tensors.read(name)
        if not isinstance(value, Tensor):
            raise ContenderFailed("the checkpoint is quantized already, and would have to be rounded again")
        value = stored[name].convert(value.float()) if isinstance(stored[name], CONVERTED) else value.float()
        if interleaved and (".q_proj." in name or ".k_proj." in name):
            value = _interleave(value, config.num_heads if ".q_proj." in name else config.num_kv_heads)
        for part, rows in _cut(name, value):
            yield part, rows.contiguous().numpy()


def _cut(name: str, value: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Cut Granite 4's gate and features apart: llama.cpp names its dense layers as Granite 3's."""
    if ".shared_mlp.input_linear." in name:
        for part, rows in zip(("gate_proj", "up_proj"), value.chunk(2), strict=True):
            yield name.replace("shared_mlp.input_linear", f"mlp.{part}"), rows
    else:
        yield name.replace("shared_mlp.output_linear", "mlp.down_proj"), value


def _interleave(value: Tensor, heads: int) -> Tensor:
    """Put each head's rows i and i + half next to each other: the layout that llama.cpp rotates for Llama."""
    return value.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(value.shape)


# -- what the model is -------------------------------------------------------------------------------------------------


def _unknown(config: ModelConfig) -> str | None:
    """The reason why llama.cpp would compute something different; None if it would not."""
    theirs = _theirs(config)
    windows = [window for window in config.windows if window is not None]
    if windows and not theirs.windows:
        return f"{config.family} with windows of {windows[0]} tokens"
    if config.attention_softcap is not None:
        return "attention scores with a soft cap"
    if not theirs.free_width and config.q_width != config.hidden_size:
        return f"{config.family} with heads of {config.head_dim} values, {config.num_heads} of which are not its width"
    if not isclose(config.attention_scale, theirs.score_scale(config), rel_tol=1e-6):
        return f"attention scores scaled by {config.attention_scale:g}"
    if config.experts and (reason := gguf_experts.unknown(config, architecture_of(config))):
        return reason
    return _unknown_rotation(config)


def _unknown_rotation(config: ModelConfig) -> str | None:
    if config.learned_positions:
        return None
    still = [layer for layer, rope in enumerate(config.ropes) if rope is None]
    usual = list(range(3, config.num_layers, 4)) if architecture_of(config) == "smollm3" else []
    if still != usual:
        return f"{config.family} with layers {still} that do not turn"
    scalings = [rope.scaling for rope in config.ropes if rope is not None]
    if any(isinstance(each, Yarn) and not each.whole for each in scalings):
        return "YaRN whose bounds are not whole pairs"
    return None


def describe(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    writer.add_context_length(config.context_length)
    writer.add_embedding_length(config.hidden_size)
    if config.experts:
        gguf_experts.describe(writer, config)
    else:
        writer.add_feed_forward_length(_by_layer(config, "intermediate_size"))
    writer.add_block_count(config.num_layers)
    writer.add_head_count(config.num_heads)
    if config.learned_positions:
        writer.add_layer_norm_eps(config.norm_eps)
        return
    writer.add_head_count_kv(_by_layer(config, "num_kv_heads"))
    writer.add_layer_norm_rms_eps(config.norm_eps)
    main = _main_layer(config)
    writer.add_key_length(config.layer(main).head_dim)
    writer.add_value_length(config.layer(main).head_dim)
    _describe_rotation(writer, config, main)
    if _theirs(config).windows:
        _describe_windows(writer, config)
    if architecture_of(config) in ("granite", "granitemoe"):
        _describe_multipliers(writer, config)
    if architecture_of(config) == "gemma4":
        _describe_gemma4(writer, config)


def _by_layer(config: ModelConfig, size: str) -> int | list[int]:
    """A size of every layer, or of each."""
    sizes = [getattr(config.layer(layer), size) for layer in range(config.num_layers)]
    return sizes[0] if len(set(sizes)) == 1 else sizes


def _main_layer(config: ModelConfig) -> int:
    """The layer that the metadata describe: the first one that turns and sees everything, or else that turns."""
    turning = [layer for layer, rope in enumerate(config.ropes) if rope is not None]
    return min(turning, key=lambda layer: (config.windows[layer] is not None, layer))


def _describe_rotation(writer: gguf.GGUFWriter, config: ModelConfig, layer: int) -> None:
    rope, head_dim = config.ropes[layer], config.layer(layer).head_dim
    assert rope is not None
    writer.add_rope_dimension_count(head_dim if rope.proportional else rope.turned or head_dim)
    writer.add_rope_freq_base(rope.theta)
    match rope.scaling:
        case LinearScaling(factor):
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(factor)
        case Yarn() as yarn:
            writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            writer.add_rope_scaling_factor(yarn.factor)
            writer.add_rope_scaling_orig_ctx_len(yarn.original_context)
            writer.add_rope_scaling_yarn_beta_fast(yarn.fast)
            writer.add_rope_scaling_yarn_beta_slow(yarn.slow)
            if architecture_of(config) == "mistral3" and yarn.amplitude == 1:
                writer.add_rope_scaling_yarn_log_mul(1.0)
            else:
                usual = 0.1 * log(yarn.factor) + 1 if yarn.factor > 1 else 1.0  # what llama.cpp multiplies by itself
                writer.add_rope_scaling_attn_factors(yarn.amplitude / usual)
        case LongRope() as long:
            writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
            writer.add_rope_scaling_orig_ctx_len(long.original_context)
            writer.add_rope_scaling_attn_factors(long.amplitude)
    if rope.growth is not None:
        writer.add_attn_temperature_scale(rope.growth.beta)


def _describe_windows(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    """Write which layers have a window, and their other metadata (Gemma 3, OLMo 3)."""
    windows = [window for window in config.windows if window is not None]
    if not windows and config.final_softcap is None and architecture_of(config) == "olmo2":
        return
    writer.add_sliding_window(next(iter(windows), 0))
    writer.add_sliding_window_pattern([window is not None for window in config.windows])
    local = next((rope for rope, window in zip(config.ropes, config.windows, strict=True) if window and rope), None)
    if local is not None:
        writer.add_rope_freq_base_swa(local.theta)
    if config.final_softcap is not None:
        writer.add_final_logit_softcapping(config.final_softcap)


def _describe_multipliers(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    writer.add_attention_scale(config.attention_scale)
    writer.add_embedding_scale(config.embedding_scale)
    writer.add_residual_scale(config.residual_scale)
    writer.add_logit_scale(1 / config.logit_scale)


def _describe_gemma4(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    """Write the heads of the layers with a window, and what shares keys and values, or has embeddings of its own."""
    local = next((layer for layer, window in enumerate(config.windows) if window is not None), _main_layer(config))
    width = config.layer(local).head_dim
    writer.add_key_length_swa(width)
    writer.add_value_length_swa(width)
    writer.add_rope_dimension_count_swa(width)
    writer.add_shared_kv_layers(sum(not config.stores_kv(layer) for layer in range(config.num_layers)))
    writer.add_embedding_length_per_layer_input(config.per_layer_width)


def _rope_factors(config: ModelConfig) -> dict[str, NDArray[np.float32]]:
    """The tensors of factors by which a scaling slows each rotation, or stops it."""
    if config.learned_positions:
        return {}
    main = _main_layer(config)
    rope, head_dim = config.ropes[main], config.layer(main).head_dim
    assert rope is not None
    if rope.proportional:
        turned = (rope.turned or head_dim) // 2
        return {FACTORS: np.array([1.0] * turned + [STOPPED] * (head_dim // 2 - turned), np.float32)}
    match rope.scaling:
        case Llama3Scaling():
            plain = frequencies(replace(rope, scaling=None), config.head_dim, config.context_length)
            return {FACTORS: (plain / frequencies(rope, config.head_dim, config.context_length)).numpy()}
        case LongRope() as long:
            return {LONG: np.array(long.long, np.float32), SHORT: np.array(long.short, np.float32)}
    return {}
