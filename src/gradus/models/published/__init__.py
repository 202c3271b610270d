"""Published config.json files: the keys that a model's computation and memory depend on.

`gradus.models.shapes` gives each a name. A file per maker, the oldest first:

    gpt2.py   llama.py   qwen.py   gemma.py   mistral.py   phi.py   olmo.py   granite.py   smollm.py
    gpt_oss.py   glm.py

No number here is derived: a test compares the parameters that follow from them with the published counts.
"""
