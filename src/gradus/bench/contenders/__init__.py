"""The engines that are compared. Each takes the same arrivals and returns the same kind of run.

Read in this order:

    workbench.py     a model on a device, and every contender for it; a phase's engine as a contender
    yours.py         a student's phases
    transformers.py  Hugging Face transformers
    llama_cpp.py     llama.cpp;  gguf_files.py: our checkpoints in its format
                    gguf_experts.py: their experts;  gguf_random.py: random weights in a shape's Q4_K_M file
    carried.py       a .gguf file's model in parts, for machines that take little at a time
"""
