"""Needles lost over a long text when keys and values are kept in fewer bits.

The engine answers the same haystacks (needle_text.py) with each format of its cache. For each it reports

    found         whether the greedy answer is the number, all digits of it
    log p         the log-probability of the right number, in nats: it moves long before an answer changes
    perplexity    of the haystack's last tokens, which says whether the text as a whole is still read as before

A haystack is computed once: its questions find it in the prefix cache. So what they read is what was stored. Where an
answer is wrong, the right one's probability takes a request for each of its tokens, which a bias forces; reported
log-probabilities are the model's own, without it.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradus.bench.statistics import significant
from gradus.bench.studies.needle_text import Haystack, Question
from gradus.config.options import KvDtype
from gradus.engine.request import SamplingParams
from gradus.errors import ConfigError
from gradus.loading import Checkpoint
from gradus.models.config import Rope
from gradus.models.families.records import read_config, write_config
from gradus.text.completion import Completion
from gradus.text.llm import LLM

FORMATS: tuple[KvDtype, ...] = ("auto", "fp8")
FORCED = 100.0
"""The largest bias that a request may give a token."""


@dataclass(frozen=True, slots=True)
class Answer:
    """depth: of the needle. log_p: of the right number."""

    depth: float
    found: bool
    log_p: float


@dataclass(frozen=True, slots=True)
class Reading:
    """One haystack read with one format. nll: the mean of the tail's tokens, in nats. dtype: the model's, in words."""

    answers: tuple[Answer, ...]
    nll: float
    seconds: float
    dtype: str


def stretched(checkpoint: Checkpoint, context: int) -> Checkpoint:
    """The checkpoint with YaRN (Peng et al. 2023) for `context` positions; unchanged if it has as many.

    Does what this entry of config.json does, by which Qwen2.5's authors extend their models:
    `"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}`. Raises ConfigError for
    a model whose positions are not plain rotary ones.
    """
    config = checkpoint.config
    trained = config.context_length
    if context <= trained:
        return checkpoint
    rope = config.ropes[0]
    if rope is None or set(config.ropes) != {Rope(rope.theta)}:
        raise ConfigError(
            f"{checkpoint.name}: has {trained:,} positions, and only plain rotary ones can be stretched: ask for "
            f"at most {trained:,}"
        )
    yarn = {"rope_type": "yarn", "rope_theta": rope.theta, "factor": context / trained}
    yarn["original_max_position_embeddings"] = trained
    return replace(checkpoint, config=read_config(write_config(config) | {"rope_parameters": yarn}))


def read_all(
    checkpoint: Checkpoint, haystacks: Sequence[Haystack], kv_dtype: KvDtype, **settings: Any
) -> Iterator[Reading]:
    """Read haystacks with one engine, each as soon as it is asked for. settings: LLM's."""
    longest = max(haystack.length for haystack in haystacks)
    fitting = {"context_length": longest, "max_sequences": max(len(each.questions) for each in haystacks)}
    with LLM(checkpoint, kv_dtype=kv_dtype, **fitting | settings) as llm:
        for haystack in haystacks:
            yield read(llm, haystack)


def read(llm: LLM, haystack: Haystack) -> Reading:
    """Read a haystack, then answer its questions."""
    begun = time.perf_counter()
    nll = tail_nll(llm, haystack)
    answers = tuple(answer_all(llm, haystack))
    return Reading(answers, nll, time.perf_counter() - begun, llm.dtype)


def tail_nll(llm: LLM, haystack: Haystack) -> float:
    """Compute the haystack, which the prefix cache keeps, and return the mean of -log p over its tail."""
    [completion] = llm.generate([haystack.token_ids], SamplingParams(max_tokens=1, ignore_eos=True, prompt_logprobs=0))
    assert completion.prompt_logprobs is not None
    tail = completion.prompt_logprobs[-haystack.tail :]
    return -sum(token.logprob for token in tail) / haystack.tail


def answer_all(llm: LLM, haystack: Haystack) -> Iterator[Answer]:
    """Ask all questions in one batch."""
    prompts = [haystack.token_ids + question.token_ids for question in haystack.questions]
    longest = max(len(question.answer) for question in haystack.questions)
    completions = llm.generate(prompts, SamplingParams(max_tokens=longest, ignore_eos=True, logprobs=0))
    for prompt, question, completion in zip(prompts, haystack.questions, completions, strict=True):
        found = is_found(question, completion.token_ids)
        said = _log_p(completion, len(question.answer))
        log_p = said if found else forced_log_p(llm, prompt, question.answer)
        yield Answer(question.depth, found, log_p)


def is_found(question: Question, said: Sequence[int]) -> bool:
    """Whether an answer begins with the whole number."""
    return tuple(said[: len(question.answer)]) == question.answer


def forced_log_p(llm: LLM, prompt: tuple[int, ...], answer: tuple[int, ...]) -> float:
    """Return log p of an answer that the model did not give: the sum over its tokens, each after the right ones."""
    prompts = [prompt + answer[:given] for given in range(len(answer))]
    params = [SamplingParams(max_tokens=1, ignore_eos=True, logprobs=0, logit_bias={token: FORCED}) for token in answer]
    completions = llm.generate(prompts, params)
    said = tuple(completion.token_ids[0] for completion in completions)
    assert said == answer, f"a bias of {FORCED} did not force {answer}, but {said}"
    return sum(_log_p(completion, 1) for completion in completions)


def _log_p(completion: Completion, tokens: int) -> float:
    assert completion.logprobs is not None
    return sum(token.logprob for token in completion.logprobs[:tokens])


def recorded(readings: Iterable[Reading]) -> dict[str, Any]:
    """A row of the results file: one list per haystack, in the order of depths."""
    each = list(readings)
    return {
        "found": [[int(answer.found) for answer in reading.answers] for reading in each],
        "log_p": [[significant(answer.log_p) for answer in reading.answers] for reading in each],
        "nll": [significant(reading.nll, 6) for reading in each],
        "seconds": [significant(reading.seconds) for reading in each],
    }
