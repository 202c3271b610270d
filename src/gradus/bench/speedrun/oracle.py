"""The judge: the model in float32 on a CPU, over each prompt and answer, with nothing kept between them.

Floats are summed in another order in every engine, and a GPU's are narrower, so of two tokens that are nearly as likely
either may come out; the two then continue different texts. So an answer is not compared with another one. Each of its
tokens is judged after those before it: its logit must be at most `rules.CLOSE` below the best. That is the bound within
which the conformance suite lets 16-bit engines part from float32.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from gradus.attention.whole import WholeSequence
from gradus.bench.speedrun.rules import CLOSE
from gradus.bench.speedrun.workload import Ask
from gradus.bench.statistics import significant
from gradus.loading import Checkpoint, load_model
from gradus.models import Model


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judge's findings. tokens: judged. likeliest: tokens with the best logit of all. widest: the largest
    distance of a token's logit from the best. wrong: the first token beyond the bound, in a sentence; "" if there is
    none."""

    tokens: int
    likeliest: int
    widest: float
    wrong: str = ""


def load(checkpoint: Checkpoint) -> Model:
    """The model that decides: the checkpoint's weights, widened to float32."""
    return load_model(checkpoint, dtype=torch.float32, device="cpu")


@torch.inference_mode()
def judge(model: Model, answered: Iterable[tuple[str, Ask, Sequence[int]]]) -> Verdict:
    """Judge answers. answered: for each, what a message calls its request, the request, and the tokens."""
    tokens = likeliest = 0
    widest, wrong = 0.0, ""
    for name, ask, answer in answered:
        if len(answer) != ask.max_tokens or not all(0 <= token < model.config.vocab_size for token in answer):
            wrong = wrong or f"{name} wants {ask.max_tokens} tokens of the vocabulary, and got {list(answer)}"
            continue
        for place, (gap, token, best) in enumerate(gaps(model, ask, answer), start=1):
            tokens, likeliest, widest = tokens + 1, likeliest + (token == best or gap == 0), max(widest, gap)
            if gap > CLOSE:
                wrong = wrong or (
                    f"{name}, token {place} is {token}, whose logit is {gap:.2f} below that of {best}; "
                    f"at most {CLOSE} is allowed"
                )
    return Verdict(tokens, likeliest, significant(widest), wrong)


def gaps(model: Model, ask: Ask, answer: Sequence[int]) -> list[tuple[float, int, int]]:
    """For each token of an answer: how far its logit is below the best, the token, and the best token."""
    text = torch.tensor([*ask.prompt, *answer[:-1]])
    hidden = model(text, torch.arange(len(text)), WholeSequence(model.config))
    logits = model.logits(hidden[len(ask.prompt) - 1 :])
    best, ids = logits.max(dim=-1)
    mine = logits.gather(1, torch.tensor(answer).unsqueeze(1)).squeeze(1)
    return list(zip((best - mine).tolist(), answer, ids.tolist(), strict=True))
