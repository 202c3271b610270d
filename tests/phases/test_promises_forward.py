"""The promises of p00's forward pass: each part small enough to compute by hand, and the whole against the engine."""

import math

import pytest
import torch
from torch import Tensor

from gradus.engine.request import Request, SamplingParams
from gradus.errors import ConfigError
from phases.p00_baseline import attention, embedding, forward, heads, rope, sampling
from phases.p00_baseline.weights import weights_of
from tests.phases.conftest import EVERY_FAMILY, build_engine, limits_of, next_logits, of, tiny_model
from tests.phases.drive import parting, run

SHAPE = "tiny-llama"


def numbers(found) -> object:
    """Convert a result to nested lists of rounded numbers, which are easy to compare."""
    if not isinstance(found, Tensor):
        return found
    return rounded(found.tolist())


def rounded(value):
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return round(value, 3) + 0.0 if isinstance(value, float) else value  # -0.0 is 0.0


def same(what: str, found, wanted) -> None:
    assert numbers(found) == rounded(wanted), f"{what} is {rounded(wanted)}; yours is {numbers(found)}"


def shaped(what: str, found, *shape: int) -> None:
    got = list(found.shape) if isinstance(found, Tensor) else found
    assert got == list(shape), f"{what} has the shape {list(shape)}; yours has {got}"


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# -- embedding and RMSNorm ---------------------------------------------------------------------------------------------

TABLE = torch.tensor([[0.0, 0.5], [1.0, 1.5], [2.0, 2.5], [3.0, 3.5]])


@of("p00")
def test_a_token_is_the_row_of_the_table_with_its_number(phase):
    found = embedding.embed(torch.tensor([3, 0, 3]), TABLE)
    same("what tokens 3, 0, 3 become", found, [[3.0, 3.5], [0.0, 0.5], [3.0, 3.5]])


@of("p00")
def test_rms_norm_divides_a_row_by_the_root_of_its_mean_square(phase):
    found = embedding.rms_norm(torch.tensor([[1.0, 7.0]]), torch.ones(2), 0.0)
    same("the row [1, 7] divided by √((1 + 49) / 2) = 5", found, [[0.2, 1.4]])


@of("p00")
def test_rms_norm_treats_each_row_by_itself(phase):
    found = embedding.rms_norm(torch.tensor([[1.0, 7.0], [10.0, 70.0], [3.0, -3.0]]), torch.ones(2), 0.0)
    same("rows divided by 5, 50 and 3", found, [[0.2, 1.4], [0.2, 1.4], [1.0, -1.0]])


@of("p00")
def test_rms_norm_multiplies_each_column_by_its_weight(phase):
    found = embedding.rms_norm(torch.tensor([[1.0, 7.0]]), torch.tensor([10.0, -1.0]), 0.0)
    same("the row [0.2, 1.4] times the weight [10, -1]", found, [[2.0, -1.4]])


@of("p00")
def test_rms_norm_adds_eps_inside_the_root(phase):
    found = embedding.rms_norm(torch.tensor([[1.0, 1.0], [0.0, 0.0]]), torch.ones(2), 3.0)
    same("with eps 3, the row [1, 1] divided by √(1 + 3), and [0, 0] by √3,", found, [[0.5, 0.5], [0.0, 0.0]])


@of("p00")
def test_rms_norm_leaves_the_rows_that_it_reads_as_they_are(phase):
    x = torch.tensor([[1.0, 7.0]])
    embedding.rms_norm(x, torch.ones(2), 0.0)
    same("what rms_norm was given, and what is added to later,", x, [[1.0, 7.0]])


# -- attention ---------------------------------------------------------------------------------------------------------


@of("p00")
def test_a_token_sees_itself_and_what_came_before(phase):
    found = attention.causal_mask(3)
    same("the mask of 3 tokens", found, [[True, False, False], [True, True, False], [True, True, True]])
    shaped("the mask of 1 token", attention.causal_mask(1), 1, 1)


@of("p00")
def test_softmax_makes_each_row_add_up_to_one(phase):
    scores = torch.tensor([[0.0, math.log(3.0)], [5.0, 5.0]])
    same("softmax of [0, log 3] and [5, 5]", attention.softmax(scores), [[0.25, 0.75], [0.5, 0.5]])


@of("p00")
def test_softmax_of_large_and_of_distant_rows_is_finite(phase):
    scores = torch.tensor([[1000.0, 1000.0], [-1000.0, -1000.0], [0.0, -torch.inf]])
    wanted = [[0.5, 0.5], [0.5, 0.5], [1.0, 0.0]]
    same("softmax of [1000, 1000], [-1000, -1000] and [0, -inf]", attention.softmax(scores), wanted)


@of("p00")
def test_softmax_takes_one_row_or_a_stack_of_matrices_too(phase):
    same("softmax of [0, log 3]", attention.softmax(torch.tensor([0.0, math.log(3.0)])), [0.25, 0.75])
    shaped("softmax of a tensor [2, 3, 4]", attention.softmax(normal(2, 3, 4)), 2, 3, 4)


@of("p00")
def test_the_first_token_takes_its_own_value_and_equal_scores_take_the_mean(phase):
    q, k = torch.zeros(3, 2), normal(3, 2)
    v = torch.tensor([[3.0, 0.0], [6.0, 9.0], [0.0, 0.0]])
    same("with queries of 0, the mean of the values so far", attention.attend(q, k, v), [[3, 0], [4.5, 4.5], [3, 3]])


@of("p00")
def test_a_later_token_counts_nothing_however_low_the_scores_before_it_are(phase):
    q, k, v = torch.tensor([[-300.0], [0.0]]), torch.tensor([[100.0], [0.0]]), torch.tensor([[1.0], [9.0]])
    found = attention.attend(q, k, v)[0]
    same("token 0 gives itself a score of -30,000 and must not see token 1: of the values 1 and 9, its", found, [1.0])


@of("p00")
def test_a_query_asks_and_a_key_answers(phase):
    q = torch.tensor([[9.0], [0.0], [9.0]])
    k = torch.tensor([[0.0], [9.0], [0.0]])
    v = torch.tensor([[1.0], [2.0], [6.0]])
    found = attention.attend(q, k, v)
    same("token 1 asks for nothing, and token 2 for the key of token 1: the result", found, [[1.0], [1.5], [2.0]])


@of("p00")
def test_scores_are_divided_by_the_root_of_the_heads_width(phase):
    q = torch.tensor([[0.0] * 4, [2 * math.log(3.0), 0.0, 0.0, 0.0]])
    k = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0] * 4])
    v = torch.tensor([[4.0] * 4, [0.0] * 4])
    found = attention.attend(q, k, v)[1]
    same("with scores 2 log 3 and 0, divided by √4, the mean of the values 4 and 0", found, [3.0] * 4)


# -- RoPE --------------------------------------------------------------------------------------------------------------


@of("p00")
def test_an_angle_is_position_times_speed(phase):
    found = rope.angles(3, head_dim=4, theta=100.0)
    wanted = [[0.0, 0.0], [1.0, 0.1], [2.0, 0.2]]
    same("with theta 100 and Dh 4 the speeds are 1 and 0.1, so the table of angles", found, wanted)


@of("p00")
def test_a_quarter_turn_brings_the_first_half_into_the_second(phase):
    x = torch.tensor([[[1.0, 2.0, 0.0, 0.0]]])
    found = rope.rotate(x, torch.tensor([[math.pi / 2, 0.0]]))
    same("pair 0 (numbers 0 and 2) turned by 90°, pair 1 not at all: [1, 2, 0, 0]", found, [[[0.0, 2.0, 1.0, 0.0]]])


@of("p00")
def test_the_second_half_turns_against_the_first(phase):
    x = torch.tensor([[[0.0, 0.0, 3.0, 4.0]]])
    found = rope.rotate(x, torch.tensor([[math.pi / 2, math.pi / 2]]))
    same("[0, 0, 3, 4] turned by 90°", found, [[[-3.0, -4.0, 0.0, 0.0]]])


@of("p00")
def test_every_head_of_a_token_turns_alike_and_every_token_by_its_own_angle(phase):
    x = torch.tensor([1.0, 0.0]).expand(2, 3, 2)
    found = rope.rotate(x, torch.tensor([[0.0], [math.pi / 2]]))
    same("three heads [1, 0] of two tokens, the second turned by 90°", found, [[[1.0, 0.0]] * 3, [[0.0, 1.0]] * 3])


@of("p00")
def test_a_turned_query_and_key_know_only_their_distance(phase):
    q, k = normal(1, 1, 8).expand(9, 1, 8), normal(1, 1, 8, seed=1).expand(9, 1, 8)
    turns = rope.angles(9, 8, 100.0)
    scores = rope.rotate(q, turns)[:, 0] @ rope.rotate(k, turns)[:, 0].T
    near = [float(scores[p + 2, p]) for p in range(7)]
    assert max(near) - min(near) < 1e-4, f"two positions apart the score is always the same; yours are {rounded(near)}"


@of("p00")
def test_angles_of_a_long_text_are_exact(phase):
    found = rope.angles(4100, head_dim=2, theta=1e4)[4097:, 0]
    same("at speed 1, what positions 4097 to 4099 turn by", found, [4097.0, 4098.0, 4099.0])


# -- heads -------------------------------------------------------------------------------------------------------------


@of("p00")
def test_a_row_is_cut_into_heads_of_neighbors(phase):
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [7.0, 8.0, 9.0, 10.0, 11.0, 12.0]])
    wanted = [[[1, 2], [3, 4], [5, 6]], [[7, 8], [9, 10], [11, 12]]]
    same("two rows of six cut into heads of two", heads.split(x, 2), wanted)


@of("p00")
def test_neighboring_query_heads_share_a_key_and_value_head(phase):
    q, k = torch.zeros(1, 4, 2), torch.zeros(1, 2, 2)
    v = torch.tensor([[[1.0, 1.0], [5.0, 5.0]]])
    found = heads.attend_grouped(q, k, v)
    shaped("the result for 1 token and 4 query heads of 2", found, 1, 4, 2)
    first = numbers(found[0, :, 0])
    assert first == [1, 1, 5, 5], f"query heads 0 and 1 read value head 0, 2 and 3 head 1: [1, 1, 5, 5]; yours: {first}"


@of("p00")
def test_each_head_attends_by_itself(phase):
    q, k, v = normal(5, 6, 4), normal(5, 2, 4, seed=1), normal(5, 2, 4, seed=2)
    found = heads.attend_grouped(q, k, v)
    shaped("the result for 5 tokens and 6 query heads of 4", found, 5, 6, 4)
    for h in range(6):
        alone = attention.attend(q[:, h], k[:, h // 3], v[:, h // 3])
        assert torch.allclose(found[:, h], alone), f"query head {h} of 6 is attention with key and value head {h // 3}"


# -- sampling ----------------------------------------------------------------------------------------------------------


@of("p00")
def test_the_largest_logits_stay_in_their_places(phase):
    logits = torch.tensor([1.0, 4.0, -2.0, 3.0])
    same("of [1, 4, -2, 3] the top 2", sampling.keep_top(logits, 2), [-math.inf, 4, -math.inf, 3])
    same("of [1, 4, -2, 3] the top 4", sampling.keep_top(logits, 4), [1, 4, -2, 3])
    same("what keep_top was given, once it has run,", logits, [1, 4, -2, 3])


@of("p00")
def test_a_draw_takes_the_token_whose_piece_holds_it(phase):
    logits = torch.tensor([0.2, 0.5, 0.3]).log()
    draws = [0.0, 0.19, 0.21, 0.69, 0.71, 0.99]
    found = [sampling.sample(logits, 1.0, 3, draw) for draw in draws]
    wanted = [0, 0, 1, 1, 2, 2]
    assert found == wanted, f"pieces end at 0.2, 0.7 and 1, so draws {draws} take {wanted}; yours takes {found}"


@of("p00")
def test_a_token_that_was_cut_off_is_never_drawn(phase):
    logits = torch.tensor([-1.0, 2.0, 0.0, 2.0, -1.0])
    found = [sampling.sample(logits, 1.0, 2, draw) for draw in (0.0, 0.4, 0.6, 1 - 2**-53)]
    assert found == [1, 1, 3, 3], (
        "of the top two, tokens 1 and 3, the draws 0, 0.4, 0.6 and one just below 1 (in float32: 1) take [1, 1, 3, 3]; "
        f"yours takes {found}"
    )


@of("p00")
def test_a_low_temperature_sharpens_and_a_high_one_flattens(phase):
    logits = torch.tensor([0.0, math.log(3.0)])
    for temperature, share in ((0.5, 0.1), (1.0, 0.25), (1e6, 0.5)):
        drawn = [sampling.sample(logits, temperature, 2, draw / 1000 + 0.0005) for draw in range(1000)]
        first = drawn.count(0) / 1000
        assert abs(first - share) < 0.002, (
            f"at temperature {temperature:g} logits 0 and log 3 give token 0 a share of {share:g}; yours: {first:g}"
        )


@of("p00")
def test_the_highest_draw_still_takes_a_token_of_the_vocabulary(phase):
    for seed in range(20):
        found = sampling.sample(normal(1000, seed=seed), 1.0, 1000, 1 - 2**-53)
        assert found in range(1000), f"of 1000 tokens, 0 to 999, the highest draw took {found}"


# -- the whole ---------------------------------------------------------------------------------------------------------


@of("p00")
@pytest.mark.parametrize("length", [1, 2, 23])
def test_each_row_of_logits_is_the_engines(phase, length):
    model, tokens = tiny_model(SHAPE), [(7 * i) % 320 for i in range(length)]
    found = forward.forward(torch.tensor(tokens), weights_of(model))
    shaped(f"the result for {length} tokens and a vocabulary of 320", found, length, 320)
    for row in range(length):
        off = float((found[row] - next_logits(model, tokens[: row + 1])).abs().max())
        assert off < 1e-4, f"row {row} of {length} has the engine's logits but for rounding; yours are off by {off:.2g}"


@of("p00")
def test_a_text_is_the_engines_token_for_token(phase):
    prompt, count = [5, 6, 7, 200], 24
    params = SamplingParams(max_tokens=count, ignore_eos=True)
    wanted = run(build_engine(phase, SHAPE), [Request.create("a", prompt, params, limits_of(SHAPE))])["a", 0].tokens
    written = forward.write(prompt, weights_of(tiny_model(SHAPE)), sampling.greedy)
    found = tuple(token for token, _ in zip(written, range(count), strict=False))
    assert found == wanted, parting(prompt, found, wanted)
    assert len(set(wanted)) > 3, "and not one token over and over"


@of("p00")
def test_a_drawn_text_has_the_token_whose_piece_holds_each_draw(phase):
    model, tokens, draws = tiny_model(SHAPE), [5, 6, 7, 200], [0.05, 0.9, 0.5, 0.999, 0.3, 0.7]
    coming = iter(draws)
    written = forward.write(tokens, weights_of(model), lambda logits: sampling.sample(logits, 0.8, 20, next(coming)))
    found = tuple(token for _, token in zip(draws, written, strict=False))
    wanted = list(tokens)
    for draw in draws:
        best = next_logits(model, wanted).double().topk(20)
        ids = best.indices.sort().values
        pieces = (next_logits(model, wanted)[ids].double() / 0.8).softmax(0).cumsum(0)
        wanted.append(int(ids[int((pieces <= draw).sum())]))
    assert found == tuple(wanted[4:]), parting(tokens, found, tuple(wanted[4:]))


@of("p00")
@pytest.mark.parametrize("shape", [shape for shape in EVERY_FAMILY if shape != SHAPE])
def test_a_model_that_is_more_than_plain_llama_is_refused(phase, shape):
    with pytest.raises(ConfigError, match="runs plain Llama, such as smollm2-135m"):
        weights_of(tiny_model(shape))
