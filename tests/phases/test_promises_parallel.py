"""The promises of p12's parts: products that meet in a sum, the heads of a rank, a pipeline's schedule.

Each case is small enough to work out by hand.
"""

from dataclasses import dataclass, replace

import pytest
import torch
from torch.nn import functional as F

from gradus.errors import ConfigError
from gradus.models import SHAPES
from gradus.models.layers import MatrixId
from phases.p12_parallelism.heads import cut_qkv, heads_of
from phases.p12_parallelism.linear import RowParallel, all_reduce, column_part, row_part
from phases.p12_parallelism.schedule import bubble, timetable
from tests.phases.conftest import of

# -- products that meet in a sum ---------------------------------------------------------------------------------------


@dataclass
class Gathers:
    """An exchange whose ranks hold these values, whatever is given in."""

    values: list

    def gather(self, x):
        return torch.tensor(self.values, dtype=x.dtype).reshape(len(self.values), *x.shape)


@of("p12")
def test_a_part_has_its_outputs_of_each_fused_matrix(phase):
    matrix = torch.arange(6.0)[:, None] * torch.ones(6, 3)
    found = column_part(matrix, (4, 2), 1, 2)
    assert found.shape == (3, 3), f"2 of 4 outputs and 1 of 2, [3, 3]; yours is {list(found.shape)}"
    assert found[:, 0].tolist() == [2, 3, 5], f"rows 2, 3 and 5 are part 1 of 2; yours: {found[:, 0].tolist()}"
    biases = column_part(torch.arange(6.0), (4, 2), 0, 2)
    assert biases.tolist() == [0, 1, 4], f"a bias is cut like its matrix: [0, 1, 4]; yours: {biases.tolist()}"


@of("p12")
def test_a_part_has_the_columns_that_read_its_inputs(phase):
    found = row_part(torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]]), 1, 2)
    assert found.tolist() == [[3, 4], [7, 8]], f"part 1 of 2 reads inputs 2 and 3; yours: {found.tolist()}"


@of("p12")
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_the_parts_summands_add_up_to_the_whole_product(phase, parts):
    torch.manual_seed(0)
    x, first, second = torch.randn(5, 4), torch.randn(12, 4), torch.randn(7, 6)
    gate, up = F.linear(x, first).chunk(2, -1)
    wanted, found = F.linear(F.silu(gate) * up, second), torch.zeros(5, 7)
    for part in range(parts):
        gate, up = F.linear(x, column_part(first, (6, 6), part, parts)).chunk(2, -1)
        found += F.linear(F.silu(gate) * up, row_part(second, part, parts))
    error = (found - wanted).abs().max().item()
    assert error < 1e-5, f"{parts} parts of an MLP must add up to the whole one; yours are off by {error:.2g}"


@of("p12")
def test_sums_are_taken_in_the_order_of_the_ranks(phase):
    found = all_reduce(Gathers([1e8, -1e8, 1.0]), torch.zeros(1)).item()
    assert found == 1, f"(100000000 - 100000000) + 1 is 1 in the order of the ranks; yours is {found:g}"


@of("p12")
def test_sums_of_narrow_types_are_rounded_once(phase):
    found = all_reduce(Gathers([256.0, 1.0, 1.0]), torch.zeros(1, dtype=torch.bfloat16))
    assert found.dtype == torch.bfloat16, f"a sum of bfloat16 is a bfloat16; yours is {found.dtype}"
    assert found.item() == 258, f"256 + 1 + 1 in float32, rounded once, is 258; yours is {found.item():g}"


@of("p12")
@pytest.mark.parametrize("bias", [False, True])
def test_a_bias_is_added_once_after_the_sum(phase, bias):
    layer = RowParallel(MatrixId("down", 0), 1, (1,), bias)
    layer.weight.fill_(1.0)
    layer.exchange = Gathers([2.0, 3.0])
    if bias:
        layer.bias.fill_(10.0)
    found, wanted = layer(torch.ones(1, 1)).item(), 15.0 if bias else 5.0
    rule = "2 + 3, and a bias of 10 once, are 15" if bias else "2 + 3 without a bias are 5"
    assert found == wanted, f"{rule}; yours is {found:g}"


@of("p12")
def test_each_rank_gathers_its_own_summand(phase):
    given = []

    class Notes(Gathers):
        def gather(self, x):
            given.append(x.item())
            return super().gather(x)

    layer = RowParallel(MatrixId("down", 0), 2, (1,), True)
    layer.weight.copy_(torch.tensor([[2.0, 3.0]]))
    layer.bias.fill_(100.0)
    layer.exchange = Notes([0.0, 0.0])
    layer(torch.tensor([[1.0, 10.0]]))
    assert given == [32.0], f"2 · 1 + 3 · 10 = 32 is this rank's summand; yours gave the exchange {given}"


# -- the heads of a rank -----------------------------------------------------------------------------------------------


def config(heads, kv_heads, head_dim=2):
    return replace(SHAPES["tiny-llama"], num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim)


@of("p12")
@pytest.mark.parametrize(
    ("heads", "kv_heads", "part", "parts", "queries", "keys"),
    [
        (8, 4, 1, 2, range(4, 8), range(2, 4)),  # divides
        (9, 3, 2, 3, range(6, 9), range(2, 3)),  # SmolLM2
        (4, 4, 3, 4, range(3, 4), range(3, 4)),  # every head has keys of its own
        (4, 1, 2, 4, range(2, 3), range(1)),  # Gemma 3 270M: one for all
        (8, 2, 2, 4, range(4, 6), range(1, 2)),  # two ranks hold each
        (8, 2, 1, 4, range(2, 4), range(1)),
        (6, 2, 0, 1, range(6), range(2)),  # alone
    ],
)
def test_a_rank_has_the_key_value_heads_that_its_query_heads_read(phase, heads, kv_heads, part, parts, queries, keys):
    found = heads_of(config(heads, kv_heads), part, parts)
    assert tuple(map(list, found)) == (list(queries), list(keys)), (
        f"of {heads} heads that read {kv_heads}, rank {part} of {parts} has {list(queries)}, and they read "
        f"{list(keys)}; yours: {list(found[0])}, {list(found[1])}"
    )


@of("p12")
@pytest.mark.parametrize(("heads", "kv_heads", "parts"), [(9, 3, 2), (10, 5, 4), (6, 3, 2)])
def test_heads_that_cannot_be_divided_evenly_are_refused(phase, heads, kv_heads, parts):
    try:
        found = heads_of(config(heads, kv_heads), 0, parts)
    except ConfigError as error:
        assert str(parts) in str(error), f"the refusal says among how many ranks: {parts}; yours: {error}"
    else:
        pytest.fail(f"{heads} heads that read {kv_heads} must be refused for {parts} ranks; yours: {found}")


@of("p12")
@pytest.mark.parametrize(
    ("part", "wanted"), [(1, [4, 5, 6, 7, 100, 101, 200, 201]), (2, [8, 9, 10, 11, 102, 103, 202, 203])]
)
def test_a_rank_has_its_rows_of_queries_keys_and_values(phase, part, wanted):
    q, k, v = (torch.arange(start, start + rows) for start, rows in ((0, 16), (100, 4), (200, 4)))
    found = cut_qkv(q, k, v, config(8, 2), part, 4).tolist()
    assert found == wanted, f"of 8 heads of width 2 that read 2, rank {part} of 4 has rows {wanted}; yours: {found}"


# -- a pipeline's schedule ---------------------------------------------------------------------------------------------


@of("p12")
@pytest.mark.parametrize(
    ("stages", "micro_batches", "rounds", "wanted"),
    [
        (2, 1, 1, ["a.", ".a"]),
        (2, 2, 1, ["ab.", ".ab"]),
        (3, 2, 1, ["ab..", ".ab.", "..ab"]),
        (2, 1, 2, ["a.a.", ".a.a"]),
        (2, 2, 2, ["abab.", ".abab"]),
        (2, 3, 2, ["abcabc.", ".abcabc"]),
        (1, 2, 2, ["abab"]),
    ],
)
def test_a_micro_batch_begins_when_the_first_stage_is_free_and_its_token_is_back(
    phase, stages, micro_batches, rounds, wanted
):
    table = timetable(stages, micro_batches, rounds)
    found = ["".join("." if each is None else "abc"[each] for each in row) for row in table]
    assert found == wanted, f"{stages} stages, {micro_batches} micro-batches, {rounds} rounds: {wanted}; yours: {found}"


@of("p12")
@pytest.mark.parametrize(
    ("table", "wanted"), [([[0, None], [None, 0]], 0.5), ([[0, 1, None], [None, 0, 1]], 1 / 3), ([[0, 1]], 0.0)]
)
def test_the_bubble_is_the_share_of_ticks_without_work(phase, table, wanted):
    found = bubble(table)
    assert found == pytest.approx(wanted), f"of {table}, {wanted:.2f} of the ticks have no work; yours says {found:.2f}"
