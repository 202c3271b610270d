"""The model families: how config.json spells each one, and the model that computes it.

Read in this order:

    records.py      one record per family: how others spell it, and which class computes it
    checkpoints.py  published names by family;  unsupported.py: types that do not load, and what to take instead
    hf/             each family's config.json, read and written;  faults.py: every fault of one
    gpt2.py         the first model, whole
    llama.py        Llama, Mistral, SmolLM2 and 3, Qwen2;  qwen3.py, ministral3.py, phi3.py, granite.py: variations
    olmo2.py        norms behind instead of before;  gemma3.py: both
    gemma4/         layers of different sizes, shared keys and values, embeddings of each layer, and experts
    mixtures/       families whose layers have experts

records.py, checkpoints.py, unsupported.py, faults.py and hf/ need no torch.
"""
