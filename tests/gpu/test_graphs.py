"""The final engine on a CUDA GPU: through graphs, overlap and mixed steps, float32 gives the CPU's tokens."""

import math
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is for Linux alone")

import torch

from gradus import phases
from gradus.assembly.final import EngineConfig, build
from gradus.config.options import EngineOptions
from gradus.device.capability import capability
from gradus.engine.request import Request, SamplingParams
from gradus.execution.gpu.prompt_graphs import PromptGraphs
from gradus.models import Model
from gradus.quantization.kv import rounded
from gradus.scheduling.draft_shapes import NO_SHAPE
from tests.assembly.mixture import answers, assert_same, mixture
from tests.gpu.runners import graphs_of, prompt_graphs_of
from tests.gpu.test_phases import model_on, requests
from tests.phases.conftest import EVERY_FAMILY, NaiveAttention, limits_of
from tests.phases.drive import Ending, run
from tests.speculative.heads import heads_of

pytestmark = pytest.mark.gpu

SWITCHES: list[dict[str, Any]] = [
    {},
    {"overlap": False},
    {"graphs": False},
    {"prefix_cache": False},
    {"token_budget": 4},
]


def oracle(shape: str, wanted: list[Request]) -> dict[tuple[str, int], Ending]:
    options = EngineOptions(limits_of(shape), max_sequences=3)
    return run(phases.load("p01").build(model_on("cpu", shape, torch.float32), options), wanted)


@pytest.mark.parametrize("shape", EVERY_FAMILY)
def test_float32_gives_the_cpus_tokens_whatever_is_switched_off(shape):
    expected, model = oracle(shape, requests(shape)), model_on("cuda", shape, torch.float32)
    for switches in SWITCHES if shape == "tiny-llama" else SWITCHES[:1]:
        engine = build(model, EngineConfig(limits_of(shape), max_sequences=3, **switches))
        assert run(engine, requests(shape)) == expected, switches


@pytest.mark.parametrize("drafts", [None, 4])
@pytest.mark.parametrize("shape", ["tiny-llama", "tiny-gemma3"])
def test_drafts_change_no_token_whatever_is_switched_off(shape, drafts):
    expected, model = oracle(shape, requests(shape)), model_on("cuda", shape, torch.float32)
    for switches in [*SWITCHES, {"graphs": False, "kernels": False}]:
        config = EngineConfig(limits_of(shape), max_sequences=3, speculate="ngram", drafts=drafts, **switches)
        assert run(build(model, config), requests(shape)) == expected, switches


@pytest.mark.parametrize("drafts", [None, 3])
def test_a_draft_model_changes_no_token_and_a_model_that_drafts_for_itself_is_right(drafts):
    shape = "tiny-llama"
    expected, model = oracle(shape, requests(shape)), model_on("cuda", shape, torch.float32)
    for switches in [*SWITCHES, {"graphs": False, "kernels": False}]:
        config = EngineConfig(limits_of(shape), max_sequences=3, speculate="draft:itself", drafts=drafts, **switches)
        engine = build(model, config, draft=model)
        assert run(engine, requests(shape)) == expected, switches
        told = engine.metrics().speculation
        assert told is not None
        if drafts is not None and "token_budget" not in switches:  # 4 tokens per step leave no room for 3 drafts each
            assert sum(told.accepted) > 0.9 * sum(told.drafted) > 0, switches


@pytest.mark.quick
@pytest.mark.parametrize("drafts", [3, None])
@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_heads_change_no_token_and_say_on_a_gpu_what_they_say_on_a_cpu(kind, drafts, tmp_path):
    shape = "tiny-llama"
    expected, model = oracle(shape, requests(shape)), model_on("cuda", shape, torch.float32)
    speculate = heads_of(model_on("cpu", shape, torch.float32), tmp_path, kind)
    for switches in [*SWITCHES, {"graphs": False, "kernels": False}]:
        config = EngineConfig(limits_of(shape), max_sequences=3, speculate=speculate, drafts=drafts, **switches)
        engine = build(model, config)
        assert run(engine, requests(shape)) == expected, switches
        told = engine.metrics().speculation
        assert told is not None
        if drafts is not None and "token_budget" not in switches:
            assert sum(told.drafted) > 0, switches


# -- short prompts -----------------------------------------------------------------------------------------------------

LENGTHS = (1, 15, 16, 17, 40, 70, 3, 33)


def prompts_of(shape: str, lengths: tuple[int, ...] = LENGTHS) -> list[Request]:
    generator, limits = torch.Generator().manual_seed(2), limits_of(shape)
    params = SamplingParams(max_tokens=9, ignore_eos=True)
    prompts = [torch.randint(0, limits.vocab_size, (length,), generator=generator).tolist() for length in lengths]
    return [Request.create(f"p{number}", prompt, params, limits) for number, prompt in enumerate(prompts)]


def expected_of(shape: str) -> dict[tuple[str, int], Ending]:
    options = EngineOptions(limits_of(shape), max_sequences=4)
    return run(phases.load("p01").build(model_on("cpu", shape, torch.float32), options), prompts_of(shape))


@pytest.mark.parametrize("speculate", [None, "ngram", "draft:itself"])
@pytest.mark.parametrize("shape", ["tiny-gpt2", "tiny-llama", "tiny-gemma3"])
def test_short_prompts_are_replayed_alone_and_beside_decodes(shape, speculate, monkeypatch):
    """Whole, in chunks, and behind a prefix: the tokens are the CPU's, in steps of several sizes."""
    # every size is worth its graph, however slow other processes make this GPU
    monkeypatch.setattr(PromptGraphs, "_launching", lambda graphs: dict.fromkeys(graphs.sizes, math.inf))
    expected, model = expected_of(shape), model_on("cuda", shape, torch.float32)
    if speculate == "draft:itself" and shape == "tiny-gemma3":
        pytest.skip("a draft without windows is asked for")
    for budget in (128, 20):
        config = EngineConfig(limits_of(shape), max_sequences=4, speculate=speculate, token_budget=budget, page_size=4)
        engine = build(model, config, draft=model if speculate == "draft:itself" else None)
        graphs = prompt_graphs_of(engine)
        replayed: list[int] = []
        monkeypatch.setattr(graphs, "captured", Recorded(graphs.captured, replayed))
        for _ in range(2):
            assert run(engine, prompts_of(shape)) == expected
        assert len(replayed) >= 4 and len(set(replayed)) >= 2, (budget, replayed)


class RoundedAttention(NaiveAttention):
    """Over keys and values as 8 bits keep them."""

    def attend(self, layer, q, k, v, sinks=None):
        return super().attend(layer, q, rounded(k), rounded(v), sinks)


# Another order of sums may put one value on the other side of a rounding step, among thousands. Keys and values that
# are not rounded at all, or in another way, move these logits by up to a tenth.
STEP = 0.02


@torch.inference_mode()
def gap(model: Model, tokens: list[int], token: int) -> float:
    """How far a token that follows these is below the likeliest, by rounded attention computed from nothing."""
    hidden = model(torch.tensor(tokens), torch.arange(len(tokens)), RoundedAttention(model))
    logits = model.logits(hidden[-1:])[0]
    return float(logits.max() - logits[token])


@pytest.mark.parametrize("shape", EVERY_FAMILY)
def test_with_a_cache_in_8_bits_tokens_part_from_the_cpus_only_at_close_calls(shape):
    if not capability(torch.device("cuda")).multiplies_fp8:
        pytest.skip("a GPU without fp8")
    exact, model = model_on("cpu", shape, torch.float32), model_on("cuda", shape, torch.float32)
    for switches in [*SWITCHES, {"graphs": False, "kernels": False}] if shape == "tiny-llama" else SWITCHES[:1]:
        engine = build(model, EngineConfig(limits_of(shape), max_sequences=3, kv_dtype="fp8", **switches))
        done = run(engine, requests(shape))
        for request in requests(shape):
            tokens = list(request.prompt)
            for token in done[request.id, 0].tokens:
                assert gap(exact, tokens, token) < STEP, (switches, request.id, len(tokens))
                tokens.append(token)


@pytest.mark.parametrize(
    "params",
    [dict(temperature=1.0, seed=7), dict(temperature=0.8, seed=7, top_p=0.9, presence_penalty=0.3, n=2)],
    ids=["plain", "special"],
)
def test_sampled_tokens_are_the_cpus_too(params):
    shape = "tiny-llama"
    model = model_on("cuda", shape, torch.float32)
    engine = build(model, EngineConfig(limits_of(shape), max_sequences=3))
    assert run(engine, requests(shape, **params)) == oracle(shape, requests(shape, **params))


def test_preempted_and_stopped_requests_leave_no_trace():
    """A pool that is too small, stop tokens that are seen late, and steps under way all the while."""
    shape, limits = "tiny-llama", limits_of("tiny-llama")
    free = oracle(shape, requests(shape))
    wanted = []
    for request in requests(shape):
        stops = (free[request.id, 0].tokens[len(wanted) + 2],)
        params = SamplingParams(max_tokens=24, ignore_eos=True, stop_token_ids=stops if len(wanted) % 2 else ())
        wanted.append(Request.create(request.id, request.prompt, params, limits))
    model = model_on("cuda", shape, torch.float32)
    engine = build(model, EngineConfig(limits, max_sequences=4, page_size=4, cache_tokens=60))
    assert run(engine, wanted) == oracle(shape, wanted)
    assert engine.metrics().preemptions > 0


# -- whatever is asked of sampling -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sampled_on_the_cpu():
    """The mixture through the torch sampler."""
    options = EngineOptions(limits_of("tiny-llama"), max_sequences=3)
    return answers(
        phases.load("p01").build(model_on("cpu", "tiny-llama", torch.float32), options), mixture("tiny-llama")
    )


@pytest.mark.parametrize("switches", [{}, {"graphs": False}, {"graphs": False, "kernels": False}, {"overlap": False}])
@pytest.mark.parametrize("max_sequences", [2, 16])
def test_a_mixture_of_parameters_gives_the_cpus_tokens_and_log_probabilities(
    sampled_on_the_cpu, switches, max_sequences
):
    config = EngineConfig(limits_of("tiny-llama"), max_sequences=max_sequences, **switches)
    engine = build(model_on("cuda", "tiny-llama", torch.float32), config)
    assert_same(answers(engine, mixture("tiny-llama")), sampled_on_the_cpu)


@pytest.mark.quick
def test_a_step_draws_plainly_unless_one_of_its_rows_asks_for_more(sampled_on_the_cpu, monkeypatch):
    """Two graphs per size, and slots whose owners are of one kind, then of the other."""
    config = EngineConfig(limits_of("tiny-llama"), max_sequences=2)
    engine = build(model_on("cuda", "tiny-llama", torch.float32), config)
    replayed, graphs = [], graphs_of(engine)
    captured = graphs.captured
    monkeypatch.setattr(graphs, "captured", Recorded(captured, replayed))
    assert set(captured) == {(size, NO_SHAPE, full) for size in (1, 2) for full in (False, True)}
    plain, special = mixture("tiny-llama")[1], mixture("tiny-llama")[7]
    for wanted, keys in (
        ([plain], {(1, NO_SHAPE, False)}),
        ([special], {(1, NO_SHAPE, True)}),
        ([plain, special], {(2, NO_SHAPE, True)}),
        ([plain], {(1, NO_SHAPE, False)}),
    ):
        replayed.clear()
        expected = {(each.id, 0): sampled_on_the_cpu[each.id, 0] for each in wanted}
        assert_same(answers(engine, wanted), expected)
        assert set(replayed) == keys


class Recorded(dict):
    """A dict that notes what was looked up."""

    def __init__(self, content: dict, looked_up: list) -> None:
        super().__init__(content)
        self.looked_up = looked_up

    def __getitem__(self, key):
        self.looked_up.append(key)
        return super().__getitem__(key)


def test_penalties_and_reports_survive_preemption_through_graphs(sampled_on_the_cpu):
    """What a slot has seen is built anew from the tokens that are known, and counted on from there in the graph."""
    config = EngineConfig(limits_of("tiny-llama"), max_sequences=6, page_size=4, cache_tokens=60)
    engine = build(model_on("cuda", "tiny-llama", torch.float32), config)
    assert_same(answers(engine, mixture("tiny-llama")), sampled_on_the_cpu)
    assert engine.metrics().preemptions > 3
