"""The label of exhibit 9: what happened, and what it teaches."""

from gradus.course.museum import Label

LABEL = Label(
    fault="The host rewrites a staging buffer before the device has read it.",
    phase="p10",
    hints=(
        "The first words are missing, and the last one is repeated. A debugger slows the host down. How does that "
        "help the device?",
        "`copy` queues a reference, not the values. When the copy runs, it reads what the buffer holds at that "
        "time. Who writes to the buffer in between?",
        "Memory handed to the device is not the host's until the copy has run. Either wait for that copy before "
        "writing again, or do not write there again: give every step a list of its own, or alternate between "
        "enough buffers.",
    ),
    story="vLLM's asynchronous scheduling reuses pinned buffers on the host for inputs that are copied without "
    "waiting. A reader of the code noticed that nothing kept one step from writing before the previous one was "
    "copied. The first fix added an event to wait for, and covered too little: sampling parameters were written "
    "before it. The second fix widened the guarded section. More followed for images and drafters, and eleven "
    "months after the first one a pull request adds the same guard to the new model runner, where servers hung "
    "after minutes of load with no error in the log. TokenSpeed drew the timeline in its report, and fixed it as "
    "this exhibit does. PyTorch's answer to such reports: with non_blocking, keeping the source alive and "
    "unmodified is the caller's responsibility.",
    sources=(
        ("vLLM #24527, integrity of reused CPU tensors", "https://github.com/vllm-project/vllm/pull/24527"),
        ("vLLM #25279, the race, take 2", "https://github.com/vllm-project/vllm/pull/25279"),
        ("vLLM #54269, the V2 model runner", "https://github.com/vllm-project/vllm/pull/54269"),
        ("TokenSpeed #376, CPU buffer racing", "https://github.com/lightseekorg/tokenspeed/pull/376"),
        ("PyTorch #126946, non_blocking", "https://github.com/pytorch/pytorch/issues/126946"),
    ),
    moral="A buffer belongs to the queued copy until that has run; test with a device that is late on purpose, "
    "because a fast one hides the race.",
)
