"""The config.json of families whose layers have experts. What they share is next to this room.

Read in this order:

    mixtral.py, olmoe.py   experts in every layer's MLP
    qwen.py                Qwen3-MoE, and Qwen2-MoE, whose tokens also share an MLP
    gpt_oss.py             biases, attention sinks, a gate of its own
    glm4.py                GLM-4.5: sigmoid scores, groups of experts, dense first layers

Granite's and Gemma 4's are next to those of their dense models.
"""
