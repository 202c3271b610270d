"""llama.cpp's names of tensors → Hugging Face's, by architecture.

A name without its layer and ending (`attn_q`) means that layer's weight and bias; `{}` is the layer. A name with its
ending means that tensor alone.
"""

LLAMA = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "attn_norm": "model.layers.{}.input_layernorm",
    "attn_q": "model.layers.{}.self_attn.q_proj",
    "attn_k": "model.layers.{}.self_attn.k_proj",
    "attn_v": "model.layers.{}.self_attn.v_proj",
    "attn_output": "model.layers.{}.self_attn.o_proj",
    "ffn_norm": "model.layers.{}.post_attention_layernorm",
    "ffn_gate": "model.layers.{}.mlp.gate_proj",
    "ffn_up": "model.layers.{}.mlp.up_proj",
    "ffn_down": "model.layers.{}.mlp.down_proj",
}
QWEN3 = LLAMA | {
    "attn_q_norm": "model.layers.{}.self_attn.q_norm",
    "attn_k_norm": "model.layers.{}.self_attn.k_norm",
}
GPT_OSS = LLAMA | {
    "post_attention_norm": "model.layers.{}.post_attention_layernorm",
    "attn_sinks.weight": "model.layers.{}.self_attn.sinks",
}
GLM4 = QWEN3 | {"post_attention_norm": "model.layers.{}.post_attention_layernorm"}
PHI3 = LLAMA | {
    "attn_qkv": "model.layers.{}.self_attn.qkv_proj",
    "ffn_up": "model.layers.{}.mlp.gate_up_proj",
}
OLMO2 = QWEN3 | {
    "post_attention_norm": "model.layers.{}.post_attention_layernorm",
    "post_ffw_norm": "model.layers.{}.post_feedforward_layernorm",
}
GEMMA3 = QWEN3 | {
    "post_attention_norm": "model.layers.{}.post_attention_layernorm",
    "ffn_norm": "model.layers.{}.pre_feedforward_layernorm",
    "post_ffw_norm": "model.layers.{}.post_feedforward_layernorm",
}
GEMMA4 = GEMMA3 | {
    "layer_output_scale.weight": "model.layers.{}.layer_scalar",
    "inp_gate": "model.layers.{}.per_layer_input_gate",
    "proj": "model.layers.{}.per_layer_projection",
    "post_norm": "model.layers.{}.post_per_layer_input_norm",
    "per_layer_token_embd.weight": "model.embed_tokens_per_layer.weight",
    "per_layer_model_proj.weight": "model.per_layer_model_projection.weight",
    "per_layer_proj_norm.weight": "model.per_layer_projection_norm.weight",
    "post_ffw_norm_1": "model.layers.{}.post_feedforward_layernorm_1",
    "post_ffw_norm_2": "model.layers.{}.post_feedforward_layernorm_2",
    "pre_ffw_norm_2": "model.layers.{}.pre_feedforward_layernorm_2",
    "ffn_gate_inp.scale": "model.layers.{}.router.scale",
    "ffn_down_exps.scale": "model.layers.{}.router.per_expert_scale",
}
GPT2 = {
    "token_embd.weight": "wte.weight",
    "position_embd.weight": "wpe.weight",
    "output_norm.weight": "ln_f.weight",
    "output_norm.bias": "ln_f.bias",
    "output.weight": "lm_head.weight",
    "attn_norm": "h.{}.ln_1",
    "attn_qkv": "h.{}.attn.c_attn",
    "attn_output": "h.{}.attn.c_proj",
    "ffn_norm": "h.{}.ln_2",
    "ffn_up": "h.{}.mlp.c_fc",
    "ffn_down": "h.{}.mlp.c_proj",
}
