"""The promises of p12's parts: products that meet in a sum, the heads of a rank, a token that ranks draw together, a
pipeline's schedule.

Each case is small enough to work out by hand.
"""

from contextlib import suppress
from dataclasses import dataclass, replace

import pytest
import torch
from torch.nn import functional as F

from gradus.errors import ConfigError
from gradus.models import SHAPES
from gradus.models.layers import MatrixId
from phases.p12_parallelism.draw import MOST_BYTES, draw
from phases.p12_parallelism.heads import cut_qkv, heads_of
from phases.p12_parallelism.linear import RowParallel, all_reduce, column_part, row_part
from phases.p12_parallelism.place import Place
from phases.p12_parallelism.schedule import bubble, timetable
from tests.phases.conftest import of

# -- products that meet in a sum ---------------------------------------------------------------------------------------


@dataclass
class Gathers:
    """An exchange whose ranks hold these values, whatever is given in."""

    values: list

    @property
    def place(self):
        return Place(0, len(self.values))

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
@pytest.mark.parametrize(("heads", "kv_heads", "parts"), [(9, 3, 2), (10, 5, 4), (6, 3, 2), (6, 2, 3), (12, 3, 2)])
def test_heads_that_cannot_be_divided_evenly_are_refused(phase, heads, kv_heads, parts):
    found, refusal = None, None
    try:
        found = heads_of(config(heads, kv_heads), 0, parts)
    except ConfigError as error:
        refusal = str(error)
    rule = f"{heads} heads that read {kv_heads} must be refused for {parts} ranks: they are no whole groups, nor in one"
    assert refusal is not None, f"{rule}; yours: {found}"
    assert str(parts) in refusal, f"the refusal says among how many ranks: {parts}; yours: {refusal}"


@of("p12")
@pytest.mark.parametrize(
    ("part", "wanted"), [(1, [4, 5, 6, 7, 100, 101, 200, 201]), (2, [8, 9, 10, 11, 102, 103, 202, 203])]
)
def test_a_rank_has_its_rows_of_queries_keys_and_values(phase, part, wanted):
    q, k, v = (torch.arange(start, start + rows) for start, rows in ((0, 16), (100, 4), (200, 4)))
    found = cut_qkv(q, k, v, config(8, 2), part, 4).tolist()
    assert found == wanted, f"of 8 heads of width 2 that read 2, rank {part} of 4 has rows {wanted}; yours: {found}"


# -- a token that ranks draw together ----------------------------------------------------------------------------------


class Given(Exception):
    """A rank has given its part away."""


@dataclass
class Meeting:
    """Keeps what ranks give away. The first call of `draw` on each rank gives; a second one, with Met, gets it all."""

    given: list
    place: Place

    def gather(self, x):
        self.given.append(x)
        raise Given


@dataclass
class Met:
    given: list
    place: Place
    calls: int = 0

    def gather(self, x):
        self.calls += 1
        assert self.calls == 1, f"one exchange suffices; yours has {self.calls}"
        return torch.stack(self.given)


def drawn(widths, scores, noise, top_k):
    """Cut rows of scores into parts of these widths, and return the ids that each rank gets. Checks what ranks give."""
    firsts = [sum(widths[:part]) for part in range(len(widths))]
    parts = list(zip(scores.split(widths, dim=1), noise.split(widths, dim=1), firsts, strict=True))
    given, places = [], [Place(part, len(parts)) for part in range(len(parts))]
    for place, each in zip(places, parts, strict=True):
        with suppress(Given):
            draw(Meeting(given, place), *each, top_k)
    assert len(given) == len(parts), "no rank knows the others' scores: each must gather once; yours did not"
    sizes, limit = [x.nbytes for x in given], MOST_BYTES * max(1, top_k) * len(scores)
    assert len({tuple(x.shape) for x in given}) == 1, (
        f"all ranks give tensors of one shape; of {widths} tokens yours gave {[list(x.shape) for x in given]}"
    )
    assert max(sizes) <= limit, f"{len(scores)} rows with top_k {top_k} may give {limit} bytes; yours gave {max(sizes)}"
    return [draw(Met(given, place), *each, top_k).tolist() for place, each in zip(places, parts, strict=True)]


def check_drawn(widths, scores, noise, top_k, wanted, why):
    found = drawn(widths, torch.tensor(scores), torch.tensor(noise), top_k)
    assert found == [wanted] * len(widths), f"{why}: {wanted} on every rank; yours: {found}"


@of("p12")
def test_the_largest_score_of_all_ranks_is_drawn(phase):
    scores = [[1.0, 5.0, 2.0, 3.0], [0.0, 1.0, 2.0, 4.0], [-5.0, -3.0, -4.0, -6.0]]
    check_drawn([2, 2], scores, [[0.0] * 4] * 3, 0, [1, 3, 1], f"of {scores}, cut in two, the largest are")


@of("p12")
def test_noise_decides_among_all_tokens(phase):
    scores, noise = [[1.0, 5.0, 2.0, 3.0]], [[0.0, -4.0, 0.5, 3.0]]
    check_drawn([2, 2], scores, noise, 0, [3], f"{scores} and noise {noise} have the largest sum at")
    check_drawn([2, 2], scores, noise, 1, [1], f"with top_k 1 no noise counts: of {scores} the largest is")


@of("p12")
@pytest.mark.parametrize("widths", [[2, 2, 1], [2, 2, 0], [1, 1, 1]])
def test_ranks_with_fewer_tokens_take_part(phase, widths):
    scores = [[-1.0 - token for token in range(sum(widths))], [-9.0 + token for token in range(sum(widths))]]
    wanted = [0, sum(widths) - 1]
    for top_k in (0, 2, 8):
        why = f"parts of {widths} tokens, all scores below 0, top_k {top_k}"
        check_drawn(widths, scores, [[0.0] * sum(widths)] * 2, top_k, wanted, why)


@of("p12")
def test_the_top_k_are_those_of_the_whole_row(phase):
    scores, noise = [[9.0, 8.0, 7.0, 1.0, 2.0, 3.0]], [[0.0, 0.0, 5.0, 20.0, 20.0, 20.0]]
    why = f"the 3 largest of {scores} are tokens 0 to 2, all on rank 0, and with noise {noise} the largest of these is"
    check_drawn([3, 3], scores, noise, 3, [2], why)
    check_drawn([3, 3], scores, noise, 2, [0], f"the 2 largest of {scores} are tokens 0 and 1; with noise {noise}")


@of("p12")
def test_of_equal_scores_and_of_equal_sums_the_lowest_id_counts(phase):
    check_drawn([2, 2], [[1.0, 7.0, 7.0, 7.0]], [[0.0] * 4], 0, [1], "of equal scores the lowest id is drawn")
    why = "of [7, 7, 7, 7] the 2 largest are tokens 0 and 1, whatever the noise [0, 0, 5, 5] of the others"
    check_drawn([2, 2], [[7.0] * 4], [[0.0, 0.0, 5.0, 5.0]], 2, [0], why)
    why = "scores [3, 1, 5, 4] and noise [2, 0, 0, 1] have the equal sums 5 at tokens 0, 2 and 3"
    check_drawn([2, 2], [[3.0, 1.0, 5.0, 4.0]], [[2.0, 0.0, 0.0, 1.0]], 4, [0], why)


@of("p12")
def test_neither_ids_nor_scores_are_rounded_on_their_way(phase):
    scores = torch.zeros(1, 100_003)
    scores[0, 99_999], scores[0, 7] = 1.0001, 1.0
    found = drawn([50_002, 50_001], scores, torch.zeros_like(scores), 0)
    assert found == [[99_999]] * 2, (
        f"token 99,999 has the score 1.0001 and token 7 has 1: 99,999 is drawn on both ranks; yours: {found}"
    )


@of("p12")
@pytest.mark.parametrize("top_k", [0, 1, 5, 40])
def test_ranks_draw_what_one_that_has_the_whole_row_would(phase, top_k):
    torch.manual_seed(top_k)
    scores, noise = torch.randn(16, 67).round(decimals=1), torch.randn(16, 67)
    rows = scores.sort(dim=1, descending=True, stable=True).indices[:, : top_k or 67]
    sums = torch.full_like(scores, -torch.inf).scatter(1, rows, (scores + noise).gather(1, rows))
    wanted = sums.argmax(dim=1).tolist()
    found = drawn([23, 23, 21], scores, noise, top_k)
    assert found == [wanted] * 3, f"16 random rows of 67 tokens on 3 ranks, top_k {top_k}: {wanted}; yours: {found}"


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
        (4, 2, 2, ["ab..ab...", ".ab..ab..", "..ab..ab.", "...ab..ab"]),
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
    ("table", "wanted"),
    [
        ([[0, None], [None, 0]], 0.5),
        ([[0, 1, None], [None, 0, 1]], 1 / 3),
        ([[0, 1, 0, 1, None], [None, 0, 1, 0, 1]], 0.2),  # two rounds
        ([[0, 1]], 0.0),
    ],
)
def test_the_bubble_is_the_share_of_ticks_without_work(phase, table, wanted):
    found = bubble(table)
    assert found == pytest.approx(wanted), f"of {table}, {wanted:.2f} of the ticks have no work; yours says {found:.2f}"
