"""Answer prompts with a model that is cut over several processes of this machine.

python -m phases.p12_parallelism --ranks 2 --model random:tiny-llama
python -m phases.p12_parallelism --ranks 3                         # SmolLM2 has 9 heads, and 3 of keys and values
python -m phases.p12_parallelism --ranks 1 --stages 2 --micro-batches 2
python -m phases.p12_parallelism --ranks 3 --few-bytes             # and draw without exchanging all scores
python -m phases.p12_parallelism --impl exercises/p12              # with your functions in place of ours
"""

import argparse
import sys
from pathlib import Path

from gradus.errors import GradusError
from gradus.loading import Tokenizer, open_checkpoint
from phases.p12_parallelism.process import Found, Job, launch

PROMPTS = ("Once upon a time, by the sea,", "The opposite of hot is", "Two, four, six,", "In the beginning")
KNOWN = {
    "parts": "ranks that share each matrix",
    "stages": "stages that divide the layers",
    "micro_batches": "groups of requests that take turns in the pipeline",
    "max_tokens": "tokens of each answer",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, usual in (("parts", 2), ("stages", 1), ("micro_batches", 1), ("max_tokens", 12)):
        flag = "ranks" if name == "parts" else name.replace("_", "-")
        parser.add_argument(f"--{flag}", dest=name, type=int, default=usual, help=f"{KNOWN[name]} ({usual})")
    parser.add_argument("--model", default="smollm2-135m", help="any that gradus can load (smollm2-135m)")
    parser.add_argument("--phase", default="p03", help="whose engine each rank runs: p00, p01, p03 to p06 (p03)")
    parser.add_argument("--few-bytes", action="store_true", help="exchange candidates in place of all scores")
    parser.add_argument("--impl", type=Path, help="a folder or file with your functions of p12")
    asked = vars(parser.parse_args())
    impl = asked.pop("impl")
    try:
        tokenizer = open_checkpoint(asked["model"]).tokenizer or Tokenizer.of_bytes()
        prompts = tuple(tuple(tokenizer.encode(prompt)) for prompt in PROMPTS)
        job = Job(prompts=prompts, impl=None if impl is None else str(impl), **asked)
        found = launch(job)
        (alone,) = launch(Job(job.model, prompts, max_tokens=job.max_tokens, phase=job.phase))
    except GradusError as error:
        print(f"p12: {error}", file=sys.stderr)
        return 2
    for rank, each in enumerate(found):
        print(f"rank {rank}: {shown(each)}")
    print(f"one process: {shown(alone)}\n")
    for prompt, tokens in zip(PROMPTS, found[0]["answers"], strict=True):
        print(f"{prompt} → {tokenizer.decode(tokens)!r}")
    same = [each["answers"] == alone["answers"] for each in found]
    print(f"\n{sum(same)} of {len(same)} ranks have the tokens of one process.")
    return 0 if all(same) else 1


def shown(found: Found) -> str:
    heads = f"{found['heads']} query heads, {found['kv_heads']} key-value heads"
    return f"{found['layers']} layers, {heads}, {found['weights']:,} weights"


if __name__ == "__main__":
    sys.exit(main())
