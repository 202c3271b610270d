"""Trained heads as drafters: no token changes, and they see the hidden state of the row that stood last, always."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.config.options import FINAL, EngineConfig
from gradus.engine.engine import Engine
from gradus.errors import GradusError
from gradus.execution.compiled import KernelLinear
from gradus.execution.memory.device_memory import DeviceMemory
from gradus.execution.memory.plan import memory_plan
from gradus.kernels.cpu.activations import MOST_ROWS
from gradus.kernels.cpu.model import DecodeModel
from gradus.models import create_model, randomize
from gradus.models.precision import resolve_precision
from gradus.models.shapes import SHAPES
from gradus.speculative.heads_folder import check_weights, read_config
from tests.pairwise import each_once
from tests.phases.conftest import FAMILIES, MIXED, build_engine, limits_of, tiny_model
from tests.phases.drive import nothing_is_left, run, run_schedule
from tests.phases.test_paged_schedules import SHAPE, ask, pools, requests
from tests.speculative.heads import DRAFTS, Reference, heads_of
from tests.speculative.test_tokens import compare

KINDS = ("medusa", "eagle")
EACH_WAY = [*product(KINDS, [True, False])]  # and whether with kernels


def drafting(speculate: str, shape: str = SHAPE, drafts: int = DRAFTS, **options) -> Engine:
    return build_engine(FINAL, shape, speculate=speculate, drafts=drafts, graphs=False, **options)


def listened(engine: Engine) -> list[tuple[list[int], list[int]]]:
    """Every draft that is made from now on: what the sequence had said, and the drafts."""
    heard, drafter = [], engine.runner.step.drafter
    propose = drafter.propose

    def listening(history, slots, count, limits):
        drafts = propose(history, slots, count, limits)
        said = [history.tokens[slot, : history.lengths[slot]].tolist() for slot in slots.tolist()]
        heard.extend(zip(said, drafts.tolist(), strict=True))
        return drafts

    drafter.propose = listening
    return heard


def asked_of(shape: str) -> dict:
    """Chunks, hits, preemptions; greedy first, then all else that changes a draw."""
    return {
        "greedy": ask("greedy", (*range(40, 52), 1), shape, max_tokens=14),
        "hit": ask("hit", (*range(40, 52), 3), shape, max_tokens=11),
        "samples": ask("samples", (*range(40, 52), 2), shape, max_tokens=9, n=2, temperature=0.3, seed=3),
        "penalty": ask("penalty", (4, 5), shape, max_tokens=12, presence_penalty=1.0, repetition_penalty=1.3),
        "cut": ask("cut", (7, 8, 9), shape, max_tokens=9, temperature=1.0, top_k=5, top_p=0.9, seed=5),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_heads_multiply_few_rows_in_a_cpu_s_kernels_and_more_in_torch(kind, tmp_path, monkeypatch):
    drafter = drafting(heads_of(tiny_model(SHAPE), tmp_path, kind)).runner.step.drafter
    multiplied, multiply = [], DecodeModel.multiply

    def noted(decode, number, x):
        multiplied.append((number, len(x)))
        return multiply(decode, number, x)

    monkeypatch.setattr(DecodeModel, "multiply", noted)
    modules = [*drafter.heads[-1].modules(), *drafter.head.modules()]
    parts = [part for part in modules if isinstance(part, KernelLinear)]
    for part in parts:
        for rows in (2, MOST_ROWS, MOST_ROWS + 1):
            x = torch.randn(rows, part.in_features)
            torch.testing.assert_close(part(x), part.linear(x), rtol=1e-4, atol=1e-4)
    assert multiplied == [(number, rows) for number in range(5) for rows in (2, MOST_ROWS)]


@pytest.mark.parametrize(("shape", "kind", "kernels"), each_once([*FAMILIES, *MIXED], EACH_WAY))
def test_heads_change_no_token(shape, kind, kernels, tmp_path):
    asked = asked_of(shape)
    engine = drafting(
        heads_of(tiny_model(shape), tmp_path, kind), shape, page_size=4, cache_tokens=32, token_budget=9,
        kernels=kernels,
    )  # fmt: skip
    compare(shape, asked, run(engine, asked.values()))
    assert engine.metrics().preemptions > 0 and sum(engine.metrics().speculation.drafted) > 0
    nothing_is_left(engine)


@pytest.mark.parametrize(("shape", "kind", "kernels"), each_once(["tiny-llama", "tiny-gpt2", "tiny-gemma3"], EACH_WAY))
def test_drafts_are_what_the_heads_say_of_the_whole_text(shape, kind, kernels, tmp_path):
    """After preemptions, prefix hits, chunks, and drafts that were wrong: the state is that of the last row that stood.

    Half of the vocabulary is never drafted.
    """
    model = tiny_model(shape)
    vocabulary = model.config.vocab_size // 2
    engine = drafting(
        heads_of(model, tmp_path, kind, vocabulary=vocabulary), shape, page_size=4, cache_tokens=32, token_budget=9,
        kernels=kernels,
    )  # fmt: skip
    heard, reference = listened(engine), Reference(model, tmp_path)
    asked = [ask(f"r{n}", (*range(40, 52), n % 3), shape, max_tokens=14) for n in range(5)]
    run(engine, asked)
    assert engine.metrics().preemptions > 0 and engine.metrics().cached_tokens > 0 and len(heard) > 30
    for said, drafts in heard:
        assert drafts == reference.drafts(said, DRAFTS)
        assert max(drafts) < vocabulary


@settings(max_examples=settings.default.max_examples // 2)
@given(data=st.data(), pool=pools(), drafts=st.integers(1, DRAFTS), lag=st.integers(0, 2), kind=st.sampled_from(KINDS))
def test_whatever_the_schedule_heads_change_no_token(tmp_path_factory, data, pool, drafts, lag, kind):
    plan = data.draw(requests(min(pool["cache_tokens"], 60)))
    asked = {item["name"]: ask(item["name"], item["prompt"], SHAPE, item["salt"], **item["params"]) for item in plan}
    engine = drafting(same_heads(tmp_path_factory, kind), drafts=drafts, **pool)
    engine.lag = engine.scheduler.drafting.lag = lag
    compare(SHAPE, asked, run_schedule(engine, plan, asked))
    nothing_is_left(engine)


@settings(max_examples=settings.default.max_examples // 2)
@given(data=st.data(), pool=pools(), lag=st.integers(0, 2))
def test_whatever_the_schedule_the_newest_state_is_that_of_the_newest_token(tmp_path_factory, data, pool, lag):
    """Heads that only scale it say what the model said: so each of their drafts is the newest token, greedy."""
    plan = data.draw(requests(min(pool["cache_tokens"], 60)))
    greedy = [{**item, "params": item["params"] | {"temperature": 0, "presence_penalty": 0}} for item in plan]
    asked = {item["name"]: ask(item["name"], item["prompt"], SHAPE, item["salt"], **item["params"]) for item in greedy}
    engine = drafting(same_heads(tmp_path_factory, "repeating"), **pool)
    engine.lag = engine.scheduler.drafting.lag = lag
    heard = listened(engine)
    compare(SHAPE, asked, run_schedule(engine, greedy, asked))
    assert all(set(drafts) == {said[-1]} for said, drafts in heard)


_FOLDERS: dict[str, str] = {}


def same_heads(factory, kind: str) -> str:
    if kind not in _FOLDERS:
        folder: Path = factory.mktemp(kind)
        repeating = kind == "repeating"
        _FOLDERS[kind] = heads_of(tiny_model(SHAPE), folder, "medusa" if repeating else kind, repeating=repeating)
    return _FOLDERS[kind]


def test_an_adaptive_engine_drafts_no_more_than_there_are_heads(tmp_path):
    engine = build_engine(FINAL, SHAPE, speculate=heads_of(tiny_model(SHAPE), tmp_path, "medusa"))
    asked = asked_of(SHAPE)
    compare(SHAPE, asked, run(engine, asked.values()))
    assert engine.scheduler.drafting.shapes.choices == (DRAFTS,)


# -- what does not go with the model -----------------------------------------------------------------------------------


def edited(folder: Path, change) -> None:
    found = json.loads((folder / "config.json").read_text())
    change(found)
    (folder / "config.json").write_text(json.dumps(found))


def refused(speculate: str, shape: str = SHAPE, **options) -> str:
    with pytest.raises(GradusError) as raised:
        build_engine(FINAL, shape, speculate=speculate, graphs=False, **options)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_heads_of_another_model_are_one_line(tmp_path):
    speculate = heads_of(tiny_model(SHAPE), tmp_path, "medusa")
    assert "has heads of another model (llama, hidden size 64, 320 tokens; this one: gpt2," in refused(
        speculate, "tiny-gpt2"
    )


def test_heads_of_other_weights_are_one_line(tmp_path):
    model = create_model(SHAPES[SHAPE])
    randomize(model, seed=8, std=0.1)
    assert "has heads of a model with other weights" in refused(heads_of(model, tmp_path, "eagle"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_same_weights_in_fewer_bits_are_the_same_model(tmp_path, dtype):
    model, other = tiny_model(SHAPE), create_model(SHAPES[SHAPE], dtype=dtype)
    for mine, theirs in zip(other.parameters(), model.parameters(), strict=True):
        mine.copy_(theirs)
    heads_of(model, tmp_path, "medusa")
    check_weights(tmp_path, read_config(tmp_path), other)


def test_missing_heads_are_one_line(tmp_path):
    assert "holds no heads (config.json and model.safetensors missing)" in refused(f"heads:{tmp_path}/nowhere")
    heads_of(tiny_model(SHAPE), tmp_path, "medusa")
    (tmp_path / "model.safetensors").unlink()
    assert "holds no heads (model.safetensors missing): train them with" in refused(f"heads:{tmp_path}")


def test_more_drafts_than_heads_are_one_line(tmp_path):
    speculate = heads_of(tiny_model(SHAPE), tmp_path, "eagle")
    assert refused(speculate, drafts=4).startswith("4 drafts are more than these heads look ahead (3)")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: found.update(format="medusa-7"), "format must be 'gradus-heads-1', got 'medusa-7'"),
        (lambda found: found["shape"].update(kind="tree"), "kind must be medusa or eagle, got 'tree'"),
        (lambda found: found["shape"].update(drafts=0), "drafts must be a whole number between 1 and 16, got 0"),
        (lambda found: found["shape"].update(drafts="3"), "drafts must be a whole number between 1 and 16, got '3'"),
        (lambda found: found["shape"].update(vocabulary=321), "vocabulary 321 is more than the model's 320"),
        (lambda found: found["shape"].pop("width"), "not a configuration of heads: TypeError"),
        (lambda found: found.pop("fingerprint"), "not a configuration of heads: KeyError 'fingerprint'"),
        (
            lambda found: found["shape"].update(width=97),
            "tensor 'layer.gate_up.weight' has shape (192, 64), config.json needs",
        ),
        (
            lambda found: found["shape"].update(kind="medusa"),
            "lacks tensor 'blocks.weight', as heads of kind medusa",
        ),
    ],
)
def test_a_folder_that_is_damaged_is_one_line(tmp_path, change, message):
    speculate = heads_of(tiny_model(SHAPE), tmp_path, "eagle")
    edited(tmp_path, change)
    assert message in refused(speculate)


def test_what_speculate_may_be_is_said(tmp_path):
    assert "speculate must be ngram, draft:MODEL or heads:FOLDER, got 'heads:'" in refused("heads:")


def test_memory_counts_heads(tmp_path):
    speculate = heads_of(tiny_model(SHAPE), tmp_path, "eagle")
    options = EngineConfig(limits_of(SHAPE), 4, memory_fraction=0.1, cache_tokens=512)
    cpu, config = torch.device("cpu"), SHAPES[SHAPE]
    precision, memory = resolve_precision("float32", cpu, config), DeviceMemory(10**10, None)

    def tables(speculate: str) -> int:
        asked = replace(options, speculate=speculate)
        return memory_plan(config, asked, cpu, precision, memory=memory).table_bytes

    states = 5 * config.hidden_size * 4
    assert tables(speculate) == tables("ngram") + states + 2 * (tmp_path / "model.safetensors").stat().st_size
