"""The label of exhibit 5: what happened, and what it teaches."""

from gradus.course.museum import Label

LABEL = Label(
    fault="A placeholder for a token that has not arrived is fed into a grammar.",
    phase="p10",
    hints=(
        "After the first bracket the grammar should be in state `item`, where no bracket is allowed. Print the "
        "tokens that `allowed` reads, with lag 0 and with lag 1.",
        "With a lag the newest token has no value yet, so the grammar reads a placeholder, refuses it, and counts "
        "it as seen. When the value arrives, the grammar does not read it. What must be true before a mask can be "
        "made?",
        "Every token must have arrived. `ready` may say no: then a step arrives first, and the sequence is planned "
        "after it. A sequence that no grammar constrains has no reason to wait.",
    ),
    story="vLLM uses the id −1 for tokens that have not arrived and for draft positions that must not be verified. "
    "That number has reached several places that read token ids. It reached grammars: xgrammar rejects it with a "
    "warning each time, the guidance backend failed on it, and a reviewer traced it to two calls of "
    "`validate_tokens`. It reached the embedding, as a read out of range that a client could provoke, which has a "
    "security advisory. It reached the rejection sampler, as an index into probabilities. Python makes it worse, "
    "because `table[-1]` is no error there. The p10 of this course has such a placeholder too: its runner fills it "
    "in on the device, and nothing else may read it.",
    sources=(
        ("vLLM #51450, review: −1 in validate_tokens", "https://github.com/vllm-project/vllm/pull/51450"),
        ("vLLM #44743, spec tokens padded with −1", "https://github.com/vllm-project/vllm/pull/44743"),
        ("vLLM #46533, reject placeholder drafts", "https://github.com/vllm-project/vllm/pull/46533"),
    ),
    moral="A placeholder may travel only where something replaces it, so every reader of tokens should refuse it "
    "loudly; and any feature must give the same tokens with and without overlap.",
)
