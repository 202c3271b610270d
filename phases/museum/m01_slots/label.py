"""The label of exhibit 1: what happened, and what it teaches."""

from gradus.course.museum import Label

LABEL = Label(
    fault="A slot is reused without clearing what its last request left in it.",
    phase="p03",
    hints=(
        "Ben's answer is right if he comes first. So the other words were in the engine before his request. Which "
        "field of the engine still has Ann's words after her request?",
        "`states` has one entry per slot, and only `read` writes to it: it appends. A cache of keys and values "
        "survives that, because attention reads only as many rows as the request has. A recurrent state has no "
        "such length.",
        "A request leaves its slot in several ways (finished, cancelled, preempted, failed), and enters in one. "
        "Make the state empty there, before the slot's new request runs for the first time.",
    ),
    story="In vLLM, models that mix attention with recurrent layers take both kinds of state from one pool of "
    "blocks. A report of September 2026 says that blocks for recurrent states are handed out without zeroing, so a "
    "state that its new request has not written yet is whatever the previous one left. Half a year earlier, the "
    "same pool had the opposite fault. Blocks that had held a recurrent state in float32 went to attention in a "
    "narrower type, where the old bits can read as NaN. Attention multiplies masked positions by zero, and zero "
    "times NaN is NaN, so accuracy decayed over the life of the server. vLLM's TPU port has the guard that repairs "
    "this exhibit: a request with no computed tokens starts from zeros.",
    sources=(
        ("vLLM #56524, zero mamba state blocks on (re)allocation", "https://github.com/vllm-project/vllm/pull/56524"),
        ("vLLM #35219, zero freed SSM cache blocks", "https://github.com/vllm-project/vllm/pull/35219"),
        ("tpu-inference #2416, the stale-state guard", "https://github.com/vllm-project/tpu-inference/pull/2416"),
    ),
    moral="Clear state where it gets a new owner, because there are many ways out of a slot and only one way in; "
    "and test every request twice, alone and after another one.",
)
