"""The label of slow exhibit 2: what happened, and what it teaches."""

from gradus.course.museum import SlowLabel

LABEL = SlowLabel(
    fault="Compiled grammars are kept under a key that no second request can have.",
    phase="p11",
    hints=(
        "Most of the time is in `startswith`. That is where it goes, and not why. Follow the callers up, until a "
        "function is called more often than it should be.",
        "20 requests with the same schema compile 20 grammars, although they are kept. Each body is parsed into a new "
        "`Schema`. When does a dict take two of them for the same key?",
        "A key must be equal when the contents are, and different when they are not: all of the contents, in their "
        "order, and nothing else. A frozen dataclass compares and hashes by its fields, if each of these can be "
        "hashed, and a list cannot.",
    ),
    look="python -m cProfile -s cumtime exercises/museum/grammar.py | head -16",
    seen="`Grammar.__init__` has been called 20 times for 20 requests with one schema. The functions with the most "
    "time of their own are far below it, and innocent.",
    gave="The reports give no figures before and after. Here, a request whose schema is known went from 12 ms to 0.03.",
    story="vLLM's guided decoding with outlines built the regular expression of a JSON schema for every request: the "
    "object that held it was made per request, and nothing in it was cached. TabbyAPI made a new table of the "
    "vocabulary for each constrained request, where one would have served all of them. imp classified the whole "
    "vocabulary per request, and parsed a schema before it asked its cache. On Tenstorrent's chips, the "
    "key was an identity, as it is here: the compiler guards on the id of the tensor that holds the KV cache, and an "
    "update that makes a new tensor compiled every decoding step again. Llama on TPUs had compiled for each token, and "
    "was repaired in the same way, by an update in place. The opposite mistake is "
    "worse: a key that leaves something out gives a client the grammar of another one. lattice found its key without "
    "the vocabulary before a second model could be loaded. The final engine's key is the grammar's text.",
    sources=(
        ("vLLM #8383, the same regular expression again and again", "https://github.com/vllm-project/vllm/issues/8383"),
        ("TabbyAPI #146, tokenizer data for each request", "https://github.com/theroyallab/tabbyAPI/pull/146"),
        ("imp #1568, a vocabulary classified per request", "https://github.com/kekzl/imp/issues/1568"),
        ("PyTorch/XLA Llama #59, recompiled per token", "https://github.com/pytorch-tpu/llama/pull/59"),
        ("tt-xla #4631, a guard on the object's id", "https://github.com/tenstorrent/tt-xla/issues/4631"),
        ("lattice #1557, a key without the vocabulary", "https://github.com/ohdearquant/lattice/issues/1557"),
    ),
    moral="Count the hits of every cache, because a cache that never hits gives right answers, and test it with an "
    "equal key that is another object.",
)
