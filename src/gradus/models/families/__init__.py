"""The model families: how config.json spells each one, and the model that computes it.

Read in this order:

    records.py     one record per family: how others spell it, and which class computes it
    hf_fields.py   a JSON object, read strictly;  hf_config.py: each family's config.json, read and written
    gpt2.py        the first model, whole
    llama.py       Llama, Mistral, SmolLM2, Qwen2;  qwen3.py, gemma3.py: variations

records.py, hf_fields.py and hf_config.py need no torch.
"""
