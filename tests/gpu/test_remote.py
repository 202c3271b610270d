"""A runner on a GPU serves an engine in another process: the tokens of an engine with the model in its own."""

import threading
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is for Linux alone")

from gradus import LLM, SamplingParams
from gradus.deploy.runner import service_of
from gradus.engine.structured import Structured
from gradus.errors import ConfigError
from gradus.execution.remote.stream import Listener

pytestmark = [pytest.mark.gpu, pytest.mark.plans_memory]

SETTINGS: dict[str, Any] = {
    "device": "cuda",
    "dtype": "float32",
    "cache_tokens": 8192,
    "max_sequences": 8,
    "context_length": 512,
}
PROMPTS = [[5, 6, 7, 8], [9] * 40, [3, 4], list(range(1, 300))] * 3
ASKED = [
    SamplingParams(max_tokens=40, ignore_eos=True),
    SamplingParams(max_tokens=24, temperature=0.8, seed=3, frequency_penalty=0.5, top_k=20, logprobs=2),
    SamplingParams(max_tokens=40, structured=Structured(regex="[a-f]{2,9}, [0-9]{3}")),
]


def answers(llm: LLM) -> list[tuple[int, ...]]:
    return [each.token_ids for params in ASKED for each in llm.generate(PROMPTS, params)]


@pytest.mark.parametrize(
    "off", [pytest.param((), marks=pytest.mark.quick), ("overlap",)], ids=["overlap", "no overlap"]
)
def test_it_has_the_tokens_of_an_engine_with_the_model(tmp_path, off):
    with LLM("random:tiny-llama", **SETTINGS) as there:
        wanted = answers(there)
        listener = Listener(str(tmp_path / "socket"))
        threading.Thread(target=service_of(there).serve, args=(listener,), daemon=True).start()
        for _ in range(2):  # the second engine finds nothing of the first
            with LLM("random:tiny-llama", runner=f"unix:{listener.path}", switch_off=off) as llm:
                assert answers(llm) == wanted and llm.device_name.startswith("cuda")
                llm.check()
        listener.close()


def test_drafts_are_refused_there(tmp_path):
    refused = pytest.raises(ConfigError, match="speculate does not work in a runner on a GPU yet: leave it out")
    with LLM("random:tiny-llama", speculate="ngram", **SETTINGS) as there, refused:
        service_of(there)
