"""Logits to tokens: penalties, bias, temperature, top-k, top-p, min-p, and a draw that depends on no other sequence.

Each row of logits is sampled as if it were alone: its noise comes from (seed, position), and no reduction here runs
across rows. So a request's tokens are the same in any batch, after preemption, and on any later phase.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradus.device.transfer import upload
from gradus.engine.plan import Admission
from gradus.engine.request import SamplingParams
from gradus.kernels.noise import exponential

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of logits: the slot it samples for, the position that the new token will have, and how many drafts of the
    same span come before it (0 but in a verification)."""

    slot: int
    position: int
    drafts: int = 0


class Sampler:
    """Keeps, for each slot, how its owner samples and which tokens it has seen. Knows no sequence and no schedule."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        self.device = device
        self._slots: dict[int, _Slot] = {}

    def admit(self, admissions: Sequence[Admission]) -> None:
        """Slots change owners: nothing of those before may remain."""
        for admission in admissions:
            self._slots[admission.slot] = _Slot(admission, self.vocab_size, self.device)

    def sample(self, logits: Tensor, rows: Sequence[Row]) -> "Drawn":
        """Draw one token for each row of `logits`, float32 [R, V]. Does not wait for the device.

        A row that fails alone (its own settings, its own logits) fails only itself: `Drawn.errors` says why.
        """
        if len(rows) > 1:
            try:
                return self._sample(logits, rows)
            except Exception:
                log.exception("sampling %d rows together failed; sampling them one by one", len(rows))
        alone = [self._sample_alone(logits[i : i + 1], row) for i, row in enumerate(rows)]
        return Drawn.joined(alone) if alone else Drawn(torch.empty(0, dtype=torch.int64, device=self.device))

    def _sample_alone(self, logits: Tensor, row: Row) -> "Drawn":
        try:
            return self._sample(logits, [row])
        except Exception as error:
            log.exception("sampling failed for slot %d", row.slot)
            nothing = torch.full((1,), -1, dtype=torch.int64, device=self.device)
            return Drawn(nothing, errors={0: f"sampling failed: {type(error).__name__}"})

    def _sample(self, logits: Tensor, rows: Sequence[Row]) -> "Drawn":
        slots = [self._slots[row.slot] for row in rows]
        raw = {i: logits[i].log_softmax(-1) for i, slot in enumerate(slots) if slot.params.logprobs is not None}
        if any(slot.adjusts for slot in slots):
            logits = logits.clone()  # the caller's rows stay whole: if this fails, they are sampled again, one by one
            for i, (slot, row) in enumerate(zip(slots, rows, strict=True)):
                slot.adjust(logits[i], row.position)
        best, tokens = logits.max(dim=-1)  # NaN anywhere in a row makes its maximum NaN
        drawn = [i for i, slot in enumerate(slots) if not slot.params.greedy]
        if drawn:
            params = [slots[i].params for i in drawn]
            seeds = upload([slots[i].signed_seed for i in drawn], torch.int64, self.device)
            positions = upload([rows[i].position for i in drawn], torch.int64, self.device)
            where = upload(drawn, torch.int64, self.device)
            tokens[where] = draw(logits[where], params, seeds, positions)
        for i, slot in enumerate(slots):
            slot.record(tokens[i : i + 1])
        logprobs = {i: _report(raw[i], tokens[i], slots[i].params.logprobs or 0) for i in raw}
        return Drawn(finite_only(tokens, best), logprobs)


def draw(logits: Tensor, params: Sequence[SamplingParams], seeds: Tensor, positions: Tensor) -> Tensor:
    """Sample each row of `logits` [R, V] at its own temperature, among the tokens that its top-k, top-p, min-p leave.

    seeds, positions: int64 [R]. Returns int64 [R]. Rows of one top-k share a sort no wider than that k.
    """
    temperature = upload([p.temperature for p in params], torch.float32, logits.device).unsqueeze(1)
    best = logits.max(dim=-1, keepdim=True).values
    scaled = (logits - best) / temperature  # the likeliest token is at 0, so no temperature overflows
    for width in {_sort_width(p, logits.shape[1]) for p in params} - {0}:
        members = [i for i, p in enumerate(params) if _sort_width(p, logits.shape[1]) == width]
        where = upload(members, torch.int64, logits.device)
        # a sum of all probabilities may round to a little under 1: off must keep every token
        bounds = [params[i].top_p if params[i].top_p < 1 else math.inf for i in members]
        top_p = upload(bounds, torch.float32, logits.device).unsqueeze(1)
        scaled[where] = keep_likeliest(scaled[where], width, top_p)
    min_p = upload([p.min_p for p in params], torch.float32, logits.device).unsqueeze(1)
    scaled = scaled.masked_fill(scaled < min_p.log(), float("-inf"))  # p >= min_p * p_best, and p_best is at 0
    # argmax(p / Exp(1)) draws from p (the exponential race): no cumulative sum, no host sync, and a seed per row
    return (scaled.softmax(-1) / exponential(seeds, positions, logits.shape[1])).argmax(-1)


def keep_likeliest(logits: Tensor, width: int, top_p: Tensor) -> Tensor:
    """Mask all but the `width` likeliest tokens of each row, then all but the fewest of those that reach top_p [R, 1].

    Cuts by value, not by rank: tokens as likely as the last one kept are kept too, so no tie depends on a sort's order.
    """
    best = logits.topk(width, dim=-1).values  # [R, width], descending
    probabilities = best.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities  # what the likelier tokens reach already; 0 for the first
    last = (before < top_p).sum(-1, keepdim=True) - 1
    return logits.masked_fill(logits < best.gather(-1, last), float("-inf"))


def _sort_width(params: SamplingParams, vocab_size: int) -> int:
    """How many of the likeliest tokens must be sorted out: top-k's k, all for top-p alone, none for neither."""
    if params.top_k > 0:
        return min(params.top_k, vocab_size)
    return vocab_size if params.top_p < 1 else 0


class _Slot:
    """How one slot's owner samples, and the tokens it has seen, counted only if a penalty asks for them.

    adjusts: whether its logits are changed before anything else. plain: whether logits and temperature are all that its
    tokens follow from.
    """

    def __init__(self, admission: Admission, vocab_size: int, device: torch.device) -> None:
        request = admission.request
        self.params = request.params
        self.prompt_length = admission.prompt_length
        seed = request.seed_of(admission.index)
        self.signed_seed = seed - 2**64 if seed >= 2**63 else seed  # the same 64 bits as torch's signed integer
        params = self.params
        self.adjusts = params.penalized or bool(params.logit_bias) or params.min_tokens > 0
        narrows = params.top_k > 0 or params.top_p < 1 or params.min_p > 0
        self.plain = not (self.adjusts or narrows or params.logprobs is not None)
        self.output_counts: Tensor | None = None
        if params.logit_bias:
            self.bias_ids = upload(list(params.logit_bias), torch.int64, device)
            self.bias = upload(list(params.logit_bias.values()), torch.float32, device)
        if params.min_tokens > 0:
            self.stop_ids = upload(sorted(request.stop_ids), torch.int64, device)
        if params.penalized:
            known = upload(admission.tokens, torch.int64, device)
            self.prompt_counts = torch.bincount(known[: self.prompt_length], minlength=vocab_size)
            self.output_counts = torch.bincount(known[self.prompt_length :], minlength=vocab_size)

    def adjust(self, logits: Tensor, position: int) -> None:
        """Penalties, bias and the ban on early stops, in place on one row [V]."""
        if self.output_counts is not None:
            self._penalize(logits, self.output_counts)
        if self.params.logit_bias:
            logits.index_add_(0, self.bias_ids, self.bias)
        if position - self.prompt_length < self.params.min_tokens:
            logits[self.stop_ids] = float("-inf")

    def _penalize(self, logits: Tensor, output_counts: Tensor) -> None:
        seen = (self.prompt_counts + output_counts) > 0
        penalty = self.params.repetition_penalty
        logits.copy_(torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits))
        logits -= self.params.frequency_penalty * output_counts
        logits -= self.params.presence_penalty * (output_counts > 0)

    def record(self, token: Tensor) -> None:
        if self.output_counts is not None:
            self.output_counts.index_add_(0, token, torch.ones_like(token))


def _report(raw: Tensor, token: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The sampled token's log-probability, and the `count` best with their ids; still on the device."""
    values, ids = raw.topk(count)
    return raw[token], values, ids


def finite_only(tokens: Tensor, best: Tensor) -> Tensor:
    """-1 in the place of tokens whose row's largest logit is not finite: there was nothing to choose from."""
    return torch.where(best.isfinite(), tokens, -1)


@dataclass(slots=True)
class Drawn:
    """Rows sampled together, on the device.

    tokens: int64 [R], negative where there is none. logprobs: by row, for those that asked: the token's, and the best
    ones with their ids. errors: by row, why sampling failed.
    """

    tokens: Tensor
    logprobs: dict[int, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)

    @classmethod
    def joined(cls, rows: Sequence["Drawn"]) -> "Drawn":
        """One after the other, a row each."""
        logprobs = {i: row.logprobs[0] for i, row in enumerate(rows) if row.logprobs}
        errors = {i: row.errors[0] for i, row in enumerate(rows) if row.errors}
        return cls(torch.cat([row.tokens for row in rows]), logprobs, errors)
