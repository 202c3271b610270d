"""Gemma 4's tensors: our parameter → the checkpoint's."""

from gradus.models.config import ModelConfig
from gradus.models.source import Scaled, Source, Stack

LAYER, ATTENTION = "model.layers.{}", "model.layers.{}.self_attn"
Q, K, V = (f"{ATTENTION}.{name}_proj" for name in "qkv")  # of a layer that has them all
WEIGHTS: dict[str, Source] = {
    "embedding.weight": "model.embed_tokens.weight",
    "inputs.embedding.weight": "model.embed_tokens_per_layer.weight",
    "inputs.product.weight": "model.per_layer_model_projection.weight",
    "inputs.norm.weight": "model.per_layer_projection_norm.weight",
    "layers.{}.attention_norm.weight": f"{LAYER}.input_layernorm.weight",
    "layers.{}.qkv.weight": (f"{Q}.weight", f"{K}.weight", f"{V}.weight"),
    "layers.{}.qkv.bias": (f"{Q}.bias", f"{K}.bias", f"{V}.bias"),
    "layers.{}.heads.q_norm.weight": f"{ATTENTION}.q_norm.weight",
    "layers.{}.heads.k_norm.weight": f"{ATTENTION}.k_norm.weight",
    "layers.{}.output.weight": f"{ATTENTION}.o_proj.weight",
    "layers.{}.output.bias": f"{ATTENTION}.o_proj.bias",
    "layers.{}.attention_out_norm.weight": f"{LAYER}.post_attention_layernorm.weight",
    "layers.{}.mlp_norm.weight": f"{LAYER}.pre_feedforward_layernorm.weight",
    "layers.{}.gate_up.weight": (f"{LAYER}.mlp.gate_proj.weight", f"{LAYER}.mlp.up_proj.weight"),
    "layers.{}.down.weight": f"{LAYER}.mlp.down_proj.weight",
    "layers.{}.mlp_out_norm.weight": f"{LAYER}.post_feedforward_layernorm.weight",
    "layers.{}.embedded.gate.weight": f"{LAYER}.per_layer_input_gate.weight",
    "layers.{}.embedded.out.weight": f"{LAYER}.per_layer_projection.weight",
    "layers.{}.embedded.norm.weight": f"{LAYER}.post_per_layer_input_norm.weight",
    "layers.{}.scale": f"{LAYER}.layer_scalar",
    "layers.{}.dense_out_norm.weight": f"{LAYER}.post_feedforward_layernorm_1.weight",
    "layers.{}.experts.norm.weight": f"{LAYER}.pre_feedforward_layernorm_2.weight",
    "layers.{}.experts.out_norm.weight": f"{LAYER}.post_feedforward_layernorm_2.weight",
    "layers.{}.experts.router.norm.weight": f"{LAYER}.router.scale",  # times D^-0.5: see `weights_of`
    "layers.{}.experts.router.product.weight": f"{LAYER}.router.proj.weight",
    "layers.{}.experts.router.factors": f"{LAYER}.router.per_expert_scale",
    "layers.{}.experts.up.weight": Stack(f"{LAYER}.experts.gate_up_proj", halves=True),
    "layers.{}.experts.down.weight": Stack(f"{LAYER}.experts.down_proj"),
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}


def weights_of(config: ModelConfig) -> dict[str, Source]:
    """The table of one model. The router divides its normalized rows by sqrt(D), which its norm's weight includes."""
    router = "layers.{}.experts.router.norm.weight"
    return WEIGHTS | {router: Scaled(f"{LAYER}.router.scale", config.hidden_size**-0.5)}
