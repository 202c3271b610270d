"""Sizing a server: cards, the formula for a step next to what was measured, and estimates that follow from both."""

import math
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
import torch

from gradus.bench.predict.roofline import Machine, SpanShape, Widths, step_cost
from gradus.bench.sizing.cards import CARDS, PRODUCT, READ, card, card_of
from gradus.bench.sizing.estimate import ANSWER, PROMPT, Estimate, Objective, Use, most
from gradus.bench.sizing.pace import EXCHANGE, EXCHANGE_ROW, ON_GPU, Pace, Speed
from gradus.bench.sizing.records import factor, measured, residuals, table
from gradus.bench.workloads import burst, single_stream
from gradus.device.capability import assuming, capability, multiprocessors, name_of
from gradus.errors import ConfigError
from gradus.models.shapes import SHAPES

ROOT = Path(__file__).parents[2]
LLAMA = SHAPES["llama-3.1-8b"]
BFLOAT16 = Widths(2, 2)


@pytest.fixture(scope="module")
def runs():
    return measured()


# -- the formula next to the records -----------------------------------------------------------------------------------

ALL_GPU, MEDIAN_GPU, ALL_CPU, MEDIAN_CPU = 1.6, 0.08, 1.7, 0.2


def test_the_formula_is_as_near_to_the_records_as_the_page_says(runs):
    """Every run counts; a formula that is wrong for one class of runs does not pass by its median."""
    for there, all_within, middle in (("gpu", ALL_GPU, MEDIAN_GPU), ("cpu", ALL_CPU, MEDIAN_CPU)):
        ratios = [one.ratio for one in runs if (one.hardware == "cpu") == (there == "cpu")]
        assert len(ratios) >= 20
        assert factor(ratios) <= all_within
        assert median(abs(math.log(ratio)) for ratio in ratios) <= middle
    page = " ".join((ROOT / "docs" / "operations.md").read_text(encoding="utf-8").split())
    assert f"within a factor of {ALL_GPU} on GPUs and {ALL_CPU} on a CPU" in page


def test_the_page_has_the_table_of_residuals(runs):
    """`python -m gradus.bench.sizing.records` prints it."""
    assert table(runs) in (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")


def test_the_roofline_alone_would_be_far_off(runs):
    """Without the times of layers and sequences, a small model seems four times as fast."""
    bare = Pace(1, 1, 0, 0, 0)
    small = next(one for one in runs if one.model == "gpt2-124m" and len(one.workload.jobs) == 1)
    floor = Speed(small.config, BFLOAT16, small.machine, bare).played(small.workload, 256, 8192)
    assert small.seconds / floor > 3.5 and small.ratio < 1.3


def test_every_class_of_runs_has_several(runs):
    found = residuals(runs)
    assert sum(count for _, count, _, _ in found) == len(runs) and all(count >= 3 for _, count, _, _ in found)
    assert {kind.split(",")[0] for kind, *_ in found} == {"CPU", "GPU", "two GPUs"}
    unseen = {kind: most for kind, _, _, most in found if "not fitted to" in kind}
    assert len(unseen) == 2 and max(unseen.values()) < 1.2


# -- a step ------------------------------------------------------------------------------------------------------------


def test_a_step_takes_the_roofline_and_the_times_of_layers_and_sequences():
    machine, pace = Machine(bandwidth=1e12, rate=1e14), Pace(0.5, 0.25, layer=1e-6, sequence=1e-7, quantized=2e-6)
    spans = [SpanShape(100, 1)] * 4
    cost = step_cost(LLAMA, spans, BFLOAT16)  # four rows of decodes wait for memory
    by_hand = (cost.weight_bytes + cost.kv_bytes) / 0.5e12 + 32 * 1e-6 + 4 * 1e-7
    plain = Speed(LLAMA, BFLOAT16, machine, pace)
    assert plain.seconds(spans) == pytest.approx(by_hand)
    assert replace(plain, quantized=True).seconds(spans) == pytest.approx(by_hand + 32 * 2e-6)
    exchanged = 32 * 2 * (EXCHANGE + 4 * EXCHANGE_ROW)
    assert replace(plain, ranks=2).seconds(spans) == pytest.approx(by_hand + exchanged)


def test_products_of_a_prompt_run_at_the_rate_of_their_bits():
    machine = Machine(bandwidth=1e15, rate=1e12)  # memory costs nothing here
    plain = Speed(LLAMA, BFLOAT16, machine, Pace(1, 1, 0, 0, 0))
    spans = [SpanShape(0, 2048)]
    cost = step_cost(LLAMA, spans, BFLOAT16)
    twice = replace(plain, faster=2.0)
    assert plain.seconds(spans) - twice.seconds(spans) == pytest.approx(cost.matrix_flops / 2e12)


def test_a_workload_is_played_step_by_step():
    speed = Speed(LLAMA, BFLOAT16, CARDS["h200"].machine, ON_GPU)
    alone = [speed.seconds([SpanShape(0, 8)]), *(speed.seconds([SpanShape(at, 1)]) for at in (8, 9))]
    assert speed.played(single_stream(8, 3), 1, None) == pytest.approx(sum(alone))
    assert speed.played(burst(2, 8, 3), 2, None) < 2 * sum(alone)


# -- cards -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["H200", "h200", " H-200"])
def test_a_card_is_found_however_its_name_is_spelled(name):
    assert card(name) is CARDS["h200"] is card_of("NVIDIA H200")


def test_an_unknown_card_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"--card takes h200, h100, .*got 'tpu'; without it, the device here"):
        card("tpu")
    assert card_of("Tesla T4") is None


def test_measured_rates_are_used_where_there_are_any_and_are_the_records():
    h200, l4 = CARDS["h200"], CARDS["l4"]
    assert l4.machine == Machine(l4.bandwidth * READ, l4.rate * PRODUCT)
    for each in (h200, CARDS["h100"]):
        found = [one.machine for one in measured() if one.hardware == each.name and "tensor" not in one.source]
        assert median(one.bandwidth for one in found) == pytest.approx(each.machine.bandwidth, rel=0.03)
        assert median(one.rate for one in found) == pytest.approx(each.machine.rate, rel=0.03)
    assert h200.machine.bandwidth / h200.bandwidth == pytest.approx(READ, abs=0.01)
    assert h200.machine.rate / h200.rate == pytest.approx(PRODUCT, abs=0.01)


def test_a_gpu_that_is_not_here_is_assumed_within_the_block_alone():
    device = torch.device("cuda")
    with assuming(CARDS["l4"].assumed):
        assert (str(capability(device)), multiprocessors(device), name_of(device)) == ("8.9", 58, "NVIDIA L4")
        assert capability(torch.device("cpu")) == (8, 0)
        with assuming(None):
            assert name_of(device) == "NVIDIA L4"
    if not torch.cuda.is_available():
        with pytest.raises((AssertionError, RuntimeError)):
            capability(device)


# -- estimates ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def estimate():
    from gradus.execution.memory.device_memory import DeviceMemory
    from gradus.loading import open_checkpoint
    from gradus.server.config import ServerConfig
    from gradus.server.engine.loading import plan_of, prepared

    h100, device, settings = CARDS["h100"], torch.device("cuda"), ServerConfig(model="random:llama-3.1-8b")
    with assuming(h100.assumed):
        ready = prepared(settings, open_checkpoint(settings.model), device)
        plan = plan_of(ready, None, device, DeviceMemory(h100.free, h100.memory))
    return Estimate(Speed(LLAMA, BFLOAT16, h100.machine, ON_GPU), plan)


def test_sessions_are_what_the_cache_holds(estimate):
    # 32 layers x 8 heads x 128 numbers x (key, value) x 2 bytes = 131,072 bytes per token, pages of 16
    for length in (16, 2048, 100_000):
        held = estimate.plan.cache_bytes - 16 * 131_072  # page 0 holds nothing
        assert estimate.sessions(length) == held // (-(-length // 16) * 16 * 131_072)


def test_more_users_are_slower_each_and_faster_together(estimate):
    users = (1, 8, 32, 128)
    assert sorted(map(estimate.token_seconds, users)) == [*map(estimate.token_seconds, users)]
    assert sorted(map(estimate.first_seconds, users)) == [*map(estimate.first_seconds, users)]
    assert sorted(map(estimate.rate, users)) == [*map(estimate.rate, users)]
    assert estimate.first_seconds(1) == estimate.prompt_seconds(PROMPT)
    assert estimate.token_seconds(1) == estimate.decode_seconds(1)
    # a lone user's request takes its prompt and its tokens, and then the next one comes
    cycle = estimate.prompt_seconds(PROMPT) + ANSWER * estimate.decode_seconds(1)
    assert estimate.rate(1) == pytest.approx(ANSWER / cycle)


def test_users_in_time_are_the_most_that_an_objective_holds_for(estimate):
    objective = Objective(ttft=0.2, tpot=0.02)
    users = estimate.users_in_time(objective)
    assert 1 < users < estimate.most_users
    assert estimate.meets(users, objective) and not estimate.meets(users + 1, objective)
    assert estimate.users_in_time(Objective(tpot=1e-6)) == 0
    assert estimate.users_in_time(Objective()) == estimate.most_users
    assert [most(least.__ge__, 10) for least in (0, 1, 7, 10, 99)] == [0, 1, 7, 10, 10]


def test_a_long_prompt_is_read_in_steps_of_the_plan(estimate):
    budget = estimate.plan.step_tokens
    one, two = estimate.prompt_seconds(budget), estimate.prompt_seconds(2 * budget)
    assert two > 2 * one  # the second half attends to the first


@pytest.mark.parametrize("text", ["", "ttft", "ttft:", "ttft:fast", "ttft:1,ttft:2", "itl:5", "ttft:-1", "tpot:1.2.3"])
def test_an_objective_that_cannot_be_read_is_refused(text):
    with pytest.raises(ConfigError, match="--objective takes milliseconds, as in ttft:200,tpot:20"):
        Objective.of(text)


def test_objectives_and_requests_are_read():
    assert Objective.of("ttft:200,tpot:12.5") == Objective(0.2, 0.0125) and Objective.of("tpot:5").ttft is None
    assert Use.of("4096,128") == Use(4096, 128)
    for wrong in ("4096", "0,5", "a,b", "1,2,3"):
        with pytest.raises(ConfigError, match="--request takes tokens in and out"):
            Use.of(wrong)
