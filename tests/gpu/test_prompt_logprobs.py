"""Log-probabilities of a prompt's own tokens on a GPU: beside decodes, in replayed passes, and those of plain torch."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is for Linux alone")

from gradus import LLM, SamplingParams
from gradus.attention.whole import WholeSequence
from gradus.engine.structured import Structured
from gradus.loading import load_model, open_checkpoint
from tests.assembly.test_prompt_logprobs import PROMPTS, check, params

pytestmark = [pytest.mark.gpu, pytest.mark.plans_memory]

MODEL = "random:tiny-qwen3"
SETTINGS = {"device": "cuda", "dtype": "float32", "max_sequences": 4, "context_length": 256}


@pytest.fixture(scope="module")
def expected():
    checkpoint = open_checkpoint(MODEL)
    model = load_model(checkpoint, dtype=torch.float32, device="cuda")

    @torch.inference_mode()
    def forward(prompt):
        tokens, positions = torch.tensor(prompt, device="cuda"), torch.arange(len(prompt), device="cuda")
        return model.logits(model(tokens, positions, WholeSequence(checkpoint.config))).log_softmax(-1).cpu()

    return forward


@pytest.mark.quick
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"switch_off": ("overlap",)},
        {"switch_off": ("graphs",)},
        {"switch_off": ("kernels", "graphs")},
        {"token_budget": 32},
        {"cache_tokens": 512},
        {"speculate": "ngram"},
    ],
    ids=str,
)
def test_they_are_those_of_a_plain_forward_pass(settings, expected):
    with LLM(MODEL, **SETTINGS | settings) as llm:
        free = [SamplingParams(max_tokens=20, ignore_eos=True)] * len(PROMPTS)
        masked = SamplingParams(max_tokens=20, structured=Structured(regex="[ab]{30}"))
        found = llm.generate([*PROMPTS, [1], *PROMPTS], [*free, masked, *[params(logprobs=1)] * len(PROMPTS)])
        for prompt, done in zip(PROMPTS, found[-len(PROMPTS) :], strict=True):
            check(done, prompt, expected)
        llm.check()
