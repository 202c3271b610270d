"""The label of exhibit 10: what happened, and what it teaches."""

from gradus.course.museum import Label

LABEL = Label(
    fault="Tokens are decoded one by one, which bypasses the decoder's knowledge of the tokens before.",
    phase="p00",
    hints=(
        "Look at the bytes of é and of the llama, and at the tokens that contain them. What is the text of the "
        "first of these tokens alone?",
        "It has none yet. A stream needs a memory: bytes that may still become a character wait for the next "
        "token, and `finish` returns the text of the bytes that remain.",
        "Do not write a UTF-8 parser: `codecs` has incremental decoders, which keep the unfinished bytes between "
        "two calls. Make one per stream, with the error handling of `decode`, and pass it a final empty piece in "
        "`finish`.",
    ),
    story="Many projects have had this one. exo decoded tokens one by one in its batched path and with a streaming "
    "detokenizer in its other path, so emoji broke only for users served in a batch. An mlx-vlm detokenizer kept "
    "its bytes, and flushed them at every space, in the middle of a character or not. The kind is wider than "
    "UTF-8: a tokenizer's decoder may also turn ▁ into a space, and text that bypasses it shows the ▁. llama.cpp "
    "once printed runs of spaces as ▁▁. So did Gradus, which returned added tokens as they are spelled: four "
    "spaces of Gemma 3 became ▁▁▁▁, and a stop string of spaces was never found. The ids were right, and no test "
    "read the text.",
    sources=(
        ("exo #1691, use a streaming detokenizer", "https://github.com/exo-explore/exo/pull/1691"),
        ("mlx-vlm #1778, incomplete UTF-8 at a flush", "https://github.com/Blaizzy/mlx-vlm/pull/1778"),
        ("llama.cpp #2743, spaces become U+2581", "https://github.com/ggml-org/llama.cpp/issues/2743"),
    ),
    moral="For any token ids, broken ones among them, the streamed pieces joined must equal the decoder's text of "
    "the whole list.",
)
