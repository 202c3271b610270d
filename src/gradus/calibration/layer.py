"""One layer of a model on its own: made, loaded and run, so that only one layer is in memory."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from gradus.attention.whole import WholeSequence
from gradus.calibration.observed import ObservedLinear
from gradus.models.config import ModelConfig
from gradus.models.create import create_model
from gradus.models.layers import Linear, MatrixId, Model
from gradus.models.parts import parts_of
from gradus.models.weights import Piece, TensorSource, assign, plan
from gradus.quantization.mix import FLOATS_ALONE


@dataclass
class LoneLayer:
    """number: the layer's index in its model. model: a model of this layer alone, with a vocabulary of one token."""

    number: int
    model: Model

    @classmethod
    def load(cls, config: ModelConfig, number: int, source: TensorSource, device: torch.device) -> "LoneLayer":
        """Load the layer in float32. The checkpoint's names and shapes have been checked."""
        layer = cls(number, create_model(_alone(config, number), device=device, linear=ObservedLinear))
        for piece in layer.pieces():
            value = source.read(layer.name(piece))
            assert isinstance(value, Tensor)
            assign(piece.module, piece.parameter, piece.start, piece.stored.convert(value))
        return layer

    def pieces(self) -> Iterator[Piece]:
        """The checkpoint's tensors of this layer, under the names of layer 0."""
        inside = set(self.model.layers.modules())
        return (piece for piece in plan(self.model) if piece.module in inside)

    def name(self, piece: Piece) -> str:
        """The name of a piece's tensor in the whole model."""
        return re.sub(r"\.0\.", f".{self.number}.", piece.stored.name, count=1)

    def linears(self) -> dict[str, ObservedLinear]:
        """The layer's linear operations that may be quantized, by role, such as "qkv"."""
        modules = (module for module in self.model.layers.modules() if isinstance(module, Linear))
        found = {each.matrix_id.role: each for each in modules if each.matrix_id.role not in FLOATS_ALONE}
        return {role: linear for role, linear in found.items() if isinstance(linear, ObservedLinear)}

    def norm_before(self, matrix_id: MatrixId) -> nn.Module | None:
        """The norm whose output a product reads: of "qkv" and "gate_up"; None if it reads the stream as it is. Raises
        Undescribed where that is not known."""
        (layer,) = parts_of(self.model)
        return layer.attention_norm if matrix_id.role == "qkv" else layer.mlp_norm

    def run(self, hidden: Sequence[Tensor]) -> list[Tensor]:
        """Run the layer. Returns each sequence's states [T, D] after it."""
        attention = WholeSequence(self.model.config)
        return [self.model.run_layers(x, torch.arange(len(x), device=x.device), attention) for x in hidden]

    def observed(self, hidden: Sequence[Tensor]) -> list[Tensor]:
        """Run the layer, and let all its matrices collect statistics."""
        for linear in self.linears().values():
            linear.observe()
        return self.run(hidden)


def _alone(config: ModelConfig, number: int) -> ModelConfig:
    """The configuration of one layer, which may attend to the keys and values of a layer before it, not here."""
    source = config.kv_source(number) - number
    return replace(
        config.layer(number),
        num_layers=1,
        ropes=(config.ropes[number],),
        windows=(config.windows[number],),
        keys_as_values=config.keys_as_values[number : number + 1],
        experts=config.experts[number : number + 1],
        kv_sources=(source,) if source else (),
        vocab_size=1,
        bos_token_id=None,
        eos_token_ids=(),
    )


def around_layers(config: ModelConfig, source: TensorSource, device: torch.device) -> Model:
    """Load the model without its layers, in float32: the embedding, the last norm, and the head."""
    model = create_model(config.stage(range(0)), device=device)
    for piece in plan(model):
        value = source.read(piece.stored.name)
        assert isinstance(value, Tensor)
        assign(piece.module, piece.parameter, piece.start, piece.stored.convert(value))
    return model


def embedded(model: Model, sequences: Sequence[Tensor]) -> list[Tensor]:
    """Embed token ids [T] → the first layer's inputs, [T, D] each."""
    return [model.embed(ids, torch.arange(len(ids), device=ids.device)) for ids in sequences]
