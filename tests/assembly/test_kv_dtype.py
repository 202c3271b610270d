"""The final engine with keys and values of 8 bits: the tokens of a request do not depend on what runs beside it.

The right ones are those that it gets alone, its prompt computed whole. The models are in float64. Rounding to 8 bits
has steps: where two ways to sum differ in float32's last bit, one value in some hundred thousand falls to the other
side, and with it perhaps a token. In float64 they are hardly ever that near.
"""

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.assembly import final
from gradus.config.options import EngineConfig
from gradus.course.probe import EngineProbe
from gradus.engine.engine import Engine
from gradus.models import Model, create_model
from gradus.models.shapes import SHAPES
from tests.pairwise import each_once, pairwise
from tests.phases import drive
from tests.phases.conftest import EVERY_FAMILY, FAMILIES, MIXED, limits_of, tiny_model
from tests.phases.drive import Ending, nothing_is_left, record, run, run_schedule, step
from tests.phases.test_paged_schedules import ask, crowd, pools, requests

SWITCHES = [{}, {"overlap": False}, {"prefix_cache": False}, {"chunked": False}]


@cache
def exact_model(shape: str) -> Model:
    model = create_model(SHAPES[shape], dtype=torch.float64)
    for mine, theirs in zip(model.parameters(), tiny_model(shape).parameters(), strict=True):
        mine.copy_(theirs)
    return model


def engine_of(shape: str, max_sequences: int = 3, kv_dtype: str = "fp8", **options) -> Engine:
    config = EngineConfig(limits_of(shape), max_sequences, kv_dtype=kv_dtype, kernels=False, graphs=False, **options)
    return final.build(exact_model(shape), config)


@cache
def alone(shape: str, prompt: tuple[int, ...], params: tuple, kv_dtype: str = "fp8") -> dict[int, Ending]:
    engine = engine_of(shape, 1, kv_dtype, chunked=False, prefix_cache=False, overlap=False)
    done = run(engine, [ask("a", prompt, shape, **dict(params))])
    return {index: ending for (_, index), ending in done.items()}


def right(shape: str, request, index: int, kv_dtype: str = "fp8") -> Ending:
    names = ("max_tokens", "temperature", "seed", "n", "presence_penalty")
    params = tuple((name, getattr(request.params, name)) for name in names)
    return alone(shape, request.prompt, params, kv_dtype)[index]


def compare(shape: str, asked, done) -> None:
    drive.compare(asked, done, {(name, index): right(shape, asked[name], index) for name, index in done})


@pytest.mark.parametrize(("shape", "switches"), [*each_once(FAMILIES, SWITCHES), *each_once(MIXED, [{}])], ids=str)
def test_no_switch_changes_a_token(shape, switches):
    """Chunks, hits and preemptions within 30 steps."""
    asked = {name: ask(name, request.prompt, shape, **_params(request)) for name, request in crowd().items()}
    engine = engine_of(shape, page_size=4, cache_tokens=28, token_budget=5, **switches)
    done = run(engine, asked.values())
    compare(shape, asked, done)
    assert engine.metrics().preemptions > 0
    nothing_is_left(engine)


def _params(request) -> dict:
    return {name: getattr(request.params, name) for name in ("max_tokens", "temperature", "seed", "n")}


@pytest.mark.parametrize(("shape", "budget", "page_size"), pairwise(FAMILIES, [1, 3, 64], [1, 4, 16]))
def test_chunks_and_prefix_hits_of_any_size_change_no_token(shape, budget, page_size):
    shared = tuple(range(40, 57))
    asked = {f"r{i}": ask(f"r{i}", (*shared, i), shape, max_tokens=12) for i in range(3)}
    engine = engine_of(shape, page_size=page_size, token_budget=budget)
    first = run(engine, [asked["r0"]])
    compare(shape, asked, first | run(engine, [asked["r1"], asked["r2"]]))
    windows = any(SHAPES[shape].windows)  # short pages before them may be gone already
    assert engine.metrics().cached_tokens > 0 or (windows and page_size == 1)


@settings(max_examples=settings.default.max_examples // 2)
@given(data=st.data(), shape=st.sampled_from(EVERY_FAMILY), pool=pools())
def test_whatever_the_schedule_each_request_gets_its_own_tokens(data, shape, pool):
    plan = data.draw(requests(min(pool["cache_tokens"], 60)))
    asked = {item["name"]: ask(item["name"], item["prompt"], shape, item["salt"], **item["params"]) for item in plan}
    engine = engine_of(shape, **pool)
    done = run_schedule(engine, plan, asked)
    compare(shape, asked, done)
    nothing_is_left(engine)


@pytest.mark.parametrize("shape", FAMILIES)
@pytest.mark.parametrize("part", ["keys", "values"])
def test_a_nan_ends_its_own_sequence_and_leaves_no_trace(shape, part):
    """What a fault in the model would leave in the newest page: NaN in every byte and in every scale."""
    engine, done = engine_of(shape, page_size=4, cache_tokens=120), {}
    asked = {f"r{i}": ask(f"r{i}", (i, *range(40, 49)), shape, max_tokens=12) for i in range(3)}
    for request in asked.values():
        engine.submit(request)
    record(done, step(engine))
    storage, pages = engine.runner.attention.storage, [table[-1] for table in EngineProbe(engine).tables("r1")]
    number = ("keys", "values").index(part)
    storage.tensors[number].view(torch.uint8)[:, pages] = 0x7F
    storage.tensors[2 + number][:, pages] = float("nan")
    while engine.has_work:
        record(done, step(engine))
    assert {name: ending.finish_reason for (name, _), ending in done.items()} == {
        "r0": "length", "r1": "error", "r2": "length",
    }  # fmt: skip
    assert all(scales.isfinite().all() for scales in storage.tensors[2:])
    del done["r1", 0]
    compare(shape, asked, done | {(name, 0): end for (name, _), end in run(engine, [asked["r1"]]).items()})
    nothing_is_left(engine)


def test_a_processors_kernels_leave_it_to_torch(caplog):
    """They read floats of 16 and 32 bits."""
    shape, asked = "tiny-llama", [ask("a", (5, 6, 7), "tiny-llama", max_tokens=20)]
    found = []
    for kernels in (True, False):
        config = EngineConfig(limits_of(shape), 3, kv_dtype="fp8", kernels=kernels, graphs=False)
        with caplog.at_level("INFO"):
            found.append(run(final.build(tiny_model(shape), config), asked))
    assert found[0] == found[1]
    assert [record.getMessage() for record in caplog.records if "decode steps" in record.getMessage()] == [
        "decode steps run in torch: there is no kernel for a cache in torch.float8_e4m3fn"
    ]


def test_they_are_not_the_tokens_of_a_cache_that_rounds_nothing():
    """Otherwise a cache in the model's own type would pass."""
    asked = ((shape, ask("a", (5 + i, 6, 7), shape, max_tokens=40)) for i, shape in enumerate(FAMILIES))
    assert any(right(shape, request, 0) != right(shape, request, 0, "auto") for shape, request in asked)


def test_a_prompt_that_attends_to_itself_unrounded_is_noticed(monkeypatch):
    """The broken implementation that these tests must catch: a whole prompt then differs from one in chunks."""
    from gradus.attention.fp8_storage import Fp8Storage

    shape, store = "tiny-llama", Fp8Storage.store

    def forgetful(self, layer, rows, k, v):
        store(self, layer, rows, k, v)
        return k, v

    asked = [ask("a", (first, *range(40, 60)), shape, max_tokens=20) for first in (4, 5, 6)]
    expected = [right(shape, request, 0) for request in asked]
    monkeypatch.setattr(Fp8Storage, "store", forgetful)
    assert [run(engine_of(shape), [request])["a", 0] for request in asked] != expected
