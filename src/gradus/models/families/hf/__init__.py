"""How Hugging Face's config.json spells each family, in transformers 4 or 5: a reader, and a writer, per family.

Absent keys take the value that transformers gives them; apart from that nothing is guessed. The families' records name
the readers by `model_type`. Torch-free. Read in this order:

    fields.py   a JSON object, read strictly
    ropes.py    rotary embeddings and their scalings;  shared.py: the other parts that families share
    gpt2.py, llama.py (SmolLM3 too), mistral.py, qwen.py, gemma3.py, gemma4.py, phi3.py, olmo.py, granite.py:
                the families
    experts.py  what configurations with experts share;  mixtures/: the families that have them in every model
"""
