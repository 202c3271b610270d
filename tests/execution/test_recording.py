"""A recorded run does again what it did: the same rows, the same tokens, on a machine that knows nothing else."""

import pytest

from gradus.assembly.final import build
from gradus.config.options import EngineConfig
from gradus.engine.request import Request, SamplingParams
from gradus.engine.wire import PackError
from gradus.execution.watch.recording import Recorder, play, recorded
from tests.phases.conftest import limits_of, tiny_model

SHAPE = "tiny-gemma3"


@pytest.fixture(params=[{}, {"speculate": "ngram", "drafts": 2}], ids=["plain", "with drafts"])
def config(request) -> EngineConfig:
    settings = dict(page_size=4, cache_tokens=64, token_budget=9, kernels=False, graphs=False)
    return EngineConfig(limits_of(SHAPE), 3, **settings, **request.param)


@pytest.fixture
def run(config, tmp_path):
    """The file, and what each step sampled."""
    engine, tokens = build(tiny_model(SHAPE), config), []
    params = SamplingParams(max_tokens=30, temperature=0.9, top_k=20, frequency_penalty=0.3, seed=5, ignore_eos=True)
    for number in range(6):
        engine.submit(Request.create(f"r{number}", [9 + number] * (2 + 5 * number), params, config.limits))
    with Recorder(engine, tmp_path / "run") as recorder:
        whole = recorder.run

        def watched(plan):
            result = whole(plan)
            tokens.append(result)
            return result

        engine.runner.run = watched
        while engine.has_work:
            engine.step()
    assert engine.runner is not recorder and engine.metrics().preemptions > 0
    return tmp_path / "run", [result.get().tokens.tolist() for result in tokens]


def test_a_recording_plays_back_to_the_same_tokens(run, config):
    file, tokens = run
    runner = build(tiny_model(SHAPE), config).runner
    assert [result.get().tokens.tolist() for result in play(file, runner)] == tokens and len(tokens) > 10


@pytest.mark.parametrize("kept", [5, 60, -1])
def test_a_file_that_was_cut_short_says_so(run, kept):
    file, _ = run
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(PackError, match="run is cut short"):
        list(recorded(file))


def test_what_is_no_recording_is_refused(tmp_path):
    (tmp_path / "notes").write_text("a file about something else, and long enough to have a length in front")
    with pytest.raises(PackError):
        list(recorded(tmp_path / "notes"))
