"""What a sampler must do with a row, written down slowly in float64, and rows that try it hard.

`check` runs a case through any sampler, the reference or a kernel. A sampler computes in float32 and sums in its own
order, so tokens at the very edge of a cut may fall on either side; where that is, `Definition` says.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray

from gradus.engine.plan import Admission
from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.kernels.sampling.noise import exponential
from gradus.kernels.sampling.seen_words import COUNT
from gradus.sampling.sampler import Drawn, Rows, Sampler

MASS = 1e-5  # how near to top-p a cumulative mass may be for either side to be right
VALUE = 2e-6  # the same of two logits, relative to the larger one
ARRIVAL = 1e-4  # and of two tokens' arrivals in the race
EOS = (0, 1)


@dataclass(frozen=True)
class Ask:
    """A row: its logits, what its request asks for, and the tokens before it."""

    logits: NDArray[np.float32]
    params: SamplingParams
    prompt: tuple[int, ...] = (1,)
    output: tuple[int, ...] = ()

    @property
    def position(self) -> int:
        return len(self.prompt) + len(self.output)

    @property
    def request(self) -> Request:
        limits = ModelLimits(len(self.logits), 1 << 20, EOS)
        return Request.create("r", self.prompt, self.params, limits)


# -- the definition ----------------------------------------------------------------------------------------------------


@dataclass
class Definition:
    """What may be sampled for a row. kept: tokens that no cut drops; edge: those that it may drop, or not.

    arrivals: when each token arrives in the race, from the row's noise. finite: whether there is a token at all.
    """

    finite: bool
    kept: NDArray[np.bool_]
    edge: NDArray[np.bool_]
    arrivals: NDArray[np.float64]

    def allows(self, token: int) -> bool:
        """No token that must be kept arrives earlier than one that may be."""
        if not self.finite or token < 0:
            return not self.finite and token == -1
        earliest = self.arrivals[self.kept & ~self.edge].min(initial=math.inf)
        return bool((self.kept | self.edge)[token]) and self.arrivals[token] <= earliest * (1 + ARRIVAL)


def adjusted(ask: Ask) -> NDArray[np.float32]:
    """Penalties, bias and bans, token by token."""
    params, row = ask.params, ask.logits.copy()
    with np.errstate(invalid="ignore"):
        for token in set(ask.prompt) | set(ask.output):
            penalty = np.float32(params.repetition_penalty)
            row[token] = row[token] / penalty if row[token] > 0 else row[token] * penalty
        for token in set(ask.output):
            row[token] -= np.float32(params.frequency_penalty) * np.float32(ask.output.count(token))
            row[token] -= np.float32(params.presence_penalty)
        for token, bias in params.logit_bias.items():
            row[token] += np.float32(bias)
        if len(ask.output) < params.min_tokens:
            for token in ask.request.stop_ids:
                row[token] += np.float32(-math.inf)
    return row


def define(ask: Ask) -> Definition:
    row, params = adjusted(ask).astype(np.float64), ask.params
    everything, nothing = np.ones(len(row), bool), np.zeros(len(row), bool)
    best = row.max()
    if not math.isfinite(best):
        return Definition(False, nothing, nothing, row)
    temperature = float(np.float32(params.temperature))
    if temperature == 0:
        first = everything.cumsum() == row.argmax() + 1
        return Definition(True, first, nothing, np.zeros(len(row)))
    scaled = (row - best) / temperature
    kept, edge = everything, nothing
    if 0 < params.top_k < len(row):
        kth = np.sort(scaled)[-params.top_k]
        kept = scaled >= kth
        with np.errstate(invalid="ignore"):
            edge = (np.abs(scaled - kth) <= VALUE * max(1, -kth)) & (scaled != kth)
    if np.float32(params.top_p) < 1:
        better = mass_above(np.where(kept, scaled, -math.inf))
        edge |= kept & (np.abs(better - params.top_p) <= MASS)
        kept &= better < params.top_p
    if params.min_p > 0:
        share = np.exp(scaled)
        edge |= (np.abs(share / params.min_p - 1) <= MASS) & (scaled < 0)
        kept &= share >= params.min_p
    seed = torch.tensor([signed(ask.request.seed_of(0))])
    noise = exponential(seed, torch.tensor([ask.position]), len(row))[0].double().numpy()
    with np.errstate(over="ignore"):
        return Definition(True, kept, edge & (kept | edge), noise * np.exp(-scaled))


def mass_above(scaled: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each token: the probability of all that are likelier than it."""
    _, which = np.unique(-scaled, return_inverse=True)  # from the likeliest on, equal ones together
    mass = np.bincount(which, weights=np.exp(scaled))
    found: NDArray[np.float64] = ((mass.cumsum() - mass) / mass.sum())[which]
    return found


def signed(seed: int) -> int:
    return seed - 2**64 if seed >= 2**63 else seed


# -- a sampler is put to it --------------------------------------------------------------------------------------------


def check(sampler: Sampler, asks: Sequence[Ask], slots: Sequence[int] | None = None) -> list[int]:
    """Sample the rows together, each in a slot of its own, and hold all that comes out against the definition."""
    slots = range(len(asks)) if slots is None else slots
    sampler.admit(
        [Admission(slot, ask.request, 0, ask.prompt + ask.output) for slot, ask in zip(slots, asks, strict=True)]
    )
    logits = torch.from_numpy(np.stack([ask.logits for ask in asks])).to(sampler.device)
    before = logits.clone()
    drawn = sampler.sample(logits, Rows(np.array(slots), np.array([ask.position for ask in asks])))
    assert torch.equal(logits.nan_to_num(7.0), before.nan_to_num(7.0)), "the logits were changed"
    tokens = [int(token) for token in drawn.tokens]
    for number, (ask, token) in enumerate(zip(asks, tokens, strict=True)):
        assert define(ask).allows(token), f"row {number}: token {token} of {ask.params}"
        check_logprobs(drawn, number, ask, token)
        check_counts(sampler, slots[number], ask, token)
    return tokens


def check_logprobs(drawn: Drawn, row: int, ask: Ask, token: int) -> None:
    asked = ask.params.logprobs
    if drawn.logprobs is None:
        assert asked is None
        return
    count = drawn.logprobs.counts[row]
    assert count == (-1 if asked is None else min(asked, len(ask.logits)))
    if asked is None or token < 0:
        return
    raw = ask.logits.astype(np.float64)
    expected = raw - raw.max() - math.log(np.exp(raw - raw.max()).sum())
    pairs = drawn.logprobs.pairs[row, : 1 + count].cpu()
    (sampled, *ids), (chosen, *values) = pairs[:, 0].tolist(), pairs[:, 1].contiguous().view(torch.float32).tolist()
    close = dict(rtol=1e-5, atol=1e-5)
    assert sampled == token
    np.testing.assert_allclose(chosen, expected[token], **close)
    np.testing.assert_allclose(values, np.sort(expected)[::-1][:count], **close)
    np.testing.assert_allclose(values, expected[ids], **close)
    assert len(set(ids)) == count and values == sorted(values, reverse=True)


def check_counts(sampler: Sampler, slot: int, ask: Ask, token: int) -> None:
    """The new token counts, if the slot's logits are adjusted."""
    if sampler.table.adjusting[slot]:
        counts = (sampler.table.allocate()[slot] & COUNT).cpu()
        expected = np.bincount([*ask.output, *[token] * (token >= 0)], minlength=len(ask.logits))
        assert counts.tolist() == expected.tolist()


# -- rows that try it hard ---------------------------------------------------------------------------------------------

SHAPES = ("grid", "normal", "peaked", "flat", "one-hot", "holes", "two")


def shaped(kind: str, vocab_size: int, seed: int) -> NDArray[np.float32]:
    """A row of logits. On the grid many are equal; with holes many are -inf."""
    draw = np.random.default_rng(seed)
    normal = draw.standard_normal(vocab_size)
    row = {
        "grid": np.round(normal * 4) / 4,
        "normal": normal,
        "peaked": normal * 6,
        "flat": np.full(vocab_size, 1.5),
        "one-hot": np.where(np.arange(vocab_size) == draw.integers(vocab_size), 90.0, -90.0),
        "holes": np.where(draw.random(vocab_size) < 0.6, -math.inf, np.round(normal * 4) / 4),
        "two": np.where(draw.random(vocab_size) < 0.5, 0.25, -0.25),
    }[kind].astype(np.float32)
    row[draw.integers(vocab_size)] = max(row.max(), np.float32(0))  # one at least is finite
    return row


@st.composite
def asks(draw: st.DrawFn, vocab_size: int, poisons: bool = False) -> Ask:
    """A row with any parameters. poisons: now and then it has NaN, an infinity, or nothing finite."""
    tokens = st.integers(0, vocab_size - 1)
    row = shaped(draw(st.sampled_from(SHAPES)), vocab_size, draw(st.integers(0, 10**6)))
    if poisons and draw(st.booleans()):
        row[draw(tokens)] = draw(st.sampled_from([math.nan, math.inf]))
    params = SamplingParams(
        temperature=draw(st.sampled_from([0, 1e-30, 0.25, 1, 1, 1.5, 100])),
        top_k=draw(st.sampled_from([0, 0, 1, 2, 5, 20, vocab_size - 1, vocab_size, 10**9])),
        top_p=draw(st.sampled_from([1, 1, 1e-9, 0.1, 0.5, 0.9, 0.95, 0.999, 1 - 1e-9])),
        min_p=draw(st.sampled_from([0, 0, 0.05, 0.3, 1])),
        repetition_penalty=draw(st.sampled_from([1, 1, 1.25, 0.5, 2])),
        frequency_penalty=draw(st.sampled_from([0, 0, 0.25, -0.5, 2])),
        presence_penalty=draw(st.sampled_from([0, 0, 0.5, -2])),
        logit_bias=draw(st.dictionaries(tokens, st.sampled_from([-100, -0.75, 0.5, 100]), max_size=3)),
        min_tokens=draw(st.sampled_from([0, 0, 1, 3])),
        logprobs=draw(st.sampled_from([None, None, 0, 1, 5, 20])),
        seed=draw(st.integers(0, 2**63 - 1)),
    )
    few = st.lists(tokens, max_size=4).map(tuple)
    return Ask(row, params, draw(st.lists(tokens, min_size=1, max_size=4).map(tuple)), draw(few))


@st.composite
def batches(draw: st.DrawFn, poisons: bool = False) -> list[Ask]:
    vocab_size = draw(st.sampled_from([2, 3, 5, 37, 64, 129, 1000, 1025]))
    return draw(st.lists(asks(vocab_size, poisons), min_size=1, max_size=6))


NARROWINGS = [
    dict(), dict(top_k=1), dict(top_k=20), dict(top_k=1000), dict(top_p=0.95), dict(top_p=0.5), dict(top_p=1e-6),
    dict(top_p=0.999), dict(min_p=0.1), dict(min_p=1.0), dict(top_k=20, top_p=0.95),
    dict(top_k=50, top_p=0.9, min_p=0.05),
]  # fmt: skip


def large_batch(shape: str, vocab_size: int) -> list[Ask]:
    """Every narrowing on two rows, with a vocabulary like a real model's."""
    rows = [shaped(shape, vocab_size, seed) for seed in range(2)]
    params = [SamplingParams(temperature=1.0, seed=seed, **each) for each in NARROWINGS for seed in range(2)]
    return [Ask(rows[i % 2], each) for i, each in enumerate(params)]


def near_cut(count: int) -> list[Ask]:
    """Many draws from few tokens, so that each token that a cut leaves is drawn, and one that it should drop shows."""
    row = np.array([2, 1.75, 1.5, 1.5, 1.25, 1, 0.5, 0.5, 0, -1], np.float32)
    params = [*NARROWINGS, dict(top_k=3), dict(top_k=4, top_p=0.6), dict(top_p=0.7), dict(min_p=0.3)]
    return [Ask(row, SamplingParams(temperature=1.0, seed=seed, **each)) for each in params for seed in range(count)]
