"""Run by test_masked.py in a process of its own, where Triton interprets: masked draws of the GPU's runner."""

import pytest

from gradus.attention.graph_paged import GraphPagedAttention
from gradus.attention.paged import PagedAttention
from gradus.attention.storage import PagedStorage
from gradus.cache.paged import PagedCache
from gradus.engine.engine import Engine
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.execution.gpu.masked_draws import ConstrainedStep, runs
from gradus.execution.runner import Runner
from gradus.kernels.fuse.model import fused
from gradus.loading.tokenizer import Tokenizer
from gradus.sampling.constraints import Constraints
from gradus.sampling.kernel_sampler import KernelSampler
from gradus.sampling.sampler import Sampler
from gradus.scheduling.draft_shapes import DraftShapes
from gradus.scheduling.drafting import DraftControl
from gradus.scheduling.scheduler import Scheduler
from gradus.speculative.history import History
from gradus.structured import Grammars
from tests.execution.runners import in_torch, on_kernels
from tests.kernels.interpreted_fused_model import small
from tests.kernels.interpreted_speculation import Known
from tests.pairwise import first
from tests.phases.drive import run
from tests.sampling import lazy

EOS, SLOTS, BUDGET = 257, 3, 8
LIMITS = ModelLimits(320, 64, (EOS,), structured=True)
GRAMMARS = Grammars(Tokenizer.of_bytes().to_json, 320, (EOS,))


def requests() -> list[Request]:
    """Two that keep to a grammar, two that do not, and one more that gets an earlier one's slot."""
    asked = [
        ([7, 8, 9, 7], dict(structured={"regex": "[ab]{3}(cd)?"}, temperature=1.0, seed=1)),
        ([5], dict(temperature=1.0, seed=2)),
        ([4, 5, 4, 5, 6, 7, 8, 9, 1, 2], dict(structured={"choice": ["xyz", "xya"]}, presence_penalty=0.7, logprobs=2)),
        ([3, 3], dict(temperature=0.7, seed=4)),
        ([2, 6, 2], dict(structured={"json": True, "whitespace": "compact"}, temperature=1.0, seed=5)),
    ]
    return [
        Request.create(f"r{number}", prompt, SamplingParams(max_tokens=8, **params), LIMITS)
        for number, (prompt, params) in enumerate(asked)
    ]


def engine(*, kernels: bool, lag: int, grammars: Grammars = GRAMMARS, drafter: Known | None = None) -> Engine:
    model, constraints = small("tiny-qwen3", layers=1), Constraints(grammars)
    storage = PagedStorage(model.config, 24, 4, model.dtype, model.device)
    cache = PagedCache(24, 4, [group.window for group in storage.groups])
    drafts = DraftShapes(3, SLOTS)
    control = None if drafter is None else DraftControl(drafts, SLOTS, lag=lag, adaptive=False)
    scheduler = Scheduler(cache, SLOTS, BUDGET, drafting=control)
    history = History(SLOTS, 64, model.device, whole=drafter is not None)
    if not kernels:
        attention, sampler = (
            PagedAttention(model.config, storage, SLOTS + 1),
            Sampler(320, model.device, SLOTS + 1, constraints),
        )
        return Engine(scheduler, in_torch(model, attention, sampler), LIMITS, lag)
    attention = GraphPagedAttention(model.config, storage, SLOTS + 1)
    sampler = KernelSampler(320, model.device, SLOTS, constraints)
    runner = on_kernels(fused(model), attention, sampler, history, drafter, drafts=0 if drafter is None else 3)
    return Engine(scheduler, runner, LIMITS, lag)


@pytest.fixture(scope="module")
def expected():
    return run(engine(kernels=False, lag=0), requests())


@pytest.mark.parametrize("lag", first([1, 0]))
def test_masked_draws_give_the_reference_samplers_tokens(lag, expected, monkeypatch):
    drawn, draw = [], ConstrainedStep._drawn

    def noted(self):
        drawn.append(self)
        return draw(self)

    monkeypatch.setattr(ConstrainedStep, "_drawn", noted)
    assert run(engine(kernels=True, lag=lag), requests()) == expected
    assert len({id(step) for step in drawn}) > 8


def test_neighboring_rows_of_the_table_are_one_copy():
    assert runs([]) == [] and runs([4]) == [slice(4, 5)]
    assert runs([0, 1, 2, 5, 7, 8]) == [slice(0, 3), slice(5, 6), slice(7, 9)]


# -- answers that are free up to a sentence of their grammar -----------------------------------------------------------

LAZY_GRAMMARS = Grammars(lazy.tokenizer().to_json, lazy.VOCAB, (lazy.EOS,))
LAZY_LIMITS = ModelLimits(lazy.VOCAB, 64, (lazy.EOS,), structured=True, lazy=True)
DRAWN = [dict(temperature=1.0), dict(temperature=1.3, top_k=200, top_p=0.9), dict(temperature=1.0, logprobs=2)]


def lazy_requests(count: int = 10) -> list[Request]:
    """Every kind of lazy grammar, with and without other settings; one request in four keeps to no grammar."""
    names, found = [*lazy.LAZY], []
    for number in range(count):
        params = dict(DRAWN[number % 3], seed=number, max_tokens=16, ignore_eos=True)
        if number % 4 != 3:
            params["structured"] = lazy.structured(names[number % len(names)])
        if number % 5 == 4:
            params["presence_penalty"] = 0.5
        prompt = [7, 8, 9, 7][: 1 + number % 4]
        found.append(Request.create(f"r{number}", prompt, SamplingParams(**params), LAZY_LIMITS))
    return found


@pytest.fixture(scope="module")
def lazily_expected():
    found = run(engine(kernels=False, lag=0, grammars=LAZY_GRAMMARS), lazy_requests())
    assert sum(lazy.begun(each.tokens) for each in found.values()) > 8
    for number, request in enumerate(lazy_requests()):
        if request.params.structured is not None:
            name = [*lazy.LAZY][number % len(lazy.LAZY)]
            assert lazy.broken(name, found[f"r{number}", 0].tokens) == []
    return found


@pytest.mark.parametrize("drafts", [False, True], ids=["alone", "drafts"])
@pytest.mark.parametrize("lag", first([1, 0]))
def test_a_call_that_begins_while_the_next_step_runs_is_drawn_again_with_its_mask(
    lag, drafts, lazily_expected, monkeypatch
):
    again, draw_again, repeats = [], Runner._draw_again, []
    monkeypatch.setattr(Runner, "_draw_again", lambda *of: (again.append(repeats[-1]), draw_again(*of))[1])
    some = lazy_requests()
    asked = some[:5] if drafts else [*some[:5], some[8]]  # one without a grammar, the others with one each
    expected = {(each.id, 0): lazily_expected[each.id, 0] for each in asked}
    drafter = Known([(*each.prompt, *expected[each.id, 0].tokens) for each in asked]) if drafts else None
    made = engine(kernels=True, lag=lag, grammars=LAZY_GRAMMARS, drafter=drafter)
    schedule = made.scheduler.schedule
    monkeypatch.setattr(made.scheduler, "schedule", lambda: (repeats.append(made.runner.repeats), schedule())[1])
    assert run(made, asked) == expected
    assert bool(again) == bool(lag)
    assert all(again) and any(repeats) == bool(lag), "a load that is planned meanwhile waits"
