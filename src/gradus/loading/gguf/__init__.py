"""llama.cpp's file format, GGUF: the file, and the model and the tokenizer inside it.

Read in this order:

    file.py         the format: metadata, a table of tensors, their bytes;  parts.py: a model in several files
    model.py        its metadata as a configuration, its tensors by their names elsewhere
    metadata.py     which of the metadata are read, and which are refused
    packed.py       its matrices in the packed form they are stored in
    tokenizer.py    its tokenizer, rebuilt
"""
