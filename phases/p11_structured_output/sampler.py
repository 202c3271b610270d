"""Masks between the two launches of a step: the model's and the draw's.

A mask depends on the token before it, which the last step has drawn on the device. Waiting for it before the model is
launched would undo what p10 has gained. So the model is launched first. While it runs, the token arrives, its automaton
advances and the mask is filled, and only the draw waits for the mask.
"""

from collections.abc import Sequence as Ordered

import torch
from torch import Tensor

from gradus.device.transfer import Arrival, to_host, upload
from gradus.engine.plan import Admission
from gradus.sampling.sampler import Rows, Sampler
from phases.p11_structured_output.grammars import Grammars
from phases.p11_structured_output.matcher import Matcher


class MaskingSampler(Sampler):
    """The usual sampler, but it draws only legal tokens where they are asked for. Log-probabilities stay the model's.

    matchers: by slot, of the sequences that ask for something.
    """

    def __init__(self, vocab_size: int, device: torch.device, grammars: Grammars) -> None:
        super().__init__(vocab_size, device)
        self.grammars = grammars
        self.matchers: dict[int, Matcher] = {}
        self.under_way: tuple[list[Matcher], Tensor, Arrival] | None = None  # tokens that they have not seen

    def admit(self, admissions: Ordered[Admission]) -> None:
        """Follow the new owner of each slot from its answer so far: it has one if it was preempted."""
        super().admit(admissions)
        for admission in admissions:
            self.matchers.pop(admission.slot, None)
            answer = admission.tokens[admission.prompt_length :]
            if matcher := self.grammars.matcher(admission.request, answer):
                self.matchers[admission.slot] = matcher

    def _draw(self, logits: Tensor, rows: Rows, legal: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Draw as usual, from what the masks leave. The model has been launched, and may still run.

        legal: the masks of the final engine; always None here.
        """
        asking = [row for row, slot in enumerate(rows.slots.tolist()) if slot in self.matchers]
        if not asking:
            return super()._draw(logits, rows)
        self.catch_up()
        matchers = [self.matchers[slot] for slot in rows.slots[asking].tolist()]
        there, allowed = upload(asking, torch.int64, self.device), torch.stack([each.allowed() for each in matchers])
        tokens = super()._draw(self.masked(logits, there, allowed), rows)
        if self.observer is not None:
            self.observer.drew(logits, rows, there, allowed, tokens)
        self.under_way = matchers, to_host(tokens[there]), Arrival(self.device)
        return tokens

    def catch_up(self) -> None:
        """Wait for the tokens of the last draw, and advance by them. The model runs meanwhile."""
        if self.under_way is None:
            return
        matchers, tokens, arrival = self.under_way
        arrival.wait()
        for matcher, token in zip(matchers, tokens.tolist(), strict=True):
            if token >= 0:  # else there was none, and the sequence has ended
                matcher.advance(token)
        self.under_way = None

    def masked(self, logits: Tensor, rows: Tensor, allowed: Tensor) -> Tensor:
        """Put -inf where a token may not come. logits: [R, V], which stays as it is. allowed: bool [M, V], on the host,
        for each of `rows`."""
        illegal = upload(allowed.logical_not().flatten().numpy(), torch.bool, self.device).view(allowed.shape)
        masked = logits.clone()
        masked[rows] = masked[rows].masked_fill(illegal, float("-inf"))
        return masked
