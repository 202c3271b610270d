"""gpt-oss (OpenAI 2025): experts with biases and a clamped gate, in every layer; every second layer has a window.

A head need not attend to anything: one more logit in its softmax, the sink, is a weight of the head and has no value.
Checkpoints keep an expert's gates and features in turn, one row of each.
"""

from gradus.models.families import llama
from gradus.models.families.mixtures.block import Block
from gradus.models.source import Source, Stack

MLP, EXPERTS = "model.layers.{}.mlp", "model.layers.{}.mlp.experts"
WEIGHTS: dict[str, Source] = llama.WEIGHTS | {
    "layers.{}.heads.sinks": "model.layers.{}.self_attn.sinks",
    "layers.{}.experts.router.product.weight": f"{MLP}.router.weight",
    "layers.{}.experts.router.product.bias": f"{MLP}.router.bias",
    "layers.{}.experts.up.weight": Stack(f"{EXPERTS}.gate_up_proj", turned=True, halves=True, alternating=True),
    "layers.{}.experts.up.bias": Stack(f"{EXPERTS}.gate_up_proj_bias", halves=True, alternating=True),
    "layers.{}.experts.down.weight": Stack(f"{EXPERTS}.down_proj", turned=True),
    "layers.{}.experts.down.bias": Stack(f"{EXPERTS}.down_proj_bias"),
}


class GptOss(llama.Llama):
    """forward(token_ids[N], positions[N], attention) → hidden[N, D]; logits(hidden[R, D]) → [R, V]."""

    weights = WEIGHTS
    block = Block
