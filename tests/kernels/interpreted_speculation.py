"""Run by test_drafts.py in a process of its own, where Triton interprets: engines that speculate on a GPU's kernels."""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from triton.runtime.interpreter import GridExecutor

from gradus.assembly.heads import HeadsModule, heads_in_torch, heads_on_kernels
from gradus.attention.graph_paged import GraphPagedAttention
from gradus.attention.paged import PagedAttention
from gradus.attention.storage import PagedStorage
from gradus.attention.whole import WholeSequence
from gradus.cache import TableChange
from gradus.cache.paged import PagedCache
from gradus.cache.radix import PrefixIndex
from gradus.engine.engine import Engine
from gradus.engine.plan import UNDRAFTED, Admission, Decodes, Plan, Span
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.execution.drafting.draft_passes import DraftPasses
from gradus.kernels.core import overlap
from gradus.kernels.fuse.model import fused
from gradus.models import SHAPES, Model, create_model, randomize
from gradus.models.layers import Linear
from gradus.quantization.int8 import Int8Linear
from gradus.quantization.mix import Mix, factory
from gradus.sampling.kernel_sampler import KernelSampler
from gradus.sampling.sampler import Sampler
from gradus.scheduling.draft_shapes import NO_SHAPE, DraftShape, DraftShapes
from gradus.scheduling.drafting import DraftControl
from gradus.scheduling.scheduler import Scheduler
from gradus.speculative.heads_folder import read_config
from gradus.speculative.history import History
from gradus.speculative.ngram import NgramDrafter
from tests.execution.runners import in_torch, on_kernels
from tests.kernels.interpreted_fused_model import small
from tests.pairwise import first
from tests.phases.drive import run
from tests.speculative.heads import DRAFTS, Reference, heads_of

LIMITS = ModelLimits(320, 64)
SLOTS = 2
BUDGET = 6  # tokens per step


class Known:
    """Drafts what sequences are known to say, but every fifth token wrong, and none after every seventh."""

    steady = True

    def catch_up(self, history, decodes):
        pass

    def keep(self, slot, positions):
        pass

    def wipe(self, pages):
        pass

    def __init__(self, said: list[tuple[int, ...]]) -> None:
        self.said = said

    def propose(self, history, slots, count, limits):
        drafts = torch.full((len(slots), count), -1)
        for row, slot in enumerate(slots.tolist()):
            known = tuple(history.tokens[slot, : history.lengths[slot]].tolist())
            whole = next((each for each in self.said if each[: len(known)] == known), ())
            for number, place in enumerate(range(len(known), min(len(known) + count, len(whole)))):
                if place % 7 == 0:
                    break
                drafts[row, number] = 0 if place % 5 == 0 else whole[place]
        return drafts


def requests() -> list[Request]:
    """Repeating, with penalties, with log-probabilities, and one that is there later than the others."""
    asked = [
        ([7, 8, 9, 7, 8, 9, 7, 8], dict(max_tokens=7)),
        ([5], dict(max_tokens=5, presence_penalty=0.7, repetition_penalty=1.2)),
        ([4, 5, 4, 5], dict(max_tokens=6, logprobs=2, temperature=0.7, seed=4)),
    ]
    return [
        Request.create(f"r{number}", prompt, SamplingParams(ignore_eos=True, **params), LIMITS)
        for number, (prompt, params) in enumerate(asked)
    ]


def shallow(shape: str) -> Model:
    """Make a model with a layer of each kind that its family has."""
    return small(shape, layers=len(set(SHAPES[shape].windows)))


def engine(shape: str, drafter=None, drafts: int = 3) -> Engine:
    """drafter: None is an engine in torch that does not speculate; a `HeadsModule` drafts by its heads; a model drafts
    with pages of its own."""
    model = shallow(shape)
    storage = PagedStorage(model.config, 24, 4, model.dtype, model.device)
    cache = PagedCache(24, 4, [group.window for group in storage.groups], PrefixIndex())
    if drafter is None:
        attention, sampler = PagedAttention(model.config, storage, SLOTS + 1), Sampler(320, model.device, SLOTS + 1)
        return Engine(Scheduler(cache, SLOTS, BUDGET), in_torch(model, attention, sampler), LIMITS)
    attention, sampler = GraphPagedAttention(model.config, storage, SLOTS + 1), KernelSampler(320, model.device, SLOTS)
    history = History(SLOTS, 64, model.device)
    if drafter == "itself":
        drafter = model
    if isinstance(drafter, Model):
        own = GraphPagedAttention(model.config, PagedStorage(model.config, 24, 4, model.dtype, model.device), SLOTS + 1)
        own.tables = attention.tables
        drafter = DraftPasses(fused(drafter), own, sampler, BUDGET)
    states = torch.zeros(SLOTS + 1, model.config.hidden_size)
    if isinstance(drafter, HeadsModule):
        drafter = heads_on_kernels(drafter, model, states, sampler)
    runner = on_kernels(fused(model), attention, sampler, history, drafter, states, drafts)
    control = DraftControl(DraftShapes(drafts, SLOTS), SLOTS, lag=1, adaptive=False)
    return Engine(Scheduler(cache, SLOTS, BUDGET, drafting=control), runner, LIMITS, 1)


def answers(engine: Engine, count: int = 3) -> tuple[dict, list]:
    """Tokens of the first `count` requests, and log-probabilities to three places."""
    told = []
    step = engine.step

    def listening():
        outputs = step()
        told.extend((o.request_id, each.token_id, round(each.logprob, 3)) for o in outputs for each in o.logprobs)
        return outputs

    engine.step = listening
    return run(engine, requests()[:count]), told


@pytest.mark.parametrize(
    ("shape", "kind"),
    first(
        [
            ("tiny-llama", "known"),
            ("tiny-gemma3", "ngram"),
            ("tiny-gemma4-e", "known"),
            ("tiny-llama", "ngram"),
            ("tiny-gemma3", "known"),
            ("tiny-olmo3", "known"),
        ],
        count=3,
    ),
)
def test_no_token_and_no_log_probability_changes(shape, kind):
    expected = answers(engine(shape))
    said = [(*request.prompt, *expected[0][request.id, 0].tokens) for request in requests()]
    speculating = engine(shape, NgramDrafter(kernel=True) if kind == "ngram" else Known(said))
    assert answers(speculating) == expected
    told = speculating.scheduler.drafting.stats()
    assert kind == "ngram" or sum(told.drafted) > sum(told.accepted) > 3


def scores(engine: Engine, top: int = 2) -> dict:
    """Log-probabilities of prompts' tokens, to three places: of two requests, one of which begins beside decodes."""
    limits = replace(LIMITS, prompt_logprobs=True)
    asked = [([7, 8, 9, 7, 8, 9, 7, 8, 3], top), ([5, 2, 1], None), ([4, 5, 4, 5, 6, 6, 1, 2, 3], 0)]
    told = {}
    step = engine.step

    def listening():
        outputs = step()
        for output in outputs:
            if output.prompt_logprobs:
                rows = [(each.token_id, round(each.logprob, 3), len(each.top)) for each in output.prompt_logprobs]
                assert told.setdefault(output.request_id, rows) is rows, "reported twice"
        return outputs

    engine.step = listening
    made = [SamplingParams(max_tokens=4, ignore_eos=True, prompt_logprobs=number) for _, number in asked]
    run(engine, [Request.create(f"r{n}", asked[n][0], params, limits) for n, params in enumerate(made)])
    return told


@pytest.mark.parametrize("shape", ["tiny-llama", pytest.param("tiny-gemma3", marks=pytest.mark.stress)])
def test_a_prompt_s_own_tokens_have_the_same_log_probabilities(shape):
    expected = scores(engine(shape))
    assert {name: len(rows) for name, rows in expected.items()} == {"r0": 8, "r2": 8}
    assert scores(engine(shape, NgramDrafter(kernel=True))) == expected


def test_a_model_that_drafts_for_itself_is_right_wherever_it_may_draft():
    """It catches up with prompts, steps that drafted nothing, and prefixes that the model found in its cache.

    And it reads no more at once than a step may: longer readings were not compiled before the first request.
    """
    speculating = engine("tiny-llama", "itself")
    drafter, read = speculating.runner.step.drafter, []

    def listening(token_ids, positions, attention):
        read.append(len(token_ids))
        return drafter.model(token_ids, positions, attention)

    drafter.run_model = listening
    assert answers(speculating) == answers(engine("tiny-llama"))
    told = speculating.scheduler.drafting.stats()
    assert told.accepted == told.drafted and sum(told.accepted) > 3
    assert max(read) == BUDGET < sum(read)


def test_a_quantized_draft_model_drafts_on_kernels():
    """The model's own weights in 8 bits: most of what it drafts stands, and no token changes."""
    model = shallow("tiny-llama")
    narrow = create_model(model.config, linear=factory(Mix.of("int8"), model.config, Linear))
    randomize(narrow, seed=0, std=0.1)
    assert isinstance(narrow.layers[0].qkv, Int8Linear)
    speculating = engine("tiny-llama", narrow)
    assert answers(speculating, count=1) == answers(engine("tiny-llama"), count=1)
    told = speculating.scheduler.drafting.stats()
    assert 2 < sum(told.drafted) < 2 * sum(told.accepted)


def passes(model, said: list[list[int]]) -> tuple[DraftPasses, History]:
    """Of a model that has stored all but the two newest tokens of these; the sampler is greedy."""
    attention = GraphPagedAttention(model.config, PagedStorage(model.config, 64, 4, model.dtype, model.device), 4)
    attention.tables[0, :3] = torch.randperm(64, generator=torch.Generator().manual_seed(2))[:48].view(3, 16) + 1
    drafter = DraftPasses(fused(model), attention, KernelSampler(320, model.device, 3), None)
    history = History(3, 64, model.device)
    for slot, tokens in enumerate(said):
        history.tokens[slot, : len(tokens)] = torch.tensor(tokens)
        history.lengths[slot] = len(tokens)
        drafter._run(history, [(slot, range(len(tokens) - 2))])
    return drafter, history


@pytest.mark.parametrize(("shape", "length"), first([("tiny-gpt2", 60), ("tiny-llama", 20), ("tiny-qwen3", 20)]))
@torch.inference_mode()
def test_each_pass_drafts_what_follows_the_whole_text_as_far_as_there_is_room(shape, length):
    """Room for two drafts and the newest token, for four, and for none; between them padding.

    length: of the second text. With 60 tokens the fourth draft ends the context.
    """
    model, said = shallow(shape), [[7, 8, 9, 7, 8, 9, 7], [(11 * i) % 300 for i in range(length)], [5, 6, 5, 6]]
    drafter, history = passes(model, said)
    slots = torch.tensor([0, 3, 1, 2], dtype=torch.int32)
    kept = drafter.attention.storage.keys.clone()
    for count in (1, 4):
        limits = torch.tensor([9, 0, length + 4, 3], dtype=torch.int32)
        drafts = drafter.propose(history, slots, count, limits)
        expected = [following(model, said[0], 3), [], following(model, said[1], 4), []]
        assert drafts.tolist() == [(each + [-1] * count)[:count] for each in expected]
    changed = (drafter.attention.storage.keys != kept).any(-1).any(-1).any(0)
    stored = {(int(page), int(place)) for page, place in changed.nonzero() if page}
    tables = drafter.attention.tables[0].tolist()
    wanted = [(0, range(5, 9)), (1, range(length - 2, length + 3))]
    assert stored == {(tables[slot][place // 4], place % 4) for slot, places in wanted for place in places}


@torch.inference_mode()
def test_slots_that_lag_behind_are_caught_up_with_together():
    """Passes have as many tokens as a step may, and store the same as passes of each slot alone."""
    model, said = (
        shallow("tiny-llama"),
        [[(7 * i) % 300 for i in range(23)], [9, 8, 7, 6], [(11 * i) % 300 for i in range(15)]],
    )
    expected, _ = passes(model, said)
    drafter, history = passes(model, [])
    for slot, tokens in enumerate(said):
        history.tokens[slot, : len(tokens)] = torch.tensor(tokens)
    drafter.chunk, counts = 16, []
    run = drafter.run_model

    def counted(token_ids, positions, attention):
        counts.append(len(token_ids))
        return run(token_ids, positions, attention)

    drafter.run_model = counted
    ends = np.array([len(tokens) - 2 for tokens in said])
    decodes = Decodes(np.arange(3), ends, ends + 4, drafts=np.full(3, 2))
    drafter.catch_up(history, decodes)
    assert counts == [16, 16, 4] and not drafter.steady
    storages = drafter.attention.storage, expected.attention.storage
    found, right = (torch.stack([each.keys, each.values]) for each in storages)
    torch.testing.assert_close(found[:, :, 1:], right[:, :, 1:], rtol=1e-4, atol=1e-5)
    drafter.catch_up(history, decodes)
    assert len(counts) == 3 and drafter.steady


@torch.inference_mode()
def test_wiped_pages_are_wiped_in_a_draft_models_storage_too():
    speculating = engine("tiny-llama", "itself")
    runner = speculating.runner
    storages = runner.attention.storage, runner.step.drafter.attention.storage
    for storage in storages:
        storage.keys[:, [0, 5, 6]] = storage.values[:, [0, 5, 6]] = torch.nan
    runner.run(Plan([Span(None, 1, 0, (1, 2), 1, TableChange(0, ((3,),)))], wiped=(5,)))
    for storage in storages:
        assert storage.keys[:, 5].isfinite().all() and storage.values[:, 5].isfinite().all()
        assert not storage.keys[:, 6].isfinite().any()


@torch.inference_mode()
def test_next_to_a_prompt_a_decode_that_may_store_no_more_draws_nothing():
    runner = engine("tiny-llama", NgramDrafter(kernel=True)).runner
    runner.run(Plan([Span(None, slot, 0, (1, 2, 3), 1, TableChange(0, ((3 + slot,),))) for slot in (0, 1)]))
    full, some = np.array([3, 4])  # positions that each may store; both have four tokens by now
    decodes = Decodes(np.array([0, 1]), np.array([3, 3]), np.array([full, some]))
    prompt = Span(None, 2, 0, (5, 6), 1, TableChange(0, ((9,),)))
    drawn = runner.run(Plan([prompt], decodes=decodes)).get().tokens.tolist()
    assert drawn[0] == UNDRAFTED and min(drawn[1:]) >= 0
    assert runner.step.history.lengths[:3].tolist() == [4, 5, 3]


def following(model, said: list[int], count: int) -> list[int]:
    """The likeliest tokens after a text, each from one forward pass over all of it."""
    tokens = list(said)
    for _ in range(count):
        ids = torch.tensor(tokens)
        hidden = model(ids, torch.arange(len(tokens)), WholeSequence(model.config))
        tokens.append(int(model.logits(hidden[-1:]).argmax()))
    return tokens[len(said) :]


@torch.inference_mode()
def test_passes_start_early_where_their_step_does(monkeypatch):
    """What they ask for: attention, the norms and products around it, the draw, and what lies between two passes."""
    drafter, history = passes(shallow("tiny-llama"), [[7, 8, 9, 7, 8, 9, 7]])
    heard: dict[str, set[bool]] = {}
    for name, module in list(sys.modules.items()):
        if name.startswith("gradus.kernels.") and name != overlap.__name__ and hasattr(module, "starts_early"):
            monkeypatch.setattr(module, "starts_early", partial(_listening, heard, name.rpartition(".")[2]))
    step = on_kernels(drafter.model, drafter.attention, drafter.sampler, history, drafter).step
    slots, limits, most = torch.tensor([[0], [20], [3]], dtype=torch.int32)
    for early in (False, True):
        heard.clear()
        step.rows(slots, limits, most, DraftShape(3, 3), early)
        assert heard.keys() >= {"norm", "activation", "paged", "plain", "draft_passes"}
        assert all(each == {early} for each in heard.values())


def _listening(heard: dict[str, set[bool]], kernel: str) -> bool:
    heard.setdefault(kernel, set()).add(overlap.starts_early())
    return False  # a launch on the CPU takes no such option


def module_of(model: Model, folder: Path) -> HeadsModule:
    return HeadsModule(folder, read_config(folder), model)


@pytest.mark.parametrize("kind", first(["eagle", "medusa"]))
def test_heads_draft_what_they_say_of_the_whole_text(kind, tmp_path):
    """On kernels as in torch; greedy requests of which one has its logits adjusted, so that its drafts wait."""
    model = shallow("tiny-llama")
    heads_of(model, tmp_path, kind, vocabulary=160)
    reference = Reference(model, tmp_path)
    speculating = engine("tiny-llama", module_of(model, tmp_path))
    drafter = speculating.runner.step.drafter
    propose, heard = drafter.propose, []

    def listening(history, slots, count, limits):
        drafts = propose(history, slots, count, limits)
        for slot, said in zip(slots.tolist(), drafts.tolist(), strict=True):
            if drafter.states[slot].any() and drafter_is_greedy(speculating, slot):
                heard.append((history.tokens[slot, : history.lengths[slot]].tolist(), said))
        return drafts

    drafter.propose = listening
    assert answers(speculating) == answers(engine("tiny-llama"))
    assert len(heard) > 5
    for said, drafts in heard:
        assert drafts == reference.drafts(said, len(drafts))


def drafter_is_greedy(engine: Engine, slot: int) -> bool:
    return float(engine.runner.sampler.table.temperatures[slot]) == 0


@pytest.mark.parametrize(
    ("shape", "kind"),
    first(
        [("tiny-gpt2", "medusa"), ("tiny-gemma3", "eagle"), ("tiny-gpt2", "eagle"), ("tiny-gemma3", "medusa")], count=2
    ),
)
def test_heads_on_kernels_draft_what_they_draft_in_torch(shape, kind, tmp_path):
    """Any number of drafts for any slots, greedy or drawn: a lone sequence's heads draw by its own settings too."""
    model, device = shallow(shape), torch.device("cpu")
    heads_of(model, tmp_path, kind, vocabulary=160)
    module, sampler = module_of(model, tmp_path), KernelSampler(320, device, 4)
    history, states = History(4, 64, device), torch.randn(5, model.config.hidden_size)
    history.tokens.copy_(torch.randint(0, 320, history.tokens.shape))
    history.lengths.copy_(torch.tensor([1, 9, 30, 63, 1]))
    params = [SamplingParams(temperature=1.5 * (slot % 2), seed=slot) for slot in range(4)]
    asked = [Request.create("r", [1], each, LIMITS) for each in params]
    sampler.admit([Admission(slot, request, 0, request.prompt) for slot, request in enumerate(asked)])

    plain, kernels = (build(module, model, states, sampler) for build in (heads_in_torch, heads_on_kernels))
    for slots in ([1], [3], [3, 1, 0, 2, 4]):
        given = torch.tensor(slots, dtype=torch.int32), torch.full((len(slots),), 64, dtype=torch.int32)
        for count in range(1, DRAFTS + 1):
            found = kernels.propose(history, given[0], count, given[1])
            assert found.tolist() == plain.propose(history, given[0], count, given[1]).tolist()
            assert found.shape == (len(slots), count) and found.is_contiguous()


def kind_of(argument) -> tuple:
    """What Triton compiles a kernel anew for."""
    if isinstance(argument, torch.Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    if isinstance(argument, tuple):
        return tuple(map(kind_of, argument))
    return (argument == 1, argument % 16 == 0) if isinstance(argument, int) else (argument,)


@pytest.mark.parametrize("kind", first(["eagle", "ngram", "medusa"]))
def test_every_launch_of_a_step_is_rehearsed(kind, tmp_path, monkeypatch):
    launch, launched = GridExecutor.__call__, set()

    def noting(executor, *arguments, **options):
        values = dict(zip(executor.arg_names, arguments, strict=False)) | options
        found = {name: value if name in executor.constexprs else kind_of(value) for name, value in values.items()}
        launched.add((executor.fn.__name__, frozenset(found.items())))
        return launch(executor, *arguments, **options)

    monkeypatch.setattr(GridExecutor, "__call__", noting)
    model = shallow("tiny-llama")
    if kind != "ngram":
        heads_of(model, tmp_path, kind, vocabulary=160)
    step = engine(
        "tiny-llama", NgramDrafter(kernel=True) if kind == "ngram" else module_of(model, tmp_path)
    ).runner.step
    inputs = torch.tensor([[0, 1], [9, 9], [DRAFTS, 1]], dtype=torch.int32)
    shapes = [(1, NO_SHAPE), (2, NO_SHAPE), (1, DraftShape(DRAFTS, DRAFTS)), (2, DraftShape(DRAFTS, DRAFTS + 1))]
    for size, shape in shapes:
        step.rehearse(inputs[:, :size], shape, early=False)
    rehearsed, _ = set(launched), launched.clear()
    step.history.lengths.fill_(1)
    for size, shape in shapes:
        for full in (False, True):
            step.run(inputs[:, :size], shape, full=full)
    assert len(launched) > 20 and launched <= rehearsed
