"""Check real weights in the final engine, in bfloat16 on a GPU: its text is float32's on a CPU, up to close calls.

    export PYTHONPATH=src:.
    python3 benchmarks/real_weights.py --model SmolLM2-135M-Instruct.Q4_1.gguf --out "$OUT"/real_weights.json

Both read the same file and continue the same prompts greedily: p01 in float32, one prompt at a time, and the final
engine, all prompts at once and twice: the second time it finds them in its prefix cache. bfloat16 rounds, so the texts
may differ where two tokens are nearly equally likely, and are two texts from there on. Each token must be
a choice that float32 nearly makes as well: given all tokens before it, its logit is less than `CLOSE_CALL` below
the best one. The script names every place where float32's token differs, and fails (exit code 1) beyond the bound.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from gradus import phases
from gradus.assembly.final import EngineConfig, build
from gradus.attention.reference import attend_causal
from gradus.bench.measure.fingerprint import commit, hardware_name
from gradus.bench.run.script import ran
from gradus.bench.statistics import significant
from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.loading import Checkpoint, load_model, open_checkpoint
from gradus.models import Model
from gradus.models.config import ModelConfig
from gradus.models.precision import DTYPES, resolve_device

# bfloat16 keeps 8 bits. SmolLM2's best logits mostly lie between 16 and 32, where that is steps of 1/8: rounding two of
# them alone can turn around a gap of 1/8, and thirty layers of rounding before it add up to a few times that.
CLOSE_CALL = 0.5

SYSTEM = "You are a helpful assistant."
QUESTIONS = (
    "What is the capital of France?",
    "Explain in two sentences why the sky is blue.",
    "Write a haiku about the sea in winter.",
    "List three reasons to learn a second language.",
    "How do I boil an egg so that the yolk stays soft?",
    "Translate to Spanish: The library opens at nine o'clock.",
    "What is 17 + 25? Show how you add them.",
    "Write a Python function that returns the largest of three numbers.",
)
BEGINNINGS = (
    "Once upon a time, in a small village by the sea,",
    "The theory of evolution explains",
    "def fibonacci(n):\n    ",
    "Dear Sir or Madam,\n\nI am writing to",
    "In 1969, the first human beings",
    "The recipe is simple: take two cups of flour,",
    "Water boils at 100 degrees Celsius because",
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness, it "
    "was the epoch of belief, it was the epoch of incredulity, it was the season of Light, it was the season of "
    "Darkness, it was the spring of hope, it was the winter of despair, we had everything before us, we had nothing "
    "before us,",
)


def prompts_of(checkpoint: Checkpoint, count: int) -> list[list[int]]:
    """Make prompts: questions through the chat template, if there is one, and beginnings of texts, in turns."""
    tokenizer = checkpoint.tokenizer
    if tokenizer is None:
        raise SystemExit(f"{checkpoint.name} has no tokenizer")
    asked = []
    for question, beginning in zip(QUESTIONS, BEGINNINGS, strict=True):
        if tokenizer.has_chat_template:
            asked.append(tokenizer.chat([{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]))
        else:
            asked.append(tokenizer.encode(question))
        asked.append(tokenizer.encode(beginning))
    return asked[:count]


# -- the rule ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parting:
    """A place where the float32 model, given the same tokens, would have chosen another one.

    step: the index of the generated token. token: the one chosen; best: float32's. gap: the difference of their logits.
    """

    prompt: int
    step: int
    token: int
    best: int
    gap: float


@torch.inference_mode()
def partings(exact: Model, prompt: Sequence[int], tokens: Sequence[int], number: int = 0) -> tuple[list[Parting], int]:
    """Find where `tokens`, generated greedily after `prompt`, differ from the choices of `exact`; [] if nowhere.

    Every token is judged, even after the first parting, given the real tokens before it. Also returns the number of
    clear choices, where any other token would be beyond the bound: only there can the rule detect an error.
    """
    ids = torch.tensor([*prompt, *tokens[:-1]])
    hidden = exact(ids, torch.arange(len(ids)), WholeSequence(exact.config))
    logits = exact.logits(hidden[len(prompt) - 1 :])
    chosen = logits.gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1)
    top = logits.topk(2, dim=1)
    gaps, best = (top.values[:, 0] - chosen).tolist(), top.indices[:, 0].tolist()
    found = [
        Parting(number, step, token, best[step], significant(gaps[step]))
        for step, token in enumerate(tokens)
        if gaps[step] > 0
    ]
    return found, int((top.values[:, 0] - top.values[:, 1] >= CLOSE_CALL).sum())


class WholeSequence:
    """Attention of one sequence to itself, without a cache."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        config = self.config
        return attend_causal(
            q, k.transpose(0, 1), v.transpose(0, 1), start=0, scale=config.attention_scale,
            window=config.windows[layer], softcap=config.attention_softcap,
        )  # fmt: skip


# -- the engines -------------------------------------------------------------------------------------------------------


def continuations(engine: Engine, prompts: Sequence[list[int]], count: int) -> list[list[int]]:
    """Generate `count` greedy tokens after each prompt, ignoring end-of-sequence tokens."""
    params = SamplingParams(max_tokens=count, ignore_eos=True)
    for index, prompt in enumerate(prompts):
        engine.submit(Request.create(str(index), prompt, params, engine.limits))
    answers: list[list[int]] = [[] for _ in prompts]
    while engine.has_work:
        for output in engine.step():
            if output.error:
                raise SystemExit(f"prompt {output.request_id} failed: {output.error}")
            answers[int(output.request_id)] += output.tokens
    return answers


@dataclass(frozen=True)
class Verdict:
    """prompts: the number of texts judged, of `tokens` tokens each. same: the number that equal float32's.

    clear: choices where any other token would have failed. partings: of the first run, then of the second.
    """

    prompts: int
    tokens: int
    same: int
    clear: int
    partings: list[Parting]
    bound: float = CLOSE_CALL

    @property
    def worst(self) -> float:
        return max((parting.gap for parting in self.partings), default=0.0)

    @property
    def passed(self) -> bool:
        return self.worst < self.bound


def judge(
    checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, prompts: list[list[int]], count: int
) -> Verdict:
    """Run both engines, and compare their texts."""
    longest = max(map(len, prompts)) + count
    limits = ModelLimits(checkpoint.config.vocab_size, longest)
    exact = load_model(checkpoint, dtype=torch.float32, device=torch.device("cpu"))
    expected = continuations(phases.load("p01").build(exact, EngineOptions(limits)), prompts, count)
    rounded = load_model(checkpoint, dtype=dtype, device=device)
    engine = build(rounded, EngineConfig(limits, max_sequences=len(prompts)))
    found, same, clear = [], 0, 0
    for answers in (continuations(engine, prompts, count), continuations(engine, prompts, count)):
        for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            places, sure = partings(exact, prompt, answer, number)
            same, clear = same + (answer == expected[number]), clear + sure
            show(checkpoint, number, places, answer, expected[number])
            found += places
    assert engine.metrics().cached_tokens > 0, "the second run found the prompts in the cache"
    return Verdict(2 * len(prompts), count, same, clear, found)


def show(checkpoint: Checkpoint, number: int, places: list[Parting], answer: list[int], expected: list[int]) -> None:
    """Print a line per text, and one for each place where float32 would have chosen another token."""
    tokenizer = checkpoint.tokenizer
    assert tokenizer is not None
    print(f"{number:3}  {'same text' if answer == expected else 'parts'}  {tokenizer.decode(answer)[:80]!r}")
    for place in places:
        words = tokenizer.decode([place.token]), tokenizer.decode([place.best])
        print(f"     token {place.step}: {words[0]!r} where float32 has {words[1]!r}, {place.gap:.3f} above it")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m", help="a .gguf file, or any other name of a model")
    parser.add_argument("--device", default="auto", help="where the final engine runs: auto, cuda, or cpu to rehearse")
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES)
    parser.add_argument("--prompts", type=int, default=2 * len(QUESTIONS))
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--commit", help="the tested commit; by default the one checked out")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    checkpoint = open_checkpoint(options.model)
    device = resolve_device(options.device)
    prompts = prompts_of(checkpoint, options.prompts)
    verdict = judge(checkpoint, device, DTYPES[options.dtype], prompts, options.tokens)
    total = verdict.prompts * verdict.tokens
    print(
        f"{verdict.same} of {verdict.prompts} texts are float32's own. {len(verdict.partings)} of {total} tokens were "
        f"not its choice, and at most {verdict.worst:.3f} below it; {verdict.clear} choices were so clear that any "
        f"other would have been beyond the bound of {verdict.bound}. {'Passed' if verdict.passed else 'FAILED'}"
    )
    if options.out:
        about = {
            "model": Path(options.model).name,
            "device": str(device),
            "dtype": options.dtype,
            "hardware": hardware_name(device),
            "torch": torch.__version__,
            "commit": options.commit or commit(),
        }
        found = about | asdict(verdict) | {"worst": verdict.worst, "passed": verdict.passed}
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0 if verdict.passed else 1


if __name__ == "__main__":
    sys.exit(ran(main))
