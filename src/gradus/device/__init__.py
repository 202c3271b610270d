"""What every part that works on a device shares.

Read in this order:

    transfer.py         numbers moved between host and device without a wait
    capability.py       what a GPU can do
    nvml.py             what the driver knows of a GPU, and of other processes on it
    processor.py        the processor's name and instruction sets
    control_groups.py   what a container may use of cores and memory
    host_memory.py      the machine's own memory, and how much is free
    zeros.py            zeros that take memory as they are written to
    threads.py          how many threads compute on a CPU, and how they wait for one another
    characters.py       plain forms of characters that the terminal cannot show
    allocator.py        what the C library does with memory that was freed
"""
