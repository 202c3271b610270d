"""The roofline's formulas against numbers worked out by hand, and against published parameter counts."""

from dataclasses import replace

import pytest

from gradus.bench.predict.prediction import cached, continuous, predict, recompute, static
from gradus.bench.predict.roofline import (
    Cost,
    Machine,
    SpanShape,
    Widths,
    positions_read,
    positions_visible,
    step_cost,
    streamed_parameters,
)
from gradus.bench.workloads import Job, Workload, burst
from gradus.models.config import Experts, layer_matrix_parameters
from gradus.models.families.records import read_config
from gradus.models.shapes import SHAPES

# Two layers, hidden 8, 2 query heads of 4, 1 key-value head, MLP 16, vocabulary 10, tied.
TOY = read_config({
    "model_type": "llama", "vocab_size": 10, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "max_position_embeddings": 64,
    "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2,
})  # fmt: skip
# One layer: q 8x8, k 8x4, v 8x4, o 8x8 = 192; gate, up, down 3 x 8 x 16 = 384. Together 576.
# Streamed: 2 x (576 + 2 norms of 8) + last norm 8 + head 80 = 1272.
BYTES = Widths(weight=2, kv=2)


def test_the_weights_of_a_toy_are_counted_by_hand():
    assert layer_matrix_parameters(TOY, 0) == layer_matrix_parameters(TOY, 1) == 576
    assert streamed_parameters(TOY) == 1272


@pytest.mark.parametrize(
    ("shape", "millions"),
    [("gpt2-124m", 123.65), ("llama-3.2-1b", 1235.8), ("qwen3-0.6b", 596.0), ("llama-3.1-8b", 7504.9)],
)
def test_streamed_weights_leave_out_the_tables_that_are_looked_up(shape, millions):
    """GPT-2: 124.44 M less 0.79 M of positions. Llama 3.1 8B: 8.03 B less its input embedding, not tied to the head."""
    assert streamed_parameters(SHAPES[shape]) / 1e6 == pytest.approx(millions, abs=0.06)


def test_one_decode_of_a_toy():
    """Position 5: 6 positions read and 1 written, 2 layers, key and value of 4 numbers of 2 bytes each: 224 bytes.

    Matrices: 2 operations for 2 x 576 weights and for the head's 80. Attention: 4 x query width 8 x 6 x 2 layers.
    """
    cost = step_cost(TOY, [SpanShape(start=5, rows=1)], BYTES)
    assert cost == Cost(weight_bytes=1272 * 2 + 4 * 10, kv_bytes=224, matrix_flops=2464, attention_flops=384)


def test_a_step_reads_the_experts_that_its_rows_choose():
    """4 experts of 3 x 8 x 4 = 96 weights, one of them chosen, and a router of 32, in the MLP's place.

    Two rows choose 4 x (1 - (3/4)^2) = 1.75 experts. All weights: 2 x (192 + 32 + 4 x 96 + 16) + 8 + 80 = 1336.
    """
    mixed = replace(TOY, intermediate_size=0, experts=(Experts(4, 1, 4),) * 2)
    assert streamed_parameters(mixed) == 1336
    one, two = (step_cost(mixed, [SpanShape(5, 1)] * rows, BYTES) for rows in (1, 2))
    assert one.weight_bytes == 2 * (1336 - 2 * 3 * 96) + 4 * 10
    assert two.weight_bytes == 2 * (1336 - 2 * 2.25 * 96) + 2 * 4 * 10
    assert one.matrix_flops == 2 * (2 * (192 + 32 + 96) + 80) == two.matrix_flops / 2


def test_one_prefill_of_a_toy():
    """4 rows: 1 + 2 + 3 + 4 = 10 visible pairs a layer; logits of the last row only; 4 positions read, 4 written."""
    cost = step_cost(TOY, [SpanShape(start=0, rows=4)], BYTES)
    assert cost.matrix_flops == 2 * (4 * 2 * 576 + 80)
    assert cost.attention_flops == 4 * 8 * 10 * 2
    assert cost.kv_bytes == 2 * (4 + 4) * 8 * 2


def test_a_batch_reads_the_weights_once_and_every_cache():
    one, four = (step_cost(TOY, [SpanShape(5, 1)] * count, BYTES) for count in (1, 4))
    assert four.weight_bytes - one.weight_bytes == 4 * 3 * 10  # three more rows of logits
    assert four.kv_bytes == 4 * one.kv_bytes
    assert four.flops == 4 * one.flops


def test_a_step_takes_as_long_as_the_slower_need_of_each_kind_of_work():
    cost = Cost(weight_bytes=100, kv_bytes=10, matrix_flops=50, attention_flops=40)
    assert cost.seconds(Machine(bandwidth=10, rate=10)) == 10 + 4
    assert cost.seconds(Machine(bandwidth=100, rate=10)) == 5 + 4
    assert cost.seconds(Machine(bandwidth=1, rate=1000)) == 100 + 10


def test_llama_decodes_at_the_known_floor():
    """Llama 3.2 1B, bf16, 160 tokens of context, 4.3 TB/s: 2.4716 GB of weights and 5.3 MB of cache take 576 µs."""
    cost = step_cost(SHAPES["llama-3.2-1b"], [SpanShape(160, 1)], BYTES)
    assert cost.seconds(Machine(4.3e12, 790e12)) * 1e6 == pytest.approx(576, abs=0.5)


@pytest.mark.parametrize("window", [None, 1, 3, 4, 7, 100])
@pytest.mark.parametrize("start", [0, 2, 5])
@pytest.mark.parametrize("rows", [1, 2, 6])
def test_windows_count_like_a_mask_does(window, start, rows):
    pairs = [
        (row, key)
        for row in range(start, start + rows)
        for key in range(row + 1)
        if window is None or key > row - window
    ]
    assert positions_visible(SpanShape(start, rows), window) == len(pairs)
    assert positions_read(SpanShape(start, rows), window) == len({key for _, key in pairs})


# -- predictions -------------------------------------------------------------------------------------------------------

SLOW = Machine(bandwidth=1e6, rate=1e6)


def played(policy, workload, batch=1):
    return predict(policy, workload, TOY, BYTES, SLOW, batch)


def test_the_baseline_computes_every_row_again():
    assert played(recompute, burst(1, 5, 3)).rows == 5 + 6 + 7


def test_the_cache_computes_every_row_once():
    prediction = played(cached, burst(2, 5, 3))
    assert (prediction.rows, prediction.steps) == (2 * (5 + 2), 2 * 3)


MIXED = Workload("mixed", "", (Job(0, 4, 2), Job(0, 2, 5), Job(0, 3, 3)))


def test_static_batching_pads_to_the_longest_prompt_and_runs_to_the_longest_answer():
    prediction = played(static, MIXED, batch=2)
    assert prediction.rows == (2 * 4 + 2 * 4) + (3 + 2)  # a batch of two, then the third alone
    assert prediction.steps == 5 + 3


def test_continuous_batching_computes_no_row_for_nothing():
    prediction = played(continuous, MIXED, batch=2)
    assert prediction.rows == (4 + 1) + (2 + 4) + (3 + 2)
    assert prediction.steps == 5  # the third enters when the first has left, after two steps, and needs three


@pytest.mark.parametrize("policy", [recompute, cached, static, continuous])
def test_every_policy_gives_every_job_its_tokens_and_waits_for_arrivals(policy):
    late = Workload("late", "", (Job(0, 4, 3), Job(1000.0, 4, 3)))
    prediction = played(policy, late, batch=4)
    assert prediction.output_tokens == 6
    assert prediction.seconds > 1000 and prediction.ttft_p50 < 1
