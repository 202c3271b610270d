"""Sampling settings as tables on the device: one row per slot, written when the slot's owner changes.

A step then sends no parameters: a row of logits finds its own by its slot, in any mixture of requests. A CUDA graph can
read tables that never move. Admissions cost one copy and one launch, however many come in a step; lists of tokens cost
a few more.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradus.device.transfer import upload, upload_parts
from gradus.engine.plan import Admission, Column
from gradus.engine.request import MAX_EOS_TOKENS, MAX_LOGIT_BIAS, MAX_STOP_TOKENS
from gradus.kernels.sampling.seen_words import COUNT, ENTRY, ENTRY_SHIFT, FULL, IN_PROMPT, MASKED, PENALIZED
from gradus.structured.vocabulary import row_words

MAX_ENTRIES = MAX_LOGIT_BIAS + MAX_STOP_TOKENS + MAX_EOS_TOKENS
assert MAX_ENTRIES <= ENTRY, "the number of an entry has no room in a word"

NO_MASS = math.inf  # a mass that is never reached: top-p is off, and rounding cannot make it drop a token
COLDEST = float(np.finfo(np.float32).tiny)  # lower temperatures are greedy: a device may flush such a number to 0

NOTHING = np.empty(0, np.int64)
WORDS = 12  # of 32 bits per slot: two for the seed, and one for each of four integers and six floats


def table_rows(slots: int) -> int:
    """Round the number of slots up to a multiple of 4, so that columns begin at multiples of 16 bytes."""
    return -(-slots // 4) * 4


def table_bytes(vocab_size: int, slots: int, *, masks: bool) -> int:
    """Count the bytes of the tables once a slot adjusts logits: nearly all of them are `seen`.

    masks: whether the sampler keeps a table of masks (`SlotTable.allocate_masks`)."""
    words = WORDS + 3 * MAX_ENTRIES + vocab_size + (row_words(vocab_size) if masks else 0)
    return table_rows(slots) * 4 * words


class SlotTable:
    """The sampling settings of each slot's owner, and the tokens that it has seen.

    slots: rows to allocate; the tables then never move. None lets them grow with the slots that appear.

    The tables on the device have S rows (at least `slots`), a vocabulary of V and B = MAX_ENTRIES; rows start as "off":

        seeds           int64 [S]       64 bits, as torch's signed integer
        temperatures    float32 [S]     0 is greedy (off)
        top_k           int32 [S]       V is off
        top_p           float32 [S]     below 1; infinity is off
        min_p           float32 [S]     0 is off
        repetition, frequency, presence float32 [S]     1, 0 and 0 are off
        adjusts         int32 [S]       PENALIZED if penalties, a bias or a ban may change the logits, plus MASKED if
                                        the owner keeps to a grammar
        reports         int32 [S]       how many likeliest tokens are reported after the sampled one; -1: nothing is
        entries         int32 [S]       how many of the B entries the owner uses
        bias_tokens, banned_until int32 [S, B]; bias_values float32 [S, B]
                                        the value is added to the token's logit, and -inf instead where the new token's
                                        position is below `banned_until`; no token has two entries
        seen            int32 [S, V]    the token's COUNT in the output, the number of its ENTRY, IN_PROMPT. Kept for
                                        slots that adjust, undefined for others. None until one adjusts (`allocate`)
        masks           int32 [S, W]    bit t % 32 of word t // 32 is 1 if token t may be drawn: written for every draw,
                                        and read for masked slots alone. None until a sampler that reads it asks for it
                                        (`allocate_masks`)

    The host's columns, for planning a step: adjusting (by penalties, a bias or a ban), masked, drawing (not greedy),
    ranking (drawing by top-k or top-p), narrowing (drawing by top-k, top-p or min-p), plain (nothing set except
    temperature and seed): bool [S]; reporting: int64 [S], as `reports`. turns: how often masks were switched.
    """

    def __init__(self, vocab_size: int, device: torch.device, slots: int | None = None) -> None:
        self.vocab_size = vocab_size
        self.device = device
        self.seen: Tensor | None = None
        self.masks: Tensor | None = None
        self._fixed = slots is not None
        self._make(1 if slots is None else slots)

    @property
    def rows(self) -> int:
        return len(self.seeds)

    def allocate(self) -> Tensor:
        """Allocate `seen` if it does not exist yet, and return it."""
        if self.seen is None:
            self.seen = torch.zeros(self.rows, self.vocab_size, dtype=torch.int32, device=self.device)
        return self.seen

    def allocate_masks(self) -> Tensor:
        """Allocate `masks` if it does not exist yet, and return it."""
        if self.masks is None:
            self.masks = torch.zeros(self.rows, row_words(self.vocab_size), dtype=torch.int32, device=self.device)
        return self.masks

    def _make(self, slots: int) -> None:
        """Allocate tables, with all rows off. Columns are parts of one tensor of words: one launch writes them."""
        rows = table_rows(slots)
        self._words = torch.zeros(WORDS * rows, dtype=torch.int32, device=self.device)
        seeds, ints, floats = self._words.split([2 * rows, 4 * rows, 6 * rows])
        self.seeds, self.ints = seeds.view(torch.int64), ints.view(4, rows)
        self.ints.copy_(torch.tensor([[self.vocab_size], [0], [-1], [0]]))
        self.top_k, self.adjusts, self.reports, self.entries = self.ints
        self.floats = floats.view(torch.float32).view(6, rows)
        self.floats.copy_(torch.tensor([[0], [NO_MASS], [0], [1], [0], [0]]))
        self.temperatures, self.top_p, self.min_p, self.repetition, self.frequency, self.presence = self.floats
        self._lists = torch.zeros(2, rows, MAX_ENTRIES, dtype=torch.int32, device=self.device)
        self.bias_tokens, self.banned_until = self._lists
        self.bias_values = torch.zeros(rows, MAX_ENTRIES, dtype=torch.float32, device=self.device)
        self.adjusting, self.masked, self.drawing, self.ranking, self.narrowing = np.zeros((5, rows), np.bool_)
        self.plain, self.reporting = np.ones(rows, np.bool_), np.full(rows, -1)
        self.turns = 0

    def _grow(self, slots: int) -> None:
        """Move to tables of at least twice the rows, so that moving stays cheap however many slots appear."""
        if self._fixed:
            raise IndexError(f"slot {slots - 1} is beyond a table of {self.rows} rows")
        old, rows = dict(vars(self)), self.rows
        self._make(max(slots, 2 * rows))
        columns = "adjusting", "masked", "drawing", "ranking", "narrowing", "plain", "reporting"
        for name in ("seeds", "bias_values", *columns):
            getattr(self, name)[:rows] = old[name]
        for name in ("ints", "floats", "_lists"):
            getattr(self, name)[:, :rows] = old[name]
        if self.seen is not None:
            self.seen = None
            self.allocate()[:rows] = old["seen"]
        if self.masks is not None:
            self.masks = None
            self.allocate_masks()[:rows] = old["masks"]

    # -- slots change owners -------------------------------------------------------------------------------------------

    def admit(self, admissions: Sequence[Admission]) -> None:
        """Give slots to new owners: nothing of the earlier ones remains.

        Tokens that are known already, after a preemption, count. Raises IndexError for a slot beyond tables that may
        not grow.
        """
        if not admissions:
            return
        last = {admission.slot: admission for admission in admissions}  # a slot may change hands twice in a plan
        new = Newcomers.of(list(last.values()), self.vocab_size)
        if new.slots.max() >= self.rows:
            self._grow(int(new.slots.max()) + 1)
        self._admit_on_host(new)
        places, words = upload_parts([self._places(new.slots), new.words().view(np.int64)], torch.int64, self.device)
        self._words.scatter_(0, places, words.view(torch.int32))
        if len(new.places):
            places, tokens, until = upload_parts([new.places, new.tokens, new.until], torch.int64, self.device)
            self._lists.flatten(1)[:, places] = torch.stack([tokens, until]).int()
            self.bias_values.flatten()[places] = upload(new.values, torch.float32, self.device)
        if len(new.seen[0]):
            self._recall(*upload_parts(new.seen, torch.int64, self.device))

    def _places(self, slots: Column) -> Column:
        """Return the indices of the slots' words in the tensor of all words, in `Newcomers.words`' order: [WORDS n]."""
        columns = np.arange(2, WORDS)[:, None] * self.rows + slots
        return np.concatenate([2 * slots, 2 * slots + 1, columns.ravel()])

    def _admit_on_host(self, new: "Newcomers") -> None:
        top_k, adjusts, reports, _ = new.ints
        temperatures, top_p, min_p, *_ = new.floats
        self.adjusting[new.slots], self.masked[new.slots] = adjusts & PENALIZED, adjusts & MASKED
        self.drawing[new.slots] = temperatures > 0
        ranks = (temperatures > 0) & ((top_k < self.vocab_size) | (top_p < 1))
        self.ranking[new.slots] = ranks
        narrows = ranks | ((temperatures > 0) & (min_p > 0))
        self.narrowing[new.slots] = narrows
        self.plain[new.slots] = ~((adjusts > 0) | narrows | (reports >= 0))
        self.reporting[new.slots] = reports

    def _recall(self, slots: Tensor, prompts: Tensor, listed: Tensor, numbers: Tensor, outputs: Tensor) -> None:
        """Rebuild rows of `seen`: see Newcomers.seen."""
        seen = self.allocate()
        seen[slots] = 0
        flat = seen.flatten()
        flat[prompts] = IN_PROMPT  # a token that occurs twice just stores the same number twice
        flat[listed] |= numbers.int() << ENTRY_SHIFT
        flat.index_add_(0, outputs, torch.ones_like(outputs, dtype=torch.int32))

    # -- every step ----------------------------------------------------------------------------------------------------

    def turn(self, masks: Mapping[int, bool]) -> None:
        """Switch slots' masks on or off. Those that penalties or a bias adjust keep theirs."""
        turning = {slot: masked for slot, masked in masks.items() if not self.adjusting[slot]}
        turning = {slot: masked for slot, masked in turning.items() if masked != self.masked[slot]}
        if not turning:
            return
        self.turns += 1
        slots = np.array([*turning], np.int64)
        self.masked[slots] = masked = np.array([*turning.values()], np.bool_)
        self.plain[slots] = ~(masked | self.narrowing[slots] | (self.reporting[slots] >= 0))
        places, values = upload_parts([slots, MASKED * masked.astype(np.int64)], torch.int64, self.device)
        self.adjusts[places] = values.int()

    def record(self, slots: Tensor, tokens: Tensor) -> None:
        """Count tokens that were sampled in slots that adjust: int64 [R] each. A negative token is not counted."""
        places = slots * self.vocab_size + tokens.clamp(min=0)
        flat = self.allocate().flatten()
        counts = (tokens >= 0) & ((flat[places] & COUNT) < FULL)
        flat.index_add_(0, places, counts.int())


@dataclass(slots=True)
class Newcomers:
    """The admissions of a step as columns on the host.

    slots, seeds: [n]. ints, floats: [columns, n], in the order of SlotTable.ints and floats.
    places, tokens, until, values: the entries of all lists, and where they go in the tables [S, B], flat.
    seen: the slots that adjust; then places in the flat table [S, V]: of their prompts' tokens; of tokens with an
        entry, followed by the entries' numbers; of their outputs' tokens, one per occurrence.
    """

    slots: Column
    seeds: Column
    ints: Column
    floats: NDArray[np.float32]
    places: Column
    tokens: Column
    until: Column
    values: NDArray[np.float32]
    seen: tuple[Column, Column, Column, Column, Column]

    def words(self) -> NDArray[np.int32]:
        """Concatenate seeds, ints and floats as 32-bit words, one column after the other: [WORDS n]."""
        lows, highs = self.seeds.view(np.int32).reshape(-1, 2).T
        return np.concatenate([lows, highs, self.ints.ravel(), self.floats.ravel().view(np.int32)]).astype(np.int32)

    @classmethod
    def of(cls, admissions: Sequence[Admission], vocab_size: int) -> "Newcomers":
        slots = np.array([admission.slot for admission in admissions])
        seeds = np.array([admission.request.seed_of(admission.index) for admission in admissions], np.uint64)
        entries = [list(_entries(admission)) for admission in admissions]
        lengths = np.array([len(each) for each in entries])
        tokens, until, values = zip(*chain(*entries), strict=True) if lengths.any() else ((), (), ())
        owners = np.repeat(slots, lengths)
        places = np.arange(lengths.sum()) - np.repeat(lengths.cumsum() - lengths, lengths)
        ints = _ints(admissions, lengths, vocab_size)
        listed = owners * vocab_size + np.array(tokens, np.int64)
        adjusting = [admission for admission, adjusts in zip(admissions, ints[1], strict=True) if adjusts & PENALIZED]
        prompts, outputs = _histories(adjusting, vocab_size)
        return cls(
            slots=slots,
            seeds=seeds.view(np.int64),
            ints=ints,
            floats=_floats(admissions),
            places=owners * MAX_ENTRIES + places,
            tokens=np.array(tokens, np.int64),
            until=np.array(until, np.int64),
            values=np.array(values, np.float32),
            seen=(slots[(ints[1] & PENALIZED) > 0], prompts, listed, places + 1, outputs),
        )


def _entries(admission: Admission) -> Iterator[tuple[int, int, float]]:
    """Yield (token, banned until, bias) for the request's biases, and for its stop tokens, banned until min_tokens."""
    request = admission.request
    biases = request.params.logit_bias
    banned = request.stop_ids if request.params.min_tokens > 0 else frozenset()
    until = admission.prompt_length + request.params.min_tokens
    for token, value in biases.items():
        yield token, until if token in banned else 0, value
    for token in sorted(banned - biases.keys()):
        yield token, until, 0.0


def _ints(admissions: Sequence[Admission], entries: Column, vocab_size: int) -> Column:
    """Build the columns top_k, adjusts, reports and entries."""
    params = [admission.request.params for admission in admissions]
    top_k = [each.top_k if 0 < each.top_k < vocab_size else vocab_size for each in params]
    penalized = np.array([each.penalized for each in params]) | (entries > 0)
    adjusts = PENALIZED * penalized + MASKED * np.array([each.structured is not None for each in params])
    reports = [-1 if each.logprobs is None else min(each.logprobs, vocab_size) for each in params]
    return np.array([top_k, adjusts, reports, entries], np.int64)


def _floats(admissions: Sequence[Admission]) -> NDArray[np.float32]:
    """Build the columns temperatures, top_p, min_p, repetition, frequency and presence."""
    rows = [
        (p.temperature, p.top_p, p.min_p, p.repetition_penalty, p.frequency_penalty, p.presence_penalty)
        for p in (admission.request.params for admission in admissions)
    ]
    columns = np.array(rows, np.float32).T
    temperatures, top_p = columns[:2]
    temperatures[temperatures < COLDEST] = 0
    top_p[top_p >= 1] = NO_MASS  # also values that only rounding makes 1
    return columns


def _histories(admissions: Sequence[Admission], vocab_size: int) -> tuple[Column, Column]:
    """List the places in the flat table of all prompts' tokens, and of all outputs' tokens, at most FULL per output."""
    known = [np.array(admission.tokens, np.int64) + admission.slot * vocab_size for admission in admissions]
    lengths = [admission.prompt_length for admission in admissions]
    prompts = [each[:length] for each, length in zip(known, lengths, strict=True)]
    outputs = [each[length:][-FULL:] for each, length in zip(known, lengths, strict=True)]
    return np.concatenate([*prompts, NOTHING]), np.concatenate([*outputs, NOTHING])
