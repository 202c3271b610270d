"""benchmarks/steady_state.py on a CPU: both ways run a round's requests, and time the steps in which all decode."""

import pytest

from benchmarks import steady_state
from gradus import LLM, SamplingParams


@pytest.mark.parametrize("way", [steady_state.through_llm, steady_state.through_the_servers_loop])
def test_steps_in_which_all_decode_are_timed(way, monkeypatch):
    monkeypatch.setattr(steady_state, "REQUESTS", 6)
    monkeypatch.setattr(steady_state, "PROMPT", 10)
    monkeypatch.setattr(steady_state, "PARAMS", SamplingParams(max_tokens=12, ignore_eos=True))
    with LLM("random:tiny-llama", device="cpu", max_sequences=6, context_length=64) as llm:
        asked = way(llm)
        for number in range(2):
            assert len(steady_state.decode_steps(llm, asked, number)) == 8, "12 less two at either end"
        assert not llm.core.has_work
