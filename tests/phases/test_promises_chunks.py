"""The promises of p09's second page: a chunk's FLOPs to the last one, and a prompt cut to the token.

Each case is small enough to work out by hand, except where large numbers must stay exact.
"""

from dataclasses import astuple

import pytest

from gradus.errors import ConfigError
from gradus.models.shapes import SHAPES
from phases.p09_triton_attention.chunks import Rates, Sizes, cut, even, fitted, flops, most_tokens, pairs, seconds
from tests.phases.conftest import of

SMALL = Sizes(weights=100, width=5)  # a token costs 200, a pair 20: at position p, 200 + 20 (p + 1)
LLAMA = Sizes(weights=6_979_321_856, width=131_072)


MOST_READS = 1_000_000  # of sizes, for one `cut`: trying every length of every chunk of 128,000 tokens takes a quarter


class Asked:
    """Sizes that stop an endless loop, which would fill the memory before the check's time is up."""

    def __init__(self, sizes):
        self.sizes, self.times = sizes, 0

    def __getattr__(self, name):
        self.times += 1
        assert self.times < MOST_READS, "cut goes on and on: where must it start again, and when is nothing left?"
        return getattr(self.sizes, name)


@of("p09")
@pytest.mark.parametrize(
    ("start", "count", "wanted", "why"),
    [
        (0, 1, 1, "the first token sees itself"),
        (0, 4, 10, "1 + 2 + 3 + 4"),
        (7, 1, 8, "the token at position 7 sees the 7 before it, and itself"),
        (7, 3, 27, "8 + 9 + 10"),
        (5, 0, 0, "no token"),
    ],
)
def test_a_token_sees_itself_and_all_before_it(phase, start, count, wanted, why):
    found = pairs(start, count)
    assert found == wanted, f"pairs({start}, {count}): {why}: {wanted}; yours: {found}"


@of("p09")
@pytest.mark.parametrize(
    ("start", "count", "wanted", "why"),
    [
        (0, 1, 220, "200 for 100 weights, 4 · 5 for one pair"),
        (0, 4, 1000, "4 · 200 for the weights, 10 pairs of 20"),
        (7, 3, 1140, "3 · 200 for the weights, 27 pairs of 20"),
    ],
)
def test_a_chunk_costs_its_weights_and_its_pairs(phase, start, count, wanted, why):
    found = flops(SMALL, start, count)
    assert found == wanted, f"weights 100, width 5, chunk ({start}, {count}): {why}: {wanted}; yours: {found}"


@of("p09")
def test_the_chunks_of_a_prompt_cost_what_the_prompt_costs(phase):
    found = [flops(SMALL, start, count) for start, count in ((0, 6), (6, 1), (7, 13))]
    whole = flops(SMALL, 0, 20)
    assert sum(found) == whole, f"20 tokens cost {whole}; yours in chunks of 6, 1 and 13: {found}, {sum(found)} in all"


@of("p09")
@pytest.mark.parametrize(
    ("start", "limit", "wanted", "why"),
    [
        (0, 1000, 4, "4 tokens cost just 1000"),
        (0, 999, 3, "4 tokens cost 1000, one too many"),
        (0, 1001, 4, "5 tokens cost 1300"),
        (7, 1140, 3, "from position 7 on, 3 tokens cost just 1140"),
        (7, 1139, 2, "from position 7 on, 3 tokens cost 1140, one too many"),
        (90, 2020, 1, "the token at 90 costs just 2020"),
        (90, 2019, 1, "the token at 90 costs 2020, but a prompt must advance"),
        (90, 0, 1, "nothing is left of the limit, but a prompt must advance"),
    ],
)
def test_a_chunk_is_as_long_as_the_limit_allows(phase, start, limit, wanted, why):
    found = most_tokens(SMALL, start, limit)
    assert found == wanted, f"from {start} on, limit {limit}: {why}: {wanted}; yours: {found}"


@of("p09")
@pytest.mark.parametrize(("start", "count"), [(0, 8192), (110_000, 4096), (131_071, 1), (999_999_937, 4096)])
def test_large_numbers_are_exact(phase, start, count):
    """Llama-3.1-8B's: floating point has 53 bits, and these squares have 70 and more."""
    limit = flops(LLAMA, start, count)
    for what, given, wanted in (("just", limit, count), ("one too many for a limit of", limit - 1, max(1, count - 1))):
        found = most_tokens(LLAMA, start, given)
        assert found == wanted, (
            f"Llama-3.1-8B from {start} on: {count} tokens cost {what} {given}: {wanted}; yours: {found}. "
            "Integers stay exact, floats do not"
        )


@of("p09")
@pytest.mark.parametrize(
    ("start", "end", "limit", "wanted", "why"),
    [
        (0, 10, 1000, [(0, 4), (4, 3), (7, 2), (9, 1)], "4 cost 1000, then 3 cost 960, then 2 cost 740, the rest 400"),
        (7, 10, 5000, [(7, 3)], "the limit allows more than is left"),
        (7, 13, 1140, [(7, 3), (10, 2), (12, 1)], "the prefix cache has positions 0 to 6"),
        (40, 43, 100, [(40, 1), (41, 1), (42, 1)], "each token alone is over the limit"),
        (6, 6, 1000, [], "nothing is left"),
        (0, 4, 1000, [(0, 4)], "just one chunk, and no empty one behind it"),
    ],
)
def test_chunks_get_shorter_and_leave_nothing_out(phase, start, end, limit, wanted, why):
    found = list(map(tuple, cut(Asked(SMALL), start, end, limit)))
    assert found == wanted, f"[{start}, {end}), limit {limit}: {why}: {wanted}; yours: {found}"


@of("p09")
def test_no_chunk_could_take_another_token(phase):
    limit = flops(LLAMA, 0, 8192)
    chunks = cut(Asked(LLAMA), 0, 128_000, limit)
    assert sum(count for _, count in chunks) == 128_000, "the chunks are the prompt"
    for start, count in chunks[:-1]:
        least, most = flops(LLAMA, start, count), flops(LLAMA, start, count + 1)
        assert least <= limit < most, f"({start}, {count}) costs {least}, one more {most}; the limit is {limit}"


@of("p09")
def test_attention_overtakes_the_weights_at_the_even_position(phase):
    found = even(SMALL)
    assert found == 10, f"10 keys cost 200, as 100 weights do: position 10; yours: {found}"
    found = even(Sizes.of(SHAPES["llama-3.2-1b"]))
    assert found == 14_848, f"Llama-3.2-1B has 973,078,528 weights and a width of 32,768: 14,848; yours: {found}"


@of("p09")
def test_a_prompt_takes_the_time_of_both_kinds_of_work(phase):
    found = seconds(SMALL, 4, Rates(matrices=400, attention=50))
    assert found == 6, f"800 FLOPs at 400/s and 200 at 50/s: 2 + 4 s; yours: {found}"


@of("p09")
def test_rates_are_found_again_from_the_times_that_they_give(phase):
    rates = Rates(matrices=6e14, attention=4e14)
    found = fitted(LLAMA, [(tokens, seconds(LLAMA, tokens, rates)) for tokens in (8_000, 32_000, 120_000)])
    assert astuple(found) == pytest.approx((6e14, 4e14), rel=1e-3)


@of("p09")
@pytest.mark.parametrize(
    ("measured", "says"),
    [([(8, 1.0), (8, 1.1)], "1 length gives no two rates"), ([(8, 1.0), (16, 1.5)], "do not grow")],
)
def test_times_that_say_nothing_of_two_rates_are_refused(phase, measured, says):
    with pytest.raises(ConfigError, match=says):
        fitted(SMALL, measured)


@of("p09")
def test_a_model_with_windows_is_refused(phase):
    with pytest.raises(ConfigError, match="this has windows"):
        Sizes.of(SHAPES["tiny-mistral"])
