"""The label of exhibit 4: what happened, and what it teaches."""

from gradus.course.museum import Label

LABEL = Label(
    fault="A stop string inside accepted drafts cuts the text, but not the tokens after it.",
    phase="p08",
    hints=(
        "The text is the same both times, so the stop string is found. Which tokens are billed that are not in the "
        "text, and in which step did they arrive?",
        "A step returns several tokens, and `add` appends all of them before it looks for the stop string. Without "
        "drafts, that is the same as looking after each token.",
        "Let `add` go through the accepted tokens in order: extend tokens and text by one, look for the stop "
        "string, and drop the rest of the step once it is found.",
    ),
    story="In vLLM, ids and log-probabilities of tokens after a stop string stayed in the result when n-gram "
    "drafts were accepted: text was cut at a character, and nothing mapped that character back to a token. SGLang "
    "had two related faults. Its check decoded only the last few tokens, so a stop string early in a long accepted "
    "run was missed. It also compared with the length limit first, so a run that passed the limit hid a stop "
    "string before it. Gradus had the fault as well: with a draft model, an answer of 40 tokens came with 43 ids, "
    "43 log-probabilities and a usage of 43. Its documentation promised otherwise, and no test compared the ids "
    "with the text.",
    sources=(
        ("vLLM #47616, trim token ids and logprobs", "https://github.com/vllm-project/vllm/pull/47616"),
        ("SGLang #23802, early matches are missed", "https://github.com/sgl-project/sglang/pull/23802"),
        ("SGLang #31599, the length limit masks a stop", "https://github.com/sgl-project/sglang/issues/31599"),
    ),
    moral="An optimization that promises the same output must be compared on all of it: text, ids, "
    "log-probabilities, usage and finish reason.",
)
