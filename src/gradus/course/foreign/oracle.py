"""The right answers: the library's model, run over the whole sequence for every token, with nothing kept.

Floats are summed in another order in every engine, so two tokens that are nearly as likely could come out either way.
The judge asks only what is clear: at every token of every answer, the best score leads by CLEAR at least.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import torch
from torch import Tensor

from gradus.attention.whole import WholeSequence
from gradus.course.foreign.weights import VOCABULARY
from gradus.kernels.sampling.noise import exponential
from gradus.loading import load_model, open_checkpoint

CLEAR = 0.005
"""Score by which the best token leads. Float32 and float64 logits of this model differ by 4e-6 at most (measured)."""
MOST_TRIES = 500


@dataclass(frozen=True, slots=True)
class Question:
    """A request. temperature 0 takes the likeliest token; above it, seed and position decide the noise."""

    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0


class Oracle:
    """Answers for one model folder."""

    def __init__(self, folder: Path) -> None:
        self.model = load_model(open_checkpoint(str(folder)), dtype=torch.float32, device="cpu")
        self.answers: dict[Question, tuple[int, ...]] = {}

    def answer(self, question: Question) -> tuple[int, ...]:
        """The tokens. Raises AssertionError if they are not clear: a question is first found by `ask`."""
        if question not in self.answers:
            tokens = self.try_to_answer(question)
            assert tokens is not None, f"the answer to {question} is not clear"
            self.answers[question] = tokens
        return self.answers[question]

    @torch.inference_mode()
    def try_to_answer(self, question: Question) -> tuple[int, ...] | None:
        """The tokens; None if at one of them two scores are nearly equal."""
        tokens = list(question.prompt)
        for _ in range(question.max_tokens):
            (best, second), (token, _) = (each.tolist() for each in self.scores(tokens, question).topk(2))
            if best - second < CLEAR:
                return None
            tokens.append(token)
        return tuple(tokens[len(question.prompt) :])

    def scores(self, tokens: list[int], question: Question) -> Tensor:
        """Score each candidate for the next token, [V]: by its logit, or by logit / temperature - log(noise)."""
        hidden = self.model(torch.tensor(tokens), torch.arange(len(tokens)), WholeSequence(self.model.config))
        logits = self.model.logits(hidden[-1:])[0].double()
        if question.temperature == 0:
            return logits
        noise = exponential(torch.tensor([question.seed]), torch.tensor([len(tokens)]), len(logits))[0]
        return logits / question.temperature - noise.double().log()

    def ask(
        self, length: int, max_tokens: int, *, after: tuple[int, ...] = (), temperature: float = 0.0, seed: int = 0
    ) -> Question:
        """Draw a prompt whose answer is clear: `after`, and `length` random tokens behind it. Always the same one."""
        random = Random(f"{length} {max_tokens} {after} {temperature} {seed}")
        for _ in range(MOST_TRIES):
            prompt = (*after, *(random.randrange(VOCABULARY) for _ in range(length)))
            question = Question(prompt, max_tokens, temperature, seed)
            tokens = self.answers.get(question) or self.try_to_answer(question)
            if tokens is not None:
                self.answers[question] = tokens
                return question
        raise AssertionError(f"no clear answer of {max_tokens} tokens to a prompt of {length}")


@cache
def oracle_of(folder: Path) -> Oracle:
    return Oracle(folder)
