"""What published config.json files say: the keys that a model's computation and memory depend on.

`shapes.py` gives each a name. A file per maker, the oldest first:

    gpt2.py   llama.py   qwen.py   gemma.py   mistral.py   phi.py   olmo.py   granite.py   smollm.py

No number here is derived: tests/models/test_config.py compares the parameters that follow with the published counts.
"""
