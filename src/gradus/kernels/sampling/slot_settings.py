"""A request's sampling settings, as kernels read them: tables on the device with a row per slot.

Numbers of one type lie in one matrix, one setting after the other. Penalties and biases apply where the logit is read,
in float32 (`adjusted`), and so do the masks of grammars; no second matrix of logits is written. Each slot has one word
per token, read with the logit only by slots that adjust. It also locates the token's bias, so a token never searches
the list, however long it is.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from gradus.kernels.core.constants import INFINITY
from gradus.kernels.sampling import seen_words

TEMPERATURE, TOP_P, MIN_P, REPETITION, FREQUENCY, PRESENCE = (constexpr(row) for row in range(6))
TOP_K, ADJUSTS, REPORTS, ENTRIES = (constexpr(row) for row in range(4))
PENALIZED, MASKED = constexpr(seen_words.PENALIZED), constexpr(seen_words.MASKED)  # bits of ADJUSTS
COUNT, FULL, ENTRY = (constexpr(getattr(seen_words, name)) for name in ("COUNT", "FULL", "ENTRY"))
ENTRY_SHIFT = constexpr(seen_words.ENTRY_SHIFT)
SEEN = constexpr(seen_words.COUNT | seen_words.IN_PROMPT)  # in the prompt or in the output


class SlotSettings(NamedTuple):
    """The tables, of S slots and a vocabulary of V; kernels take it as one argument.

    seeds: int64 [S]. numbers: float32 [6, S]: temperature (0 is greedy), top-p (infinity is off), min-p (0 is off), and
    the penalties for repetition (1 is off), frequency and presence. choices: int32 [4, S]: top-k (V is off), whether
    the slot adjusts logits (bit 0: by penalties or its list; bit 1: by its mask), how many likeliest tokens it reports
    (-1 for no report), and how many entries its list has.

    bias_values: float32 [S, E]; banned_until: int32 [S, E]. An entry's value is added to its token's logit; but while
    the new token's position is smaller than `banned_until`, -inf is. seen: int32 [S, V], rows seen_stride apart: how
    often the token occurs in the output, its entry's number, and whether it occurs in the prompt (`seen_words`).
    masks: int32 [S, mask_words], a bit per token: 0 if the token may not be drawn.
    """

    seeds: Tensor
    numbers: Tensor
    choices: Tensor
    bias_values: Tensor
    banned_until: Tensor
    seen: Tensor
    masks: Tensor
    slots: int
    most_entries: int
    seen_stride: int
    mask_words: int


@triton.jit
def number_of(settings: SlotSettings, WHICH: constexpr, slot: tensor) -> tensor:
    return tl.load(settings.numbers + WHICH * settings.slots + slot)


@triton.jit
def choice_of(settings: SlotSettings, WHICH: constexpr, slot: tensor) -> tensor:
    return tl.load(settings.choices + WHICH * settings.slots + slot)


@triton.jit
def narrows(settings: SlotSettings, slot: tensor, V: int) -> tensor:
    """Whether the slot draws among some of the tokens only."""
    by_rank = choice_of(settings, TOP_K, slot) < V
    by_mass = (number_of(settings, TOP_P, slot) < 1) | (number_of(settings, MIN_P, slot) > 0)
    return (number_of(settings, TEMPERATURE, slot) > 0) & (by_rank | by_mass)


@triton.jit
def widened(logits_ptr: tensor, token: tensor, readable: tensor, inside: tensor) -> tensor:
    """Logits of one row as float32: infinite where there is NaN, which no maximum would pass on; -inf outside."""
    logits = tl.load(logits_ptr + token, mask=readable, other=0.0).to(tl.float32)
    logits = tl.where(logits == logits, logits, INFINITY)
    return tl.where(inside, logits, -INFINITY)


@triton.jit
def adjusted(
    logits: tensor, token: tensor, inside: tensor, settings: SlotSettings, slot: tensor, position: tensor
) -> tensor:
    """Return these tokens' logits in float32, after the slot's penalties, its list, and its mask; none is NaN."""
    adjusts = choice_of(settings, ADJUSTS, slot)
    if (adjusts & PENALIZED) != 0:
        word = tl.load(settings.seen + slot.to(tl.int64) * settings.seen_stride + token, mask=inside, other=0)
        count = word & COUNT
        repetition = number_of(settings, REPETITION, slot)
        repeated = tl.where(logits > 0, logits / repetition, logits * repetition)
        logits = tl.where((word & SEEN) != 0, repeated, logits)
        logits -= number_of(settings, FREQUENCY, slot) * count.to(tl.float32)
        logits -= tl.where(count > 0, number_of(settings, PRESENCE, slot), 0.0)
        if choice_of(settings, ENTRIES, slot) > 0:
            entry = (word >> ENTRY_SHIFT) & ENTRY
            place = slot * settings.most_entries + entry - 1
            bias = tl.load(settings.bias_values + place, mask=entry > 0, other=0.0)
            banned = position < tl.load(settings.banned_until + place, mask=entry > 0, other=0)
            logits += tl.where(banned, -INFINITY, bias)
            logits = tl.where(logits == logits, logits, INFINITY)  # where an infinite logit was banned
    if (adjusts & MASKED) != 0:
        word_ptr = settings.masks + slot.to(tl.int64) * settings.mask_words + (token >> 5)
        legal = (tl.load(word_ptr, mask=inside, other=0) >> (token & 31)) & 1
        logits = tl.where(legal != 0, logits, -INFINITY)
    return logits
