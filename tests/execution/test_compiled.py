"""The final engine on a CPU: decode steps through compiled kernels, all others through torch, the same tokens."""

import logging
import threading
import time

import pytest
import torch
from torch import nn

from gradus import LLM, SamplingParams

pytest.importorskip("numba")

from numba.core import event

from gradus.assembly import checkpoint
from gradus.execution import compiled
from gradus.execution.compiled import CompiledPass, alone, announced, together
from gradus.execution.passes import TorchPass
from gradus.kernels.cpu.kept.shown import shown
from gradus.kernels.cpu.kept.turn import WAIT
from gradus.kernels.cpu.kept.watch import watched
from gradus.kernels.cpu.matrix import Unsupported
from gradus.kernels.cpu.model import Stages
from gradus.kernels.cpu.rows import UNKNOWN
from gradus.loading.progress import Silent
from gradus.models import create_model
from gradus.models.families import llama
from gradus.models.heads import Heads
from gradus.models.layers import RMSNorm
from gradus.models.shapes import SHAPES
from gradus.sampling.sampler import Sampler
from tests.phases.conftest import FAMILIES, build_engine

STEPS = 24  # into a second page, and beyond a window
PROMPTS = ["Once upon a time, there", "a", "The three primary colors are red, yellow", "b"]


def some(count: int = STEPS, **more) -> SamplingParams:
    return SamplingParams(max_tokens=count, ignore_eos=True, **more)


def tiny(shape: str = "tiny-llama", **settings) -> LLM:
    return LLM(f"random:{shape}", device="cpu", dtype="float32", **settings)


def tokens(llm: LLM, prompts=PROMPTS, params=None) -> list[list[int]]:
    return [done.token_ids for done in llm.generate(prompts, params or some())]


@pytest.fixture
def counted(monkeypatch) -> list[int]:
    """The rows of each step that the kernels made."""
    rows: list[int] = []
    run = compiled.DecodeModel.run

    def count(self, token_ids, positions, slots, *before, **more):
        rows.append(len(slots))
        return run(self, token_ids, positions, slots, *before, **more)

    monkeypatch.setattr(compiled.DecodeModel, "run", count)
    return rows


@pytest.mark.parametrize("shape", FAMILIES)
def test_the_tokens_are_torchs(shape, counted):
    ours = tiny(shape)
    found = tokens(ours)
    assert len(counted) >= STEPS and max(counted) == len(PROMPTS)  # and the first, which compiles
    assert type(ours.engine.runner.step.passes) is CompiledPass
    in_torch = tiny(shape, switch_off=["kernels"])
    assert type(in_torch.engine.runner.step.passes) is TorchPass
    assert found == tokens(in_torch)


def test_short_prompts_and_chunks_go_through_the_kernels(counted):
    """A chunk wants no logits, a prompt those of its last row."""
    prompt = "Once upon a time, there was a small cat, and it had a small friend, a dog, who was a dog"
    settings = {"token_budget": UNKNOWN // 2, "max_sequences": 2}
    ours = tiny(**settings)
    length = len(ours.tokenizer.encode(prompt))
    assert length > UNKNOWN
    found = tokens(ours, [prompt], some(3))
    half = UNKNOWN // 2
    assert counted == [1, half, half, length - 2 * half, 1, 1]  # the first compiles
    assert found == tokens(tiny(switch_off=["kernels"], **settings), [prompt], some(3))


def test_sampled_tokens_are_torchs_too():
    params = some(24, temperature=1.0, seed=5, n=2)
    assert tokens(tiny(), params=params) == tokens(tiny(switch_off=["kernels"]), params=params)


def test_steps_of_more_rows_than_the_kernels_take_go_through_torch(counted):
    count = UNKNOWN + 3
    prompts = [chr(97 + i % 26) * (i + 1) for i in range(count)]
    params = [some(10 + min(i, 8)) for i in range(count)]  # rows end one after the other, the last ones together
    found = tokens(tiny(max_sequences=count), prompts, params)
    assert max(counted) == UNKNOWN
    assert found == tokens(tiny(max_sequences=count, switch_off=["kernels"]), prompts, params)


# -- greedy rows -------------------------------------------------------------------------------------------------------


@pytest.fixture
def ways(monkeypatch) -> list[str]:
    """How each step's rows got their tokens."""
    taken: list[str] = []
    for name in ("sample", "take", "guess"):
        method = getattr(Sampler, name)

        def noted(self, *arguments, name=name, method=method):
            taken.append(name)
            return method(self, *arguments)

        monkeypatch.setattr(Sampler, name, noted)
    write = compiled.write_drawn  # where there is nothing to check, the tokens are taken without the sampler
    monkeypatch.setattr(compiled, "write_drawn", lambda *given: (taken.append("take"), write(*given)))
    return taken


def test_greedy_rows_are_chosen_without_logits(ways):
    llm = tiny()
    llm.engine.runner.step.passes.decode.logits.fill_(float("nan"))
    found = tokens(llm)
    assert set(ways[1:]) == {"take"}  # the prompts together are more than the kernels take
    assert llm.engine.runner.step.passes.decode.logits.isnan().all()
    assert found == tokens(tiny(switch_off=["kernels"]))


@pytest.mark.parametrize(
    "more",
    [
        {"logprobs": 2},
        {"repetition_penalty": 1.3},
        {"frequency_penalty": 0.5},
        {"presence_penalty": 0.5},
        {"logit_bias": {65: 3.0}},
        {"temperature": 0.8, "seed": 1},
        {"temperature": 0.8, "seed": 1, "min_p": 0.1},
    ],
    ids=lambda more: next(reversed(more)),
)
def test_a_request_that_asks_for_more_takes_its_neighbors_the_full_way(more, ways):
    """Until it ends: then the others need no logits again."""
    params = [some(12), some(5, **more), some(12)]
    done = tiny().generate(["a", "b", "c"], params)
    assert ways == ["sample"] * 5 + ["take"] * 7
    expected = tiny(switch_off=["kernels"]).generate(["a", "b", "c"], params)
    assert [one.token_ids for one in done] == [one.token_ids for one in expected]
    assert [bool(one.logprobs) for one in done] == [False, "logprobs" in more, False]


def test_a_stop_that_is_banned_for_a_time_takes_the_full_way(ways):
    """The ban ends, but the table still has it: the slot goes on by its logits."""
    tiny().generate(["a"], SamplingParams(max_tokens=6, min_tokens=3, stop_token_ids=[65]))
    assert set(ways) == {"sample"}


@pytest.mark.parametrize("speculate", ["ngram", "draft:random:tiny-llama"])
def test_drafts_are_verified_and_guessed_without_logits(speculate, ways):
    prompts = ["one two three one two three one two", "a b a b a b a"]
    found = tokens(tiny(speculate=speculate, drafts=3), prompts)
    assert ways.count("take") > 5 and ways.count("sample") <= 1
    assert ways.count("guess") <= 1  # of the draft model: where both prompts together are its first step
    assert found == tokens(tiny(switch_off=["kernels"]), prompts)


def test_prefixes_preemption_and_chunks_change_nothing():
    """Little room: pages are taken back, shared and filled anew, and long prompts come in pieces between decodes."""
    settings = {"max_sequences": 4, "cache_tokens": 320, "token_budget": 16}
    prompts = ["Once upon a time, there was a small " + word for word in ("cat", "dog", "house", "boat")] * 2
    llm = tiny(**settings)
    found = tokens(llm, prompts, some(60))
    llm.check()
    assert found == tokens(tiny(switch_off=["kernels"], **settings), prompts, some(60))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_sequence_that_is_not_finite_ends_alone(bad):
    clean = tokens(tiny(), params=some(60))
    llm = tiny()
    ids = [llm.submit(prompt, some(60)) for prompt in PROMPTS]
    done = {}
    for number in range(200):
        if number == 20:  # all of them decode
            attention = llm.engine.runner.attention
            victim = attention.tables[0, 1, 0]  # the first page of slot 1
            attention.storage.values[:, victim, 0] = bad
        done |= {delta.request_id: delta.completion for delta in llm.step() if delta.completion}
    ended = [done[one] for one in ids]
    assert [one.finish_reason for one in ended].count("error") == 1
    for one, expected in zip(ended, clean, strict=True):
        if one.finish_reason == "error":
            assert 10 < len(one.token_ids) < 60 and one.token_ids == expected[: len(one.token_ids)]
        else:
            assert one.token_ids == expected
    assert tokens(llm, params=some(60)) == clean  # the page is wiped before another sequence has it


@pytest.mark.parametrize(
    ("setting", "part"), [({"quantize": "fp8"}, "Fp8Linear with"), ({"kv_dtype": "fp8"}, "a cache in torch.")]
)
def test_a_part_without_a_kernel_is_torchs_and_so_is_the_whole_step(setting, part, caplog):
    caplog.set_level(logging.INFO)
    llm = tiny(**setting)
    assert type(llm.engine.runner.step.passes) is TorchPass
    (line,) = [record.getMessage() for record in caplog.records if "kernel" in record.getMessage()]
    assert line.startswith(f"decode steps run in torch: there is no kernel for {part}")
    assert len(tokens(llm)[0]) == STEPS


class TwiceTheAttention(llama.Block):
    def forward(self, x, rotation, attention):
        qkv = self.qkv.after(self.attention_norm, x)
        x = self.output.onto(x, 2 * self.heads(qkv.to(x.dtype), rotation, attention))
        return self.down.onto(x, self.gate_up.after(self.mlp_norm, x, self.gate))


class Undescribed(nn.Module):
    """A block with the parts that Llama's has, and another way to put them together."""

    forward = llama.Block.forward


class Logarithmic(llama.Llama):
    def logits(self, hidden):
        return super().logits(hidden).log_softmax(-1)


class TwiceTheNorm(RMSNorm):
    def forward(self, x):
        return 2 * super().forward(x)


class TwiceTheHeads(Heads):
    def forward(self, *given):
        return 2 * super().forward(*given)


@pytest.mark.parametrize(
    "place, kind",
    [
        ("layers.0.heads.q_norm", TwiceTheNorm),
        ("layers.1", TwiceTheAttention),
        ("layers.1", Undescribed),
        ("", Logarithmic),
        ("norm", TwiceTheNorm),
        ("layers.0.mlp_norm", TwiceTheNorm),
        ("layers.1.heads", TwiceTheHeads),
    ],
)
def test_a_part_that_computes_in_a_way_of_its_own_is_not_taken_for_the_one_it_began_as(place, kind):
    model = create_model(SHAPES["tiny-qwen3"])
    part = model.get_submodule(place)
    part.__class__ = kind
    with pytest.raises(Unsupported, match=kind.__name__):
        Stages(model, (), threads=1)


def test_a_layer_whose_heads_have_norms_of_two_kinds_runs_in_torch(caplog):
    model = create_model(SHAPES["tiny-qwen3"])
    model.layers[1].heads.k_norm.eps = 0.1
    with caplog.at_level(logging.INFO, "gradus"):
        engine = build_engine("final", "tiny-qwen3", model=model)
    assert type(engine.runner.step.passes) is TorchPass
    assert "there is no kernel for queries and keys that differ in their norms' eps" in caplog.text


@pytest.mark.parametrize("quantize", ["int8", "int4-g32"])
def test_quantized_models_decode_through_the_kernels(quantize, counted):
    llm = tiny(quantize=quantize)
    assert all(len(one) == STEPS for one in tokens(llm)) and len(counted) >= STEPS


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("somewhere", "compiling the CPU kernels: once, for some seconds"),
        (None, "compiling the CPU kernels for some seconds, as at every start: no folder can be written to"),
    ],
)
def test_compiling_is_announced_where_it_takes_long(place, words, monkeypatch, caplog):
    monkeypatch.setattr(compiled, "NOTICEABLE_S", 0.05)
    monkeypatch.setattr(compiled, "place_of", lambda kernel: place)
    with announced(), event.trigger_event("numba:compile"):
        while not caplog.records:
            time.sleep(0.01)
    assert [record.getMessage() for record in caplog.records] == [words]
    caplog.clear()
    monkeypatch.setattr(compiled, "NOTICEABLE_S", 60)
    before = set(threading.enumerate())
    with announced(), event.trigger_event("numba:compile"):
        (clock,) = set(threading.enumerate()) - before
    assert not clock.is_alive() and not caplog.records


def said(caplog, lines: int) -> list[str]:
    """Wait until the log has this many lines. Returns them without the seconds."""
    while len(caplog.records) < lines:
        time.sleep(0.01)
    return [record.getMessage().rsplit(" (", 1)[0] for record in caplog.records]


def watched_quickly(first_s, say):
    return watched(0.02, say, every_s=0.02)


def test_a_long_compilation_says_how_far_it_is(monkeypatch, caplog):
    monkeypatch.setattr(compiled, "watched", watched_quickly)
    monkeypatch.setattr(compiled, "LINES_S", 1)
    with announced(), event.trigger_event("numba:compile"):
        said(caplog, 1)
        for _ in range(40):
            with event.trigger_event("numba:compile"):
                pass
        first, *_, last = said(caplog, len(caplog.records) + 2)
    assert first.endswith("CPU kernels: once, for some seconds")
    assert last == "compiling the CPU kernels: 40 of about 156 functions"


def test_a_wait_for_another_process_names_it(monkeypatch, caplog):
    monkeypatch.setattr(compiled, "watched", watched_quickly)
    monkeypatch.setattr(compiled, "LINES_S", 1)
    with announced(), event.trigger_event(WAIT, data=1234):
        assert said(caplog, 2)[:2] == ["waiting for the process 1234 that compiles the same kernels"] * 2


class Recorded(Silent):
    def __init__(self):
        self.begun, self.done = [], 0

    def begin(self, task, total):
        self.begun.append((task, total))
        self.done = 0

    def advance(self, amount):
        self.done += amount


def test_a_front_end_shows_how_far_a_compilation_is(monkeypatch, caplog):
    """The log then says once that kernels are compiled. The last function is done when all is."""
    monkeypatch.setattr(compiled, "watched", watched_quickly)
    progress = Recorded()
    with checkpoint._compiling(progress), announced():
        with event.trigger_event(WAIT, data=1234):
            while not progress.begun:
                time.sleep(0.01)
        with event.trigger_event("numba:compile"):
            for _ in range(200):
                with event.trigger_event("numba:compile"):
                    pass
            while progress.done < 155:
                time.sleep(0.01)
    waits = ("waiting for the process 1234 that compiles the same kernels", None)
    assert progress.begun == [waits, ("compiling the CPU kernels", 156)] and progress.done == 155
    assert len(caplog.records) == 1
    assert shown.get() is None


def test_a_slow_start_that_compiles_nothing_announces_nothing(monkeypatch, caplog):
    """A busy machine takes seconds to read kept code and to warm up."""
    monkeypatch.setattr(compiled, "NOTICEABLE_S", 0.0)
    tiny()  # whatever it compiles is kept, in this process at least
    caplog.clear()
    tiny()
    with announced():
        time.sleep(0.05)
    assert not caplog.records


def test_the_warm_up_stores_into_padding_alone():
    llm = tiny()
    storage = llm.engine.runner.attention.storage
    assert not storage.keys[:, 1:].any() and not storage.values[:, 1:].any()
    assert torch.equal(storage.keys.isfinite(), torch.ones_like(storage.keys, dtype=torch.bool))


def test_a_step_leaves_the_torch_of_other_threads_alone(monkeypatch):
    """Among them one that first uses torch during the step: it would keep for good what it finds then."""
    llm, seen = tiny(), []
    before, run = torch.get_num_threads(), llm.engine.runner.step.passes.decode.run
    torch.set_num_threads(3)
    try:

        def watched(*given, **more):
            other = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
            other.start()
            other.join()
            seen.append(torch.get_num_threads())
            return run(*given, **more)

        monkeypatch.setattr(llm.engine.runner.step.passes.decode, "run", watched)
        tokens(llm, PROMPTS[:1], some(2))
        assert seen[-2:] == [3, 1] and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_a_longer_step_within_a_quiet_one_has_torchs_threads_again():
    threads = torch.get_num_threads()
    with together():
        assert torch.get_num_threads() == threads
    with alone(), alone():
        assert torch.get_num_threads() == 1
        with together():
            assert torch.get_num_threads() == threads
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == threads
