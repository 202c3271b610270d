"""Watch a mask at work on a greedy answer, token by token: how much of the model's own probability does it leave?

    python -m phases.p11_structured_output.watch "My phone number is" --regex " \\\\d{3}-\\\\d{4}"
    python -m phases.p11_structured_output.watch "Is the sky blue?" --chat --choice yes --choice no

Each row is a token: how many may come in its place, what the model gives all of them together, the one that is drawn,
and the one that the model would have chosen.
"""

import argparse
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gradus import LLM, SamplingParams
from gradus.sampling.observer import DrawObserver
from gradus.sampling.sampler import Rows, Sampler
from gradus.text.completion import Completion


@dataclass(frozen=True, slots=True)
class Seen:
    """legal: how many tokens may come. mass: the model's probability for all of them. drawn, freely: the token that is
    drawn, and the one that the model would choose of all."""

    legal: int
    mass: float
    drawn: int
    freely: int


class Watch(DrawObserver):
    """Notes each masked draw of an engine, while one request runs alone."""

    def __init__(self, sampler: Sampler) -> None:
        self.seen: list[Seen] = []
        sampler.observer = self

    def drew(self, logits: Tensor, rows: Rows, masked: Tensor, legal: Tensor, tokens: Tensor) -> None:
        mass = logits[0].softmax(-1)[legal[0]].sum()
        self.seen.append(Seen(int(legal[0].sum()), float(mass), int(tokens[0]), int(logits[0].argmax())))

    def take(self, tokens: int) -> list[Seen]:
        """Return the notes on an answer of this length. Steps in vain (p10) are left out."""
        seen, self.seen = self.seen[:tokens], []
        return seen


def answer(
    llm: LLM, watch: Watch, prompt: str | list[int], structured: Any, most: int
) -> tuple[Completion, list[Seen]]:
    """Run a request alone, for at most `most` tokens. Returns its answer, and a record of each mask."""
    (done,) = llm.generate(prompt, SamplingParams(max_tokens=most, structured=structured))
    return done, watch.take(len(done.token_ids))


def main() -> None:
    parser = argparse.ArgumentParser(description="Watch a mask at work on a greedy answer, token by token.")
    parser.add_argument("prompt")
    parser.add_argument("--regex")
    parser.add_argument("--choice", action="append")
    parser.add_argument("--chat", action="store_true", help="the prompt is a message to the model")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=40, help="at most")
    asked = parser.parse_args()
    kinds = {"regex": asked.regex, "choice": asked.choice}
    with LLM(asked.model, phase="p11", dtype="float32", device="cpu") as llm:
        prompt = llm.chat_prompt([{"role": "user", "content": asked.prompt}]) if asked.chat else asked.prompt
        (free,) = llm.generate(prompt, SamplingParams(max_tokens=asked.tokens))
        watch = Watch(llm.engine.runner.sampler)  # type: ignore[attr-defined]
        done, steps = answer(llm, watch, prompt, {kind: text for kind, text in kinds.items() if text}, asked.tokens)
        assert llm.tokenizer is not None, "a model that reads text"
        word = llm.tokenizer.decode
        print(f"freely:    {free.text!r}\nwith mask: {done.text!r}\n\n legal  probability  drawn            freely")
        for each in steps:
            drawn, freely = (repr(word([token], skip_special=False)) for token in (each.drawn, each.freely))
            print(f"{each.legal:6,}  {each.mass:11.3%}  {drawn:15}  {freely}")


if __name__ == "__main__":
    main()
