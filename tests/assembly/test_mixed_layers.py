"""The final engine on models whose layers differ in their heads, or read another layer's keys and values: the tokens of
a request are those of the whole sequence computed at once, whatever else runs and wherever its pages were."""

from dataclasses import replace
from functools import cache
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.assembly import final, prefixes
from gradus.assembly.parallel import _check_stages
from gradus.assembly.prefixes import Prefixes
from gradus.cache.disk import tier as tiers
from gradus.cache.disk.folder import PrefixFolder
from gradus.config.options import EngineConfig
from gradus.engine.engine import Engine
from gradus.engine.request import ModelLimits, Request, SamplingParams, SchedulingParams
from gradus.errors import ConfigError
from gradus.execution.memory import device_memory
from gradus.execution.memory.device_memory import DeviceMemory
from gradus.execution.memory.plan import _At, _final, weight_bytes
from gradus.models import SHAPES, Linear, MatrixId, Model, create_model, randomize
from gradus.models.families.llama import Block, Llama
from gradus.models.heads import Heads
from gradus.models.layers import parameter
from gradus.parallel.place import Place
from tests.attention.mixed import MIXED, formula, mixed
from tests.phases.drive import Ending, nothing_is_left, run, run_schedule
from tests.phases.test_paged_schedules import pools, requests

NAMES = ["narrow full layers", "wide full layers", "neither divides", "one size", "sinks"]
MANY = {"page_size": 4, "cache_tokens": 28, "token_budget": 5}
SWITCHES = [
    {},
    {"overlap": False, "chunked": False, "cache_tokens": 36},  # a whole prompt needs pages for all groups at once
    {"speculate": "ngram", "drafts": 3},
    {"kernels": True},
    {"kernels": True, "speculate": "ngram", "drafts": 3},
]


class MixedBlock(Block):
    def __init__(self, config, index, linear, dtype, device) -> None:
        sizes = config.layer(index)
        super().__init__(sizes, index, linear, dtype, device)
        self.qkv = linear(MatrixId("qkv", index), config.hidden_size, config.qkv_parts(index), False, dtype, device)
        sinks = parameter((config.num_heads,), torch.float32, device) if config.attention_sinks else None
        self.heads = Heads(config, index, sinks=sinks)


class MixedModel(Llama):
    block = MixedBlock


@cache
def model_of(name: str, dtype: torch.dtype = torch.float32) -> Model:
    config = MIXED[name]
    model = MixedModel(config, Linear, dtype, "cpu").requires_grad_(False).eval()
    model.dtype, model.device = dtype, torch.device("cpu")
    randomize(model, seed=5, std=0.2)
    for layer in model.layers:
        if layer.heads.sinks is not None:
            layer.heads.sinks.mul_(10)
    return model


class Formula:
    """Attention over one whole sequence, in float64."""

    def __init__(self, config) -> None:
        self.config, self.kept = config, {}

    def attend(self, layer, q, k, v, sinks=None):
        if k is not None:
            self.kept[layer] = k, v
        return formula(self.config, layer, q, *self.kept[self.config.kv_source(layer)], sinks).to(q.dtype)


@cache
def right(name: str, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
    """The greedy answer, from the whole sequence at every token."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(greedy(model_of(name), tokens))
    return tuple(tokens[len(prompt) :])


@torch.inference_mode()
def greedy(model: Model, tokens: list[int]) -> int:
    """The most likely next token."""
    hidden = model(torch.tensor(tokens), torch.arange(len(tokens)), Formula(model.config))
    return int(model.logits(hidden[-1:]).argmax())


def limits(name: str) -> ModelLimits:
    return ModelLimits(MIXED[name].vocab_size, MIXED[name].context_length)


def ask(name: str, id: str, prompt, salt=None, **params) -> Request:
    asked = SamplingParams(**{"max_tokens": 12, "ignore_eos": True} | params)
    return Request.create(id, tuple(prompt), asked, limits(name), SchedulingParams(cache_salt=salt))


def engine_of(name: str, model: Model | None = None, *, draft=None, prefixes=None, sequences=3, **options) -> Engine:
    config = EngineConfig(limits(name), sequences, **{"kernels": False, "graphs": False} | options)
    return final.build(model or model_of(name), config, draft=draft, prefixes=prefixes)


def crowd(name: str) -> dict[str, Request]:
    """More than a small pool holds, some of it shared: chunks, preemptions, hits and windows that end."""
    shared = tuple(range(40, 57))
    prompts = [(*shared, 1), (4, 5, 6), (*shared, 2, 3), (*shared, 1, 4), tuple(range(9, 30))]
    return {f"r{i}": ask(name, f"r{i}", prompt) for i, prompt in enumerate(prompts)}


def compare(name: str, asked: dict[str, Request], done: dict[tuple[str, int], Ending]) -> None:
    for (id, _), ending in done.items():
        request = asked[id]
        if ending.finish_reason == "length":
            assert ending.tokens == right(name, request.prompt, request.params.max_tokens), id


@pytest.mark.parametrize(
    ("name", "switches"),
    [
        pytest.param(name, switches, marks=pytest.mark.stress if switches and name != "neither divides" else ())
        for name, switches in product(NAMES, SWITCHES)
    ],
    ids=str,
)
def test_chunks_preemptions_and_hits_change_no_token(name, switches):
    asked, engine = crowd(name), engine_of(name, **MANY | switches)
    for _ in range(2):  # the second round hits prefixes of the first
        done = run(engine, asked.values())
        assert len(done) == len(asked)
        compare(name, asked, done)
    assert engine.metrics().preemptions > 0 and engine.metrics().cached_tokens > 0
    nothing_is_left(engine)


@settings(max_examples=settings.default.max_examples // 2)
@given(data=st.data(), name=st.sampled_from(NAMES), pool=pools())
def test_whatever_the_schedule_each_request_gets_its_own_tokens(data, name, pool):
    plan = data.draw(requests(min(pool["cache_tokens"], 60)))
    for item in plan:
        item["params"] = {"max_tokens": item["params"]["max_tokens"]}
    asked = {item["name"]: ask(name, item["name"], item["prompt"], item["salt"], **item["params"]) for item in plan}
    engine = engine_of(name, sequences=pool.pop("max_sequences"), **pool)
    compare(name, asked, run_schedule(engine, plan, asked))
    nothing_is_left(engine)


@cache
def in_8_bits(name: str, prompt: tuple[int, ...]) -> tuple[int, ...]:
    engine = engine_of(name, exact(name), kv_dtype="fp8", sequences=1, chunked=False, prefix_cache=False, overlap=False)
    (ending,) = run(engine, [ask(name, "a", prompt)]).values()
    return ending.tokens


@cache
def exact(name: str) -> Model:
    """The model in float64, where the order of sums hardly ever changes what a value is rounded to in 8 bits."""
    model = model_of(name, torch.float64)
    for mine, theirs in zip(model.parameters(), model_of(name).parameters(), strict=True):
        mine.copy_(theirs)
    return model


@pytest.mark.parametrize("name", NAMES)
def test_in_8_bits_a_request_gets_what_it_gets_alone(name):
    asked, engine = crowd(name), engine_of(name, exact(name), kv_dtype="fp8", **MANY)
    for (id, _), ending in run(engine, asked.values()).items():
        assert ending.tokens == in_8_bits(name, asked[id].prompt), id
    assert engine.metrics().preemptions > 0
    nothing_is_left(engine)


@pytest.mark.parametrize("name", ["narrow full layers", "wide full layers"])
def test_a_draft_model_s_pages_have_the_model_s_numbers(name, monkeypatch):
    """Where two full layers share a strip, the block tables that the draft reads count pages of half a strip."""
    config = replace(SHAPES["tiny-llama"], vocab_size=96, context_length=96, bos_token_id=None, eos_token_ids=())
    draft = create_model(config)
    randomize(draft, seed=3, std=0.1)
    engine = engine_of(name, draft=draft, speculate="draft:random:tiny-llama", drafts=3, **MANY)
    own = engine.runner.step.drafter.passes
    shared = [each.attention.storage.groups[0].together for each in (own, engine.runner.step.passes)]
    assert shared[0] == shared[1] == (2 if name == "narrow full layers" else 1)
    texts: dict[int, list[int]] = {}
    checked = []

    def read(spans) -> None:
        for span in spans:
            texts.setdefault(span.slot, [])[span.start :] = span.tokens

    def guess(spans, guess=own.guess):
        read(spans)
        drawn = guess(spans)
        for span, token in zip(spans, drawn, strict=True):
            assert token == greedy(draft, texts[span.slot])
            checked.append(token)
        return drawn

    def store(spans, store=own.store):
        read(spans)
        store(spans)

    monkeypatch.setattr(own, "guess", guess)
    monkeypatch.setattr(own, "store", store)
    asked = {"r": ask(name, "r", range(9, 20)), "s": ask(name, "s", range(30, 35))}
    compare(name, asked, run(engine, asked.values()))
    assert len(checked) > 20


@pytest.mark.parametrize("kv_dtype", ["auto", "fp8"])
@pytest.mark.parametrize("name", NAMES)
def test_memory_sizes_the_cache_to_the_last_block(name, kv_dtype, monkeypatch):
    room = 3 << 20
    monkeypatch.setattr(device_memory, "free_memory", lambda device: room)
    engine = engine_of(name, sequences=64, kv_dtype=kv_dtype, memory_fraction=1.0, token_budget=8)
    storage, pages = engine.runner.attention.storage, engine.metrics().cache.pages
    block = len(storage.groups) * storage.page_bytes
    assert storage.nbytes == (pages + 1) * storage.page_bytes and pages % len(storage.groups) == 0
    model = model_of(name)
    options = EngineConfig(limits(name), 64, kernels=False, graphs=False, token_budget=8, memory_fraction=1.0)
    before = DeviceMemory(room + weight_bytes(model))
    planned = _final(_At(model, model.device, model.dtype, before), replace(options, kv_dtype=kv_dtype))
    assert planned.cache_bytes == storage.nbytes and planned.pages.count == pages
    assert 0 <= planned.left_bytes < block or planned.pages.positions == 64 * 96


def test_stages_of_a_pipeline_have_the_same_pages_or_are_refused():
    config = mixed(4, (4, 8), (1, 16), [6, None, 6, None] * 2, [0, 1, 0, 1, 4, 5, 4, 5])
    for rank in range(2):
        part = Place(rank, 1, 2).shard(config).config
        assert (part.windows, part.kv_sources, part.sizes) == (config.windows[:4], (0, 1, 0, 1), config.sizes[:4])
    _check_stages(config, Place(0, 1, 2))
    line = "pipeline_parallel 4: a layer attends to the keys and values of one in another stage; use tensor_parallel"
    with pytest.raises(ConfigError, match=line):
        _check_stages(config, Place(0, 1, 4))
    with pytest.raises(ConfigError, match="pipeline_parallel 2: stages differ in how many layers have sliding windows"):
        _check_stages(mixed(4, (4, 8), (1, 16), [6, None, 6, None, 6, 6, 6, None]), Place(0, 1, 2))


@pytest.mark.parametrize("kv_dtype", ["auto", "fp8"])
@pytest.mark.parametrize("name", NAMES)
def test_a_restarted_engine_reads_its_pages_from_disk(name, kv_dtype, tmp_path, monkeypatch):
    monkeypatch.setattr(tiers, "WORTH_TOKENS", 3)
    monkeypatch.setattr(prefixes, "_code", lambda: "this one")
    asked = ask(name, "r", range(1, 40))
    wanted = engine_of(name, kv_dtype=kv_dtype)
    (right_one,) = run(wanted, [asked]).values()
    found = []
    for _ in range(2):
        kept = Prefixes(PrefixFolder(tmp_path / "p", 1 << 24), {"model": name})
        engine = engine_of(name, prefixes=kept, kv_dtype=kv_dtype, page_size=4)
        (ending,) = run(engine, [asked]).values()
        assert ending.tokens == right_one.tokens
        found.append(engine.metrics().cached_tokens)
        engine.close()
    assert found == [0, 36]
