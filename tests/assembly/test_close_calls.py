"""Half precision on real weights: float32, given the same tokens, nearly chooses each greedy token as well."""

import pytest
import torch

from gradus.assembly.final import EngineConfig, build
from gradus.attention.whole import WholeSequence
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.loading import load_model, open_checkpoint
from gradus.models import Model, create_model, randomize
from gradus.models.shapes import SHAPES
from tests.phases.conftest import tiny_model

# bfloat16 keeps 8 bits. SmolLM2's best logits mostly lie between 16 and 32, where that is steps of 1/8: rounding two of
# them alone can turn around a gap of 1/8, and thirty layers of rounding before it add up to a few times that.
CLOSE_CALL = 0.5
QUESTIONS = ("What is the capital of France?", "Explain in two sentences why the sky is blue.")
BEGINNINGS = ("Once upon a time, in a small village by the sea,", "def fibonacci(n):\n    ")


@torch.inference_mode()
def gaps(exact: Model, prompt: list[int], tokens: list[int]) -> tuple[list[float], int]:
    """How far each token's logit is below the best one in `exact`, given all tokens before it.

    Also the number of clear choices, where any other token would be CLOSE_CALL below: only there is an error found.
    """
    ids = torch.tensor([*prompt, *tokens[:-1]])
    logits = exact.logits(exact(ids, torch.arange(len(ids)), WholeSequence(exact.config))[len(prompt) - 1 :])
    best, second = logits.topk(2, dim=1).values.T
    chosen = logits.gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1)
    return (best - chosen).tolist(), int((best - second >= CLOSE_CALL).sum())


def twice(model: Model, prompts: list[list[int]], count: int) -> list[list[int]]:
    """Continue all prompts at once, greedily, and again: the second time they are found in the prefix cache."""
    limits = ModelLimits(model.config.vocab_size, max(map(len, prompts)) + count)
    engine = build(model, EngineConfig(limits, max_sequences=len(prompts)))
    params = SamplingParams(max_tokens=count, ignore_eos=True)
    answers: list[list[int]] = []
    for _ in range(2):
        said: dict[str, list[int]] = {str(number): [] for number in range(len(prompts))}
        for name, prompt in zip(said, prompts, strict=True):
            engine.submit(Request.create(name, prompt, params, limits))
        while engine.has_work:
            for output in engine.step():
                assert output.error is None
                said[output.request_id] += output.tokens
        answers += said.values()
    assert engine.metrics().cached_tokens > 0
    return answers


PROMPTS = [list(range(1, 20)), list(range(40, 80))]


@pytest.mark.parametrize("shape", ["tiny-llama", "tiny-gemma3"])
def test_a_models_own_text_has_no_gap_and_a_wrong_token_has_one(shape):
    model = tiny_model(shape)
    tokens = twice(model, PROMPTS, 12)
    assert tokens[:2] == tokens[2:]
    found, clear = gaps(model, PROMPTS[0], tokens[0])
    assert max(found) == 0 and clear > 0
    wrong = [*tokens[0][:5], (tokens[0][5] + 1) % 256, *tokens[0][6:]]
    found, _ = gaps(model, PROMPTS[0], wrong)
    assert max(found[:5]) == 0 < found[5]


def test_another_models_text_is_beyond_the_bound():
    other = create_model(SHAPES["tiny-llama"])
    randomize(other, seed=1, std=0.1)
    assert max(gaps(other, PROMPTS[0], twice(tiny_model("tiny-llama"), PROMPTS, 12)[0])[0]) > CLOSE_CALL


@pytest.mark.slow
@pytest.mark.weights
def test_real_weights_in_bfloat16_choose_what_float32_nearly_chooses():
    """Use a GPU if there is one: its kernels sum in another order, which is where texts part."""
    checkpoint, device = open_checkpoint("smollm2-135m"), "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = checkpoint.tokenizer
    prompts = [tokenizer.chat([{"role": "user", "content": question}]) for question in QUESTIONS]
    prompts += [tokenizer.encode(beginning) for beginning in BEGINNINGS]
    answers = twice(load_model(checkpoint, dtype=torch.bfloat16, device=torch.device(device)), prompts, 24)
    exact = load_model(checkpoint, dtype=torch.float32, device=torch.device("cpu"))
    judged = [gaps(exact, prompt, answer) for prompt, answer in zip(prompts * 2, answers, strict=True)]
    assert max(gap for found, _ in judged for gap in found) < CLOSE_CALL
    assert sum(clear for _, clear in judged) > 100, "half of the choices could have revealed an error"
