"""Samples tokens from logits, in torch: the reference, which runs anywhere.

Each row of logits is sampled as if it were alone: its parameters come from its slot, its noise from (seed, position),
and no reduction runs across rows. So a request's tokens are the same in any batch, after preemption, and on any later
phase.

The order of operations, from a row of raw logits (float32) to a token:

     1. Log-probabilities are reported from the raw logits: they are the model's own.
     2. Repetition penalty r, for tokens of prompt or output: x / r where x > 0, else x * r.
     3. Minus frequency * (times in the output), minus presence where that is not 0.
     4. Plus the logit bias; and stop tokens are banned (-inf) until min_tokens. So is what a grammar does not allow.
     5. A row whose largest logit is not finite (NaN, infinite, everything banned) has no token: -1.
     6. Temperature 0 takes the largest logit, of equal ones the lowest token id, and is done.
     7. Otherwise: minus the largest, divided by the temperature.
     8. Top-k drops what is below the k-th largest value. Ties with it are kept.
     9. Top-p drops what is below the highest value t such that tokens at t or above have p of the probability that
        top-k has left. Ties are kept.
    10. Min-p drops what has less than min_p of the likeliest token's probability.
    11. Of the rest, the token with the smallest Exp(1) noise / probability: see `race`.

`docs/design/sampling.md` says why. The kernels follow the same order and are tested against this file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradus.device.transfer import to_host, upload, upload_parts
from gradus.engine.plan import REJECTED, Admission, Column
from gradus.kernels.sampling.noise import exponential
from gradus.kernels.sampling.seen_words import COUNT, IN_PROMPT
from gradus.kernels.step.plain import standing
from gradus.sampling.constraints import Constrained, Constraints
from gradus.sampling.observer import DrawObserver
from gradus.sampling.slots import SlotTable
from gradus.structured.vocabulary import row_words

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Rows:
    """Each row of logits: the slot that it samples for, and the position of the new token. int64 [R].

    drafts: how many drafts its span has up to and including this row; None: no drafts, as everywhere except in a
    verification. inputs: the token that each row runs, given if drafts are to be compared.
    """

    slots: Column
    positions: Column
    drafts: Column | None = None
    inputs: Column | None = None

    def __len__(self) -> int:
        return len(self.slots)


@dataclass(frozen=True, slots=True)
class DrawnLogprobs:
    """Log-probabilities of a step's R rows; the values of rows that ask for none are undefined.

    pairs: int32 [R, 1 + K, 2] on the device: a token's id, and the 32 bits of its float logarithm. The sampled token
    comes first, then the K likeliest, best first. counts: int64 [R], on the host: how many of the K likeliest a row
    asks for; -1: it does not even ask for the sampled token's.
    """

    pairs: Tensor
    counts: Column

    @classmethod
    def of(cls, ids: Tensor, values: Tensor, counts: Column) -> "DrawnLogprobs":
        """Pack token ids, integers, and log-probabilities, float32, both [R, 1 + K]."""
        return cls(torch.stack([ids.int(), values.view(torch.int32)], dim=-1), counts)

    def to_host(self) -> "DrawnLogprobs":
        """Start a copy to the host; it is complete once an `Arrival` made afterwards has come."""
        return DrawnLogprobs(to_host(self.pairs), self.counts)


@dataclass(frozen=True, slots=True)
class Drawn:
    """Rows sampled together. tokens: int64 [R] on the device, -1 if a row has none, REJECTED if a draft up to that row
    was wrong. logprobs: None if no row asks for any. faults: why a row has no token, if its grammar knows."""

    tokens: Tensor
    logprobs: DrawnLogprobs | None = None
    faults: Mapping[int, str] = field(default_factory=dict)


class SlotDraw(NamedTuple):
    """The draw of a step's rows. tokens: int64 [R], on the device or in the host's columns; as in `Drawn`. pairs: as in
    DrawnLogprobs; None if no row may ask for them. faults: as in `Drawn`."""

    tokens: Any
    pairs: Tensor | None
    faults: Mapping[int, str] = {}


class Sampler:
    """Keeps each slot's sampling settings and the tokens that it has seen. Knows no sequence and no schedule.

    slots: how many there are; None if the number is not known beforehand. constraints: the matchers of slots that keep
    to a grammar; None in an engine that refuses such requests. watching: whether any slot has one. observer: sees the
    draws; None if there is none.
    """

    observer: DrawObserver | None = None
    watching = False

    def __init__(
        self,
        vocab_size: int,
        device: torch.device,
        slots: int | None = None,
        constraints: Constraints | None = None,
    ) -> None:
        self.device, self.constraints = device, constraints
        self.table = SlotTable(vocab_size, device, slots)

    def admit(self, admissions: Sequence[Admission]) -> None:
        """Give slots to new owners. Nothing of their earlier owners remains."""
        self.table.admit(admissions)
        if self.constraints is not None:
            self.constraints.admit(admissions)
            self.watching = self.constraints.any
            self.turn_masks()

    def turn_masks(self) -> None:
        """Switch the masks of slots whose grammar has begun to decide, or no longer does."""
        if self.constraints is not None and self.constraints.turned:
            self.table.turn(self.constraints.turned)
            self.constraints.turned.clear()

    def sample(self, logits: Tensor, rows: Rows) -> Drawn:
        """Draw one token for each row of `logits`, float32 [R, V], which stays as it is.

        Rows that verify drafts are drawn as if all drafts up to them were right; rows from the first wrong draft on are
        then REJECTED.

        Rows of one kind are computed together. The host knows each row's kind, so nothing here waits for the device.
        """
        answers = self._constrained(rows)
        legal = self._legal([each for each in answers if self.table.masked[each.slot]])
        tokens = self._verify(self._draw(logits, rows, legal), rows)
        if legal is not None and self.observer is not None:
            self.observer.drew(logits, rows, *legal, tokens)
        if (adjusting := self.table.adjusting[rows.slots]).any():
            self.table.record(upload(rows.slots[adjusting], torch.int64, self.device), tokens[self._where(adjusting)])
        faults = self._accept(answers, tokens)
        return Drawn(tokens, self._report(logits, tokens, self.table.reporting[rows.slots]), faults)

    def greedy(self, slots: Column) -> bool:
        """True if these slots only want the token of their largest logit. A runner that finds it in another way then
        needs no logits: see `take`."""
        return bool((self.table.plain[slots] & ~self.table.drawing[slots]).all())

    def needs_full(self, slots: Column) -> bool:
        """True if any of `slots` asks for more than the quickest draw, which here is the greedy one."""
        return not self.greedy(slots)

    def take(self, tokens: Tensor, rows: Rows) -> Drawn:
        """Do as `sample` does, for rows that are `greedy`. tokens: int64 [R], as the function `greedy` returns them."""
        tokens = self._verify(tokens, rows)
        return Drawn(tokens, faults=self._accept(self._constrained(rows), tokens))

    def guess(self, logits: Tensor, slots: Column, positions: Column) -> Tensor:
        """Draw what these slots would if the logits were the model's, int64 [R], without recording the tokens."""
        return self._draw(logits, Rows(slots, positions))

    def drafts(self, slot: int, proposed: Sequence[int], most: int) -> Sequence[int]:
        """Choose what a slot verifies: the tokens that its grammar forces, or else the drafts proposed, as far as they
        are legal. Without a grammar, all that are proposed."""
        matcher = None if self.constraints is None else self.constraints.matcher(slot)
        if matcher is None:
            return proposed
        forced = matcher.forced(most)
        verified = forced or matcher.legal(proposed)
        if self.observer is not None:
            self.observer.drafted(slot, proposed, forced, verified)
        return verified

    def _verify(self, tokens: Tensor, rows: Rows) -> Tensor:
        """Replace the tokens drawn after a wrong draft with REJECTED."""
        if rows.inputs is None or rows.drafts is None:
            return tokens
        drawn = tokens.numpy(force=True)
        stands = standing(drawn, rows.inputs, rows.drafts)
        return torch.from_numpy(np.where(stands, drawn, REJECTED)).to(self.device)

    def _constrained(self, rows: Rows) -> list[Constrained]:
        """List the rows' answers that keep to a grammar."""
        if self.constraints is None:
            return []
        verified = rows.inputs is not None and rows.drafts is not None
        drafts = (rows.drafts.tolist(), rows.inputs.tolist()) if verified else ()  # type: ignore[union-attr]
        return self.constraints.of(rows.slots.tolist(), *drafts)

    def _accept(self, answers: Sequence[Constrained], tokens: Tensor) -> dict[int, str]:
        """Advance the answers by the tokens drawn. Returns faults, as in `Drawn`.

        Answers without masks verify no draft behind which they need some: see `drafts`.
        """
        if self.constraints is None or not answers:
            return {}
        masked = {each.slot for each in answers if self.table.masked[each.slot]}
        faults = self.constraints.accept(answers, masked, tokens.numpy(force=True))
        self.turn_masks()
        return faults

    def _legal(self, answers: Sequence[Constrained]) -> tuple[Tensor, Tensor] | None:
        """Return the masked rows, int64 [C], and their legal tokens, bool [C, V]; None if no row is masked."""
        if self.constraints is None or not answers:
            return None
        rows = [row for each in answers for row in range(each.row, each.row + 1 + len(each.job.drafts))]
        words = np.zeros((len(rows), row_words(self.table.vocab_size)), np.int32)
        self.constraints.fill(answers, words)
        self.constraints.threads.wait()
        bits = np.unpackbits(words.view(np.uint8), axis=1, count=self.table.vocab_size, bitorder="little")
        return upload(rows, torch.int64, self.device), torch.from_numpy(bits.view(np.bool_)).to(self.device)

    def _draw(self, logits: Tensor, rows: Rows, legal: tuple[Tensor, Tensor] | None = None) -> Tensor:
        adjusting, drawing = self.table.adjusting[rows.slots], self.table.drawing[rows.slots]
        if self.device.type == "cpu" and not (adjusting.any() or drawing.any() or legal):
            return greedy(logits)
        slots, positions = upload_parts([rows.slots, rows.positions], torch.int64, self.device)
        adjusted = logits
        if adjusting.any():
            some, adjusted = self._where(adjusting), logits.clone()
            adjusted[some] = self.adjust(logits[some], slots[some], positions[some], drafted(rows, adjusting))
        if legal is not None:
            masked, tokens = legal
            adjusted = adjusted.clone() if adjusted is logits else adjusted
            adjusted[masked] = adjusted[masked].masked_fill(~tokens, float("-inf"))
        best, tokens = adjusted.max(dim=-1)  # NaN anywhere in a row makes its maximum NaN
        if drawing.any():
            some = self._where(drawing)
            scaled = self._scale(adjusted[some], best[some], slots[some], rows.slots[drawing])
            tokens[some] = race(scaled, self.table.seeds[slots[some]], positions[some])
        return torch.where(best.isfinite(), tokens, -1)

    def adjust(
        self, logits: Tensor, slots: Tensor, positions: Tensor, drafts: Sequence[tuple[int, int]] = ()
    ) -> Tensor:
        """Apply penalties, bias, and the ban of early stops to logits [R, V]; slots, positions: of each row, [R].

        Returns new logits. drafts: pairs of a row and a draft that the row counts as already sampled.
        """
        table = self.table
        repetition, frequency, presence = (
            column[slots].unsqueeze(1) for column in (table.repetition, table.frequency, table.presence)
        )
        seen = table.allocate()[slots]
        if drafts:
            ones = torch.ones(len(drafts), dtype=seen.dtype, device=self.device)
            seen.index_put_(tuple(upload_parts(list(zip(*drafts, strict=True)), torch.int64, self.device)), ones, True)
        count = seen & COUNT
        known = (seen & (COUNT | IN_PROMPT)) != 0
        logits = torch.where(known, torch.where(logits > 0, logits / repetition, logits * repetition), logits)
        logits -= frequency * count
        logits -= presence * (count > 0)
        entry = torch.arange(table.bias_tokens.shape[1], device=self.device)
        banned = positions.unsqueeze(1) < table.banned_until[slots]
        bias = table.bias_values[slots].masked_fill(banned, float("-inf"))
        bias = bias.where(entry < table.entries[slots].unsqueeze(1), 0.0)
        return logits.scatter_add_(1, table.bias_tokens[slots].long(), bias)

    def _scale(self, logits: Tensor, best: Tensor, slots: Tensor, owners: Column) -> Tensor:
        """Compute the logits to draw from: log-probabilities up to a constant, -inf for the tokens that are dropped.

        slots, owners: the rows' slots, on the device and on the host.
        """
        table = self.table
        # the likeliest token is at 0, so no temperature overflows
        scaled = (logits - best.unsqueeze(1)) / table.temperatures[slots].unsqueeze(1)
        if not table.narrowing[owners].any():
            return scaled
        cut = table.min_p[slots].log()
        if (ranking := table.ranking[owners]).any():
            some = self._where(ranking)
            cut[some] = cut[some].maximum(lowest_kept(scaled[some], table.top_k[slots[some]], table.top_p[slots[some]]))
        return scaled.masked_fill(scaled < cut.unsqueeze(1), float("-inf"))

    def _report(self, logits: Tensor, tokens: Tensor, counts: Column) -> DrawnLogprobs | None:
        asking = counts >= 0
        if not asking.any():
            return None
        some, most = self._where(asking), int(counts.max())
        values, ids = logits.new_zeros(len(tokens), 1 + most), tokens.new_zeros(len(tokens), 1 + most)
        ids[some], values[some] = log_probabilities(logits[some], tokens[some].clamp(min=0), most)
        return DrawnLogprobs.of(ids, values, counts)

    def _where(self, rows: Mask) -> Tensor | slice:
        """Return an index of the rows where the mask is true; if all are, a slice, which copies nothing."""
        return slice(None) if rows.all() else upload(np.flatnonzero(rows), torch.int64, self.device)


def log_probabilities(logits: Tensor, tokens: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each row's token, followed by those of the `top` likeliest, best first.

    logits: [R, V]; tokens: int64 [R]. Returns token ids and values, both [R, 1 + top].
    """
    logprobs = logits.log_softmax(-1)
    best, likeliest = logprobs.topk(top)
    chosen = tokens.unsqueeze(1)
    return torch.cat([chosen, likeliest], dim=1), torch.cat([logprobs.gather(1, chosen), best], dim=1)


def drafted(rows: Rows, some: Mask) -> list[tuple[int, int]]:
    """List (row, token) for each draft up to each row; rows are counted among `some`, bool [R]."""
    if rows.drafts is None or rows.inputs is None:
        return []
    pairs = enumerate(np.flatnonzero(some))
    return [(row, int(token)) for row, at in pairs for token in rows.inputs[at - rows.drafts[at] + 1 : at + 1]]


def greedy(logits: Tensor) -> Tensor:
    """Find the token of each row's largest logit, int64 [R]; -1 if that is not finite. For a CPU, where numpy needs few
    calls for it and uses vector instructions."""
    numbers = logits.numpy()
    tokens = numbers.argmax(axis=-1)  # the first of equal ones; NaN counts as the largest
    tokens[~np.isfinite(numbers[np.arange(len(tokens)), tokens])] = -1
    return torch.from_numpy(tokens)


def lowest_kept(scaled: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Find the lowest value that top-k and then top-p keep, [R]. scaled: [R, V], each row's largest being 0.

    top_k, top_p: [R]. The result is a value and not a rank: a token as likely as the last one kept is kept too, so no
    tie depends on a sort's order.
    """
    below = ascending(-scaled)  # each token's distance below the likeliest, from the likeliest on
    mass = below.neg().exp().cumsum(-1)  # of each token and all before it
    kth = below.gather(1, top_k.long().unsqueeze(1) - 1)
    last = torch.searchsorted(below, kth, right=True) - 1  # the last that top-k keeps
    enough = torch.searchsorted(mass, top_p.unsqueeze(1) * mass.gather(1, last))  # the first to reach top-p, if any
    return below.gather(1, enough.minimum(last)).neg().squeeze(1)


def ascending(values: Tensor) -> Tensor:
    """Sort the values of each row, [R, V], smallest first.

    A CPU uses numpy, which sorts values without their indices, far faster than torch sorts both.
    """
    if values.device.type != "cpu":
        return values.sort(dim=-1).values
    return torch.from_numpy(np.sort(values.numpy(), axis=-1))


def race(scaled: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """Draw from softmax(scaled), [R, V], with the noise of (seed, position), int64 [R] each. Returns int64 [R].

    argmax(p / Exp(1)) draws from p (the exponential race): no cumulative sum, no host sync, and a seed per row.
    """
    return (scaled.softmax(-1) / exponential(seeds, positions, scaled.shape[1])).argmax(-1)
