"""The final engine and every one of its switches: the tokens of the phase that has none of them, on a CPU."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.config.options import FINAL, EngineConfig
from gradus.engine.engine import Engine
from gradus.errors import ConfigError
from tests.phases.conftest import EVERY_FAMILY, FAMILIES, MIXED, build_engine, limits_of
from tests.phases.drive import nothing_is_left, run, run_schedule
from tests.phases.test_paged_schedules import SHAPE, ask, compare, crowd, pools, requests

SWITCHES = [
    {},
    {"overlap": False},
    {"graphs": False},
    {"kernels": False, "graphs": False},
    {"prefix_cache": False},
    {"chunked": False},
]


def final(shape: str = SHAPE, lag: int | None = None, **settings) -> Engine:
    """lag: more steps under way than `overlap` asks for."""
    engine = build_engine(FINAL, shape, **settings)
    engine.lag = engine.lag if lag is None else lag
    return engine


@pytest.mark.parametrize("switches", SWITCHES, ids=lambda switches: ", ".join(switches) or "all on")
def test_no_switch_changes_a_token(switches):
    engine = final(page_size=4, cache_tokens=28, token_budget=5, **switches)
    compare(SHAPE, crowd(), run(engine, crowd().values()))
    assert engine.lag == switches.get("overlap", True)
    nothing_is_left(engine)


@pytest.mark.parametrize("lag", [1, 2])
@pytest.mark.parametrize("shape", [*FAMILIES, *MIXED])
def test_plans_made_ahead_change_no_token(shape, lag):
    """Chunks, hits, preemptions, sampling at a temperature and with penalties, several samples."""
    asked = {
        "greedy": ask("greedy", (*range(40, 52), 1), shape, max_tokens=9),
        "samples": ask("samples", (*range(40, 52), 2), shape, max_tokens=6, n=2, temperature=1.0, seed=3),
        "penalty": ask("penalty", (4, 5), shape, max_tokens=10, presence_penalty=1.0),
    }
    engine = final(shape, lag, page_size=4, cache_tokens=24, token_budget=6)
    compare(shape, asked, run(engine, asked.values()))
    assert engine.metrics().preemptions > 0
    nothing_is_left(engine)


@settings(max_examples=settings.default.max_examples // 2)
@given(data=st.data(), shape=st.sampled_from(EVERY_FAMILY), pool=pools())
def test_whatever_the_schedule_plans_made_two_ahead_change_no_token(data, shape, pool):
    plan = data.draw(requests(min(pool["cache_tokens"], 60)))
    asked = {item["name"]: ask(item["name"], item["prompt"], shape, item["salt"], **item["params"]) for item in plan}
    engine = final(shape, 2, **pool)
    done = run_schedule(engine, plan, asked)
    compare(shape, asked, done)
    nothing_is_left(engine)


def test_graphs_without_kernels_are_refused():
    with pytest.raises(ConfigError, match="graphs need kernels"):
        EngineConfig(limits_of(SHAPE), kernels=False)


def test_without_a_gpu_the_engine_says_so_in_one_line(caplog):
    final()
    assert [record.getMessage() for record in caplog.records] == [
        "the engine runs without graphs: the model is on the cpu, and graphs are CUDA's"
    ]
