"""An engine whose runner is another process gives the answers of one that has its model, whatever requests ask."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gradus import LLM, SamplingParams
from gradus.deploy.runner import service_of
from tests.capabilities.answers import answers, differing, reference
from tests.capabilities.table import CHANGING, MANY, SOME, asked, settings_of
from tests.execution.remote.pairs import serving

ENGINES = ("policy", "step_target", "slowdown")


@contextmanager
def remote(tmp_path, *settings: str, **more) -> Iterator[LLM]:
    """An engine whose runner has these capabilities."""
    given = settings_of(*settings)
    own = {name: given.pop(name) for name in ENGINES if name in given}
    off = given.pop("switch_off", ())
    with LLM(**given, switch_off=tuple(name for name in off if name == "kernels")) as there:
        listener = serving(tmp_path / "socket", service_of(there))
        switches = tuple(name for name in off if name != "kernels")
        with LLM(there.checkpoint.name, runner=f"unix:{listener.path}", switch_off=switches, **own, **more) as llm:
            yield llm
        listener.close()


@pytest.mark.parametrize(
    ("settings", "numbers"),
    [
        (("cache_tokens", "page_size", "policy", "token_budget", "step_target", "slowdown"), MANY),
        (("windows", "kv_dtype", "cache_tokens", "speculate", "token_budget"), SOME),
        (("speculate", "cache_tokens", "overlap"), MANY),
        (("quantize", "kernels", "prefix_cache"), SOME),
    ],
    ids=lambda value: " + ".join(value) if isinstance(value, tuple) else "",
)
def test_answers_are_exact_with_many_settings_together(tmp_path, settings, numbers):
    changing = [name for name in CHANGING if name in settings]
    with remote(tmp_path, *settings) as llm:
        found = answers(llm, [asked()[number] for number in numbers])
        assert differing(found, reference(*changing, numbers=numbers)) == []
        assert ("speculate" in settings) == (llm.metrics().speculation is not None)


def test_drafts_of_a_copying_text_are_verified_over_there(tmp_path):
    prompt, params = [5, 6, 7, 8, 9] * 6, SamplingParams(max_tokens=24, ignore_eos=True)
    with LLM("random:tiny-llama", device="cpu", dtype="float32") as llm:
        wanted = llm.generate([prompt], params)[0].token_ids
    with remote(tmp_path, "speculate") as llm:
        assert llm.generate([prompt], params)[0].token_ids == wanted
        assert sum(llm.metrics().speculation.drafted) > 0
