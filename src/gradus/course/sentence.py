"""A sentence written by p00's forward pass, or by yours, and the same one written by the engine.

    python -m gradus.course.sentence "The best thing about the sea is" --impl exercises/p00

Your files may have any names. Ours replace exercises that you have not written yet.
"""

import argparse
import sys
import time
from itertools import islice, takewhile
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from gradus import phases
from gradus.device.characters import accept_every_character
from gradus.errors import ConfigError, GradusError
from gradus.exercises.solution import load
from gradus.exercises.substitute import substitute

if TYPE_CHECKING:
    from torch import Tensor


def take_in(folder: Path) -> None:
    """Import the student's written files in place of ours. Raises ConfigError if none is written."""
    modules = [exercise.module for exercise in phases.find("p00").module("exercise").FORWARD]
    files = {module: file for module, file in load("p00", folder).files.items() if module in modules}
    if not files:
        raise ConfigError(
            f"{folder} has none of the forward pass: its files are yours to write in `gradus exercise p00`"
        )
    substitute(files)


def refuse(asked: argparse.Namespace, prompt: list[int], vocabulary: int) -> None:
    """Raise ConfigError for arguments with which no sentence can be written."""
    if not prompt:
        raise ConfigError("the prompt has no token: give a word or more")
    if asked.tokens < 1 or not asked.temperature >= 0 or not 1 <= asked.top_k <= vocabulary:
        raise ConfigError(f"--tokens must be 1 or more, --temperature 0 or more, --top-k 1 to {vocabulary}")


def compare(asked: argparse.Namespace) -> bool:
    """Print both texts. Returns whether their tokens are equal; sampled tokens are not compared."""
    import torch

    from gradus import LLM, SamplingParams
    from gradus.loading import load_model, open_checkpoint
    from gradus.text.stream import TextStream

    forward, sampling, weights = map(phases.find("p00").module, ("forward", "sampling", "weights"))
    random = Random(asked.seed)

    def choose(logits: "Tensor") -> int:
        if asked.temperature == 0:
            return int(sampling.greedy(logits))
        return int(sampling.sample(logits, asked.temperature, asked.top_k, random.random()))

    checkpoint = open_checkpoint(asked.model)
    tokenizer = checkpoint.tokenizer
    assert tokenizer is not None, "a model that reads text"
    prompt = tokenizer.encode(asked.prompt)
    refuse(asked, prompt, checkpoint.config.vocab_size)
    engine = LLM(checkpoint, phase="p00", dtype="float32", device="cpu")
    model = load_model(checkpoint, dtype=torch.float32, device="cpu")
    ends = engine.limits.eos_token_ids
    text = TextStream(tokenizer.token_bytes)
    tokens: list[int] = []
    begun = time.perf_counter()
    with torch.inference_mode():
        show(f"by hand    {asked.prompt}")
        written = forward.write(prompt, weights.weights_of(model), choose)
        for token in islice(takewhile(lambda token: token not in ends, written), asked.tokens):
            tokens.append(token)
            show(text.push([token]))
    show(f"{text.finish()}\n           {len(tokens)} tokens in {time.perf_counter() - begun:.1f} s\n")
    if asked.temperature > 0:
        return True
    show(f"by p00     {asked.prompt}")
    for delta in engine.stream(prompt, SamplingParams(max_tokens=asked.tokens)):
        show(delta.text)
        completion = delta.completion
    assert completion is not None, "the last delta has the completion"
    same = [token for token in completion.token_ids if token not in ends] == tokens
    show(f"\n           {'the same tokens' if same else 'OTHER TOKENS'}\n")
    return same


def show(text: str) -> None:
    """Text as it comes: a token can take a second."""
    print(text, end="", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="A sentence by hand, and by the engine.")
    parser.add_argument("prompt", nargs="?", default="The best thing about the sea is")
    parser.add_argument("--impl", type=Path, help="the folder with your files; ours replace missing ones")
    parser.add_argument("--model", default="smollm2-135m", help="any plain Llama")
    parser.add_argument("--tokens", type=int, default=24, help="most tokens to write")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 takes the likeliest token")
    parser.add_argument("--top-k", type=int, default=40, help="sample among the k likeliest tokens")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same sample")
    asked = parser.parse_args()
    accept_every_character()
    try:
        if asked.impl is not None:
            take_in(asked.impl)
        return 0 if compare(asked) else 1
    except NotImplementedError as error:
        sys.exit(f"sentence: still to be written: {error}")
    except GradusError as error:
        sys.exit(f"sentence: {error}")


if __name__ == "__main__":
    sys.exit(main())
