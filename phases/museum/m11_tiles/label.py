"""The label of exhibit 11: what happened, and what it teaches."""

from gradus.course.museum import Label

LABEL = Label(
    fault="The number of tiles is rounded down, so the last rows of a group are in none.",
    phase="p14",
    hints=(
        "Compare the long answer with its prompt, word by word. Which words were not translated, and to which expert "
        "do they belong? Count the rows of that expert.",
        "Seven rows are one whole tile of four, and three rows more. How many tiles does the loop run, and how many "
        "would it have to?",
        "Let the loop go over the first row of each tile instead of over numbers of tiles: with a step of TILE, a "
        "range reaches every row, and Python's slices end where the list ends.",
    ),
    story="Liger-Kernel's fused mixture put its results together in tokens / 32 tiles, so up to 31 rows at the end "
    "of a batch were never written, and stayed as memory had them. Tests had used multiples of 32; the repair came "
    "with one of 45. On Intel GPUs, vLLM's kernel that sorts tokens by expert kept the first token and replaced all "
    "others by padding: answers of a single user were right, and the more users there were, the worse they became, "
    "in fluent sentences. A grouped FP8 kernel of Hugging Face bounded its tiles by rows and not by columns, so what "
    "ran over the edge was written into the next token's row. In each case the row that was lost kept a plausible "
    "value, since a layer only adds to its input, and no error was raised.",
    sources=(
        ("Liger-Kernel #1361, partial token tiles", "https://github.com/linkedin/Liger-Kernel/pull/1361"),
        ("vllm-xpu-kernels #453, tokens dropped", "https://github.com/vllm-project/vllm-xpu-kernels/issues/453"),
        ("kernels-community #1154, bounds of tiles", "https://github.com/huggingface/kernels-community/pull/1154"),
    ),
    moral="Test every size from none to a little more than two tiles, and fill the output with a value that no result "
    "can have before the kernel runs.",
)
