"""llama.cpp's file format, GGUF: the file, and the model and the tokenizer inside it.

Read in this order:

    file.py             the format: metadata, a table of tensors, their bytes;  parts.py: a model in several files
    metadata.py         which of the metadata are read, and which are refused
    architectures.py    what differs by architecture:  configurations.py: its metadata as a configuration,
                        mixtures.py: those of models with experts, sizes.py: what most have in common,
                        rotary.py: how positions are scaled, names.py: the tensors' names elsewhere
    experts.py          the tensors of experts, which keep llama.cpp's names
    model.py            the tensors by those names, as they were before the conversion
    packed.py           matrices in the packed form they are stored in
    tokenizer.py        the tokenizer, rebuilt
"""
