"""Run by test_asked_sampling.py in a process of its own, where Triton interprets the kernels of `sample_asked`.

A row that narrows its choice takes the interpreter a quarter of a second, so rows are few. A vocabulary of 3001 has two
blocks and more groups of 32 tokens than are looked into; one of 9001, more groups of 128.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from triton.runtime import interpreter

from gradus.engine.plan import Admission
from gradus.engine.request import SamplingParams
from gradus.errors import ConfigError
from gradus.kernels.sampling import narrowing
from gradus.kernels.sampling.seen_words import COUNT, ENTRY_SHIFT, FULL, MASKED
from gradus.sampling.kernel_sampler import KernelSampler
from tests.sampling.cases import EOS, NARROWINGS, Ask, asks, check, define, shaped

CPU = torch.device("cpu")
WAYS = ["groups", "whole row"]


@pytest.fixture(autouse=True)
def _poisoned():
    torch.set_deterministic_debug_mode("error")  # torch.empty then gives NaN
    yield
    torch.set_deterministic_debug_mode("default")


@pytest.fixture
def ways(monkeypatch) -> list[str]:
    """Where thresholds have been looked for, in order."""
    seen: list[str] = []

    def note(way, function):
        return lambda *arguments: (seen.append(way), function(*arguments))[1]

    for way, name in zip(WAYS, ("threshold_among", "threshold_of_row"), strict=True):
        monkeypatch.setattr(narrowing, name, note(way, getattr(narrowing, name)))
    return seen


def sampler_for(batch: list[Ask]) -> KernelSampler:
    return KernelSampler(len(batch[0].logits), CPU, len(batch))


def ask(row, prompt=(1,), output=(), **params) -> Ask:
    return Ask(
        np.asarray(row, np.float32), SamplingParams(**({"temperature": 1.0, "seed": 5} | params)), prompt, output
    )


def spread(vocab_size: int, step: int) -> np.ndarray:
    """Every step-th token has the row's largest logit, the others less."""
    return np.where(np.arange(vocab_size) % step == 0, 1.0, -1.0)


# -- thresholds --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "params", "looked_into"),
    [
        (shaped("normal", 3001, 1), dict(top_k=20), 1),
        (shaped("peaked", 3001, 1), dict(top_p=0.9), 1),
        (shaped("grid", 3001, 1), dict(min_p=0.5), 1),
        (shaped("normal", 1001, 2), dict(top_p=0.999), 1),  # all of the row lies in the groups
        (shaped("normal", 3001, 2), dict(top_k=300), 2),  # more than 64 groups have one of these 300
        (shaped("normal", 3001, 2), dict(top_p=0.95), 2),
        (shaped("flat", 3001, 0), dict(top_p=0.95), 2),
        (spread(3001, 30), dict(top_k=20), 2),  # 101 tokens tie for the first place, in all groups of 32
        (spread(9001, 100), dict(top_k=20), 2),  # 91 tokens tie, in all groups of 128
        (shaped("normal", 9001, 4), dict(top_k=4000, top_p=0.7, min_p=0.01), 2),
        (shaped("normal", 9001, 5), dict(top_k=4000, min_p=0.5), 2),
        (shaped("two", 9001, 3), dict(top_p=0.5), 2),
        (shaped("holes", 9001, 3), dict(top_k=6000), 2),  # so many are not finite
    ],
)
def test_a_threshold_is_found_wherever_it_lies(ways, row, params, looked_into):
    batch = [ask(row, **params)]
    check(sampler_for(batch), batch)
    assert ways == WAYS[:looked_into]


def test_a_floor_below_the_groups_needs_no_search_of_the_row(ways):
    """Min-p alone: the threshold is known, and only the draw needs the whole row."""
    batch = [ask(shaped("normal", 9001, 5), min_p=1e-3)]
    check(sampler_for(batch), batch)
    assert ways == WAYS[:1]


@pytest.mark.parametrize(("shape", "vocab_size"), [("grid", 130), ("holes", 1001), ("two", 40)])
def test_every_narrowing_follows_the_definition(shape, vocab_size):
    batch = [ask(shaped(shape, vocab_size, seed), seed=seed, **each) for seed, each in enumerate(NARROWINGS)]
    check(sampler_for(batch), batch)


@settings(max_examples=12)
@given(st.sampled_from([40, 130, 1001]).flatmap(lambda vocab_size: asks(vocab_size, poisons=True)))
def test_anything_that_may_be_asked_follows_the_definition(case):
    check(sampler_for([case]), [case])


@pytest.mark.parametrize(
    "params", [dict(top_k=1), dict(top_k=10**6), dict(top_p=1e-9), dict(min_p=1.0), dict(temperature=1e-30, top_p=0.5)]
)
def test_extreme_parameters_on_rows_of_every_shape(params):
    rows = [shaped("flat", 130, 0), shaped("one-hot", 130, 1), shaped("normal", 130, 2)]
    batch = [ask(row, seed=seed, **params) for seed, row in enumerate(rows)]
    check(sampler_for(batch), batch)


def test_draws_meet_every_token_that_is_kept():
    """Three equal tokens, far apart: twelve seeds draw all of them."""
    row = np.zeros(130)
    row[[3, 64, 129]] = 2.0
    batch = [ask(row, seed=seed, top_k=2) for seed in range(12)]
    assert set(check(sampler_for(batch), batch)) == {3, 64, 129}


# -- rows beside rows --------------------------------------------------------------------------------------------------


def mixture() -> list[Ask]:
    row = shaped("normal", 1001, 8)
    poisoned = row.copy()
    poisoned[7] = math.nan
    endless = row.copy()
    endless[1000] = math.inf
    return [
        ask(row),
        ask(row, temperature=0.0),
        ask(row, top_k=5, logprobs=5),
        ask(poisoned, top_p=0.9, logprobs=1),
        ask(row, temperature=0.0, logprobs=0, repetition_penalty=1.3, prompt=(1, int(row.argmax()))),
        ask(endless, min_p=0.1),
        ask(row, seed=6, frequency_penalty=1.5, output=(4, 4, 9), logit_bias={900: 6.0, 4: 1.0}, logprobs=20),
        ask(np.full(1001, -math.inf), top_k=3),
    ]


def test_a_mixture_gives_each_row_the_token_that_it_has_alone():
    batch = mixture()
    alone = [check(sampler_for([each]), [each])[0] for each in batch]
    order = [6, 0, 3, 5, 1, 7, 4, 2]
    assert check(sampler_for(batch), [batch[i] for i in order], slots=[5, 0, 7, 2, 1, 6, 4, 3]) == [
        alone[i] for i in order
    ]
    assert [token < 0 for token in alone] == [False, False, False, True, False, True, False, True]


def drawn(sampler: KernelSampler, batch: list[Ask], slots: list[int], *, full: bool, logits: torch.Tensor):
    """The tokens of `draw_slots`, and what it leaves for each slot, 99 where nothing."""
    sampler.admit([Admission(slot, each.request, 0, each.prompt) for slot, each in zip(slots, batch, strict=True)])
    latest = torch.full((sampler.table.rows, 1), 99)
    slots = [*slots, *[sampler.table.rows - 1] * (len(logits) - len(slots))]
    positions = torch.tensor([each.position for each in batch] + [0] * (len(logits) - len(batch)), dtype=torch.int32)
    draw = sampler.draw_slots(logits, torch.tensor(slots, dtype=torch.int32), positions, latest, full=full)
    return draw.tokens.tolist(), latest[:, 0].tolist()


def test_rows_that_ask_for_nothing_get_exactly_the_token_of_the_plain_draw():
    rows = [shaped(shape, 3001, seed) for seed, shape in enumerate(("normal", "flat", "grid", "holes", "peaked"))]
    rows[4][17] = math.nan
    temperatures = (1.0, 0.5, 0.0, 100.0, 1.0)
    batch = [ask(row, seed=7, temperature=each) for row, each in zip(rows, temperatures, strict=True)]
    logits = torch.from_numpy(np.stack(rows))
    slots = [3, 0, 4, 1, 2]
    one, other = (drawn(sampler_for(batch), batch, slots, full=full, logits=logits) for full in (False, True))
    assert one == other
    tokens, latest = one
    assert tokens[4] == -1 and 0 <= latest[2] < 3001  # what is kept can be looked up
    assert [latest[slot] for slot in slots[:4]] == tokens[:4]


def test_padding_is_drawn_as_well_and_disturbs_nothing():
    batch = [ask(shaped("normal", 130, 1), top_k=3), ask(shaped("normal", 130, 2), presence_penalty=1.0)]
    sampler = KernelSampler(130, CPU, 5)
    padded = torch.from_numpy(np.stack([each.logits for each in [*batch, batch[0], batch[0]]]))
    tokens, latest = drawn(sampler, batch, [4, 2], full=True, logits=padded)
    assert tokens[:2] == check(KernelSampler(130, CPU, 5), batch, slots=[4, 2])
    assert tokens[2] == tokens[3] == batch[0].logits.argmax() == latest[-1]
    assert [latest[slot] for slot in range(5)] == [99, 99, tokens[1], 99, tokens[0]]
    counts = (sampler.table.allocate() & COUNT).nonzero().tolist()
    assert counts == [[2, tokens[1]]]


def test_logits_of_16_bits_in_a_padded_matrix_are_read_as_they_are():
    batch = [ask(shaped("normal", 1001, 1), top_p=0.8, logprobs=3), ask(shaped("grid", 1001, 2), top_k=9, logprobs=1)]
    wide = torch.full((2, 1008), math.nan, dtype=torch.float16)
    wide[:, :1001] = torch.from_numpy(np.stack([each.logits for each in batch]))
    rounded = [Ask(row.numpy(), each.params) for row, each in zip(wide[:, :1001].float(), batch, strict=True)]
    tokens, _ = drawn(sampler_for(batch), batch, [0, 1], full=True, logits=wide[:, :1001])
    assert tokens == check(sampler_for(rounded), rounded)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_any_number_of_rows_is_launched_with_pointers_of_one_alignment(monkeypatch, rows):
    """Triton compiles a kernel anew for a pointer that is no multiple of 16 bytes, perhaps while it serves."""
    found, launch = [], interpreter.GridExecutor.__call__

    def noted(self, *arguments, **options):
        tensors = [leaf for each in arguments for leaf in (each if isinstance(each, tuple) else (each,))]
        found.extend(each.data_ptr() % 16 for each in tensors if isinstance(each, torch.Tensor))
        return launch(self, *arguments, **options)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", noted)
    batch = [ask(shaped("normal", 2055, row), logprobs=1, top_k=2) for row in range(rows)]
    check(sampler_for(batch), batch)
    assert len(found) > 50 and not any(found)


# -- what adjusts, what is reported, what ends -------------------------------------------------------------------------


def test_penalties_bias_and_bans_change_the_logits_of_their_tokens_alone():
    row = shaped("grid", 130, 4)
    best = [int(token) for token in np.argsort(-row, kind="stable")[:4]]
    known = dict(prompt=(1, best[0]), output=(best[1], best[1], best[2]))
    batch = [
        ask(row, temperature=0.0, repetition_penalty=2.0, **known),
        ask(row, repetition_penalty=0.5, top_k=2, **known),
        ask(row, temperature=0.0, frequency_penalty=1.0, presence_penalty=0.5, **known),
        ask(row, presence_penalty=-2.0, min_p=0.3, **known),
        ask(row, temperature=0.0, logit_bias={129: 100, best[0]: -100}),
        ask(row, temperature=0.0, min_tokens=9, stop_token_ids=best),
        ask(row, temperature=0.0, min_tokens=1, stop_token_ids=best, output=(4,)),  # the ban is over
        ask(row, min_tokens=1, stop_token_ids=best, logit_bias={best[3]: 50}, top_p=0.9, frequency_penalty=-1.0),
    ]
    tokens = check(sampler_for(batch), batch)
    assert tokens[4] == 129 and tokens[5] not in best and tokens[6] == best[0]


def test_a_masked_slot_draws_as_if_other_tokens_had_no_logit_and_reports_the_models_own():
    vocab_size = 1001
    legal = np.random.default_rng(3).random((4, vocab_size)) < 0.02
    legal[3] = False
    rows = [shaped("normal", vocab_size, number) for number in range(4)]
    settings = [dict(temperature=0.0), dict(top_p=0.9), dict(frequency_penalty=0.5, logit_bias={5: 100}), {}]
    batch = [ask(row, seed=number, logprobs=2, **settings[number]) for number, row in enumerate(rows)]
    cut = [
        ask(np.where(legal[number], row, -np.inf), seed=number, **settings[number]) for number, row in enumerate(rows)
    ]

    sampler = sampler_for(batch)
    sampler.admit([Admission(slot, each.request, 0, each.prompt) for slot, each in enumerate(batch)])
    sampler.table.adjusts[:4] |= MASKED
    masks = sampler.table.allocate_masks()
    bits = np.zeros((4, 32 * masks.shape[1]), np.uint8)
    bits[:, :vocab_size] = legal
    masks[:4] = torch.from_numpy(np.packbits(bits, axis=1, bitorder="little").view(np.int32))
    logits = torch.from_numpy(np.stack(rows))
    slots, positions = torch.arange(4, dtype=torch.int32), torch.tensor([each.position for each in batch])
    draw = sampler.draw_slots(logits, slots, positions, full=True)

    other = sampler_for(cut)
    expected, _ = drawn(
        other, cut, [0, 1, 2, 3], full=True, logits=torch.from_numpy(np.stack([each.logits for each in cut]))
    )
    assert draw.tokens.tolist() == expected and expected[3] == -1
    assert all(legal[row, token] for row, token in enumerate(expected[:3]))
    for row in range(3):
        own = torch.from_numpy(rows[row]).log_softmax(0)
        sampled, *best = draw.pairs[row, :3, 1].contiguous().view(torch.float32).tolist()
        np.testing.assert_allclose([sampled, *best], [own[expected[row]], *own.topk(2).values], rtol=1e-4)


def test_a_drawn_token_counts_for_the_next_draw():
    row = np.zeros(40)
    row[:4] = [1.5, 1.4, 1.3, 1.2]
    sampler = KernelSampler(40, CPU, 1)
    case = ask(row, temperature=0.0, presence_penalty=2.0)
    logits = torch.from_numpy(case.logits[None])
    assert check(sampler, [case]) == [0]
    slots, positions = torch.tensor([0]), torch.tensor([2])
    assert [int(sampler.draw_slots(logits, slots, positions, full=True).tokens) for _ in range(3)] == [1, 2, 3]
    assert (sampler.table.allocate()[0, :5] & COUNT).tolist() == [1, 1, 1, 1, 0]


def test_a_token_is_counted_until_its_bits_are_full():
    """One more occurrence would become the number of the token's entry."""
    row = np.zeros(40)
    row[7] = 5
    sampler, case = KernelSampler(40, CPU, 1), ask(row, temperature=0.0, repetition_penalty=1.1, logit_bias={7: 2.0})
    check(sampler, [case])
    seen, logits = sampler.table.allocate(), torch.from_numpy(case.logits[None])
    for count in (FULL - 1, FULL, FULL):
        seen[0, 7] = 1 << ENTRY_SHIFT | count
        draw = sampler.draw_slots(logits, torch.tensor([0]), torch.tensor([2]), full=True)
        assert draw.tokens.tolist() == [7] and int(seen[0, 7]) == 1 << ENTRY_SHIFT | FULL


def test_a_vocabulary_that_ranks_have_no_bits_for_is_refused_in_one_line():
    with pytest.raises(ConfigError, match="fewer than 4194304 tokens"):
        narrowing.statistics(1, 1 << 22, CPU)


@pytest.mark.parametrize(
    ("shape", "vocab_size"), [("normal", 3001), ("flat", 3001), ("one-hot", 40), ("holes", 40), ("normal", 40)]
)
def test_log_probabilities_are_those_of_the_raw_logits(shape, vocab_size):
    row = shaped(shape, vocab_size, 8)
    counts = (0, 1, 5, 20)
    batch = [ask(row, seed=count, logprobs=count, logit_bias={5: 3.0}, temperature=2.0) for count in counts]
    batch.append(ask(row))  # beside these, one that reports nothing
    check(sampler_for(batch), batch)


def test_likeliest_tokens_are_different_ones_where_fewer_are_finite():
    row = np.full(40, -math.inf)
    row[[3, 9]] = [1, 2]
    batch = [ask(row, logprobs=count) for count in (1, 5, 20)]
    check(sampler_for(batch), batch)


@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("params", [dict(top_p=0.9), dict(top_k=3), dict(min_p=0.2), dict(temperature=0.0)])
def test_a_row_that_is_not_finite_has_no_token_even_where_the_poison_is_banned(poison, params):
    row = shaped("normal", 130, 9)
    row[EOS[0]] = poison
    batch = [ask(row, min_tokens=3, **params), ask(row, **params)]
    assert not define(batch[0]).finite
    assert check(sampler_for(batch), batch) == [-1, -1]


def test_a_row_without_anything_left_has_no_token():
    batch = [ask(np.zeros(2), min_tokens=1, top_p=0.5), ask(np.full(2, -math.inf), min_p=0.1)]
    assert check(sampler_for(batch), batch) == [-1, -1]


@pytest.mark.parametrize("params", [dict(top_k=2), dict(top_p=0.5), dict(top_k=3, top_p=0.9)])
def test_the_largest_numbers_that_there_are_send_no_search_in_circles(params):
    most = float(np.finfo(np.float32).max)
    rows = [np.linspace(-most, most, 40), np.array([most, -most] * 20), np.array([-most] * 39 + [1.0])]
    batch = [ask(row, seed=seed, **params) for seed, row in enumerate(rows)]
    check(sampler_for(batch), batch)


def test_a_vocabulary_of_more_than_8192_fine_groups():
    row = shaped("normal", 262_208, 3)
    row[-1] = 20
    batch = [ask(row, top_k=2, logprobs=1)]
    assert check(sampler_for(batch), batch) == [262_207]
