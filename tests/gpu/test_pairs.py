"""Any two capabilities together on a GPU, with graphs and kernels: torch's answers on the same GPU, one by one."""

import pytest
import torch

from gradus import LLM
from tests.capabilities.answers import answers, differing, reference
from tests.capabilities.table import CHANGING, EVERY, asked, settings_of

pytestmark = [pytest.mark.gpu, pytest.mark.plans_memory]

COMMON = ("windows", "kv_dtype", "cache_tokens", "page_size", "policy")
TOGETHER = [
    ("speculate", *COMMON, "token_budget"),
    ("speculate, a draft model", "kv_dtype", "cache_tokens", "page_size", "policy", "token_budget"),
    ("speculate", *COMMON, "quantize", "prefix_cache", "overlap"),
    COMMON,
    ("tensor_parallel", *COMMON, "token_budget"),
    ("pipeline_parallel", *COMMON, "token_budget"),
]


@pytest.mark.quick
@pytest.mark.parametrize("settings", TOGETHER, ids=" + ".join)
def test_all_pairs_of_fields_are_exact_with_many_settings_together(settings):
    if {"tensor_parallel", "pipeline_parallel"} & set(settings) and torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    wanted = reference(*[name for name in CHANGING if name in settings], device="cuda")
    with LLM(**settings_of(*settings, device="cuda")) as llm:
        differences = differing(answers(llm, [asked()[number] for number in EVERY]), wanted)
    assert differences == [], f"{' + '.join(settings)}: {len(differences)} differ, {differences[0]}"
