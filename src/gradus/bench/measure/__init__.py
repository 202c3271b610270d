"""One workload through one engine, timed, and the machine that it runs on.

Read in this order:

    settings.py      the request, and the display of progress
    drive.py         the workload driven through the engine, every token timed; repeats, interleaved
    memory.py        how much memory a contender takes
    idle.py          how long the GPU waits for the host between two steps
    timeline.py      each step's work, and when host and device did it
    gpu.py           what NVML knows of a GPU, and how long a kernel takes
    fingerprint.py   which machine this is, and what it reaches
"""
