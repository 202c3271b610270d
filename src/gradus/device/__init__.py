"""Facts and tools about devices, shared by all parts that work on one.

Read in this order:

    transfer.py         copies between host and device without a wait
    capability.py       a GPU's features
    nvml.py             the driver's information about a GPU, and about other processes on it
    processor.py        the processor's name and instruction sets
    control_groups.py   a container's share of cores and memory
    host_memory.py      the machine's own memory, and how much is free
    zeros.py            zeros that take memory as they are written to;  pinned.py: memory that a GPU copies from
    threads.py          the number of threads on a CPU, and how they wait for one another
    characters.py       plain forms of characters that the terminal cannot show
    allocator.py        the C library's use of freed memory
    program.py          one of our modules as a process of its own
    peer.py             the process at the other end of a socket, and a parent's death
"""
