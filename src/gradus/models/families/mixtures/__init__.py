"""Families whose layers have experts: each a table of names for one and the same layer.

Read in this order:

    block.py        the layer
    mixtral.py      Mixtral;  olmoe.py: OLMoE;  qwen.py: Qwen3-MoE, and Qwen2-MoE with an MLP that all tokens share
    granite.py      Granite 3 and 4 with experts, stored in one tensor per layer
    gpt_oss.py      gpt-oss: biases, attention sinks, a gate of its own
    glm4.py         GLM-4.5: sigmoid scores, an MLP that all tokens share, and heads that turn in part

Gemma 4's experts have norms of their own, and so a layer of its own: see `gemma4/`.
"""
