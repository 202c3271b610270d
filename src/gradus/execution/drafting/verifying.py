"""Verifies drafts in steps laid out on the host: a decode with k drafts becomes a span of k + 1 tokens with logits.

The plan limits how many drafts each decode verifies and how many positions it may store; the drafter proposes the
tokens, and the history has the sequence's length. Where all of that is in the host's memory, as on a CPU, a step has
exactly one row for each newest token and each draft. Everything below (layout, attention, model, sampler) takes spans
and knows nothing of drafts.
"""

import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gradus.attention.backend import AttentionBackend
from gradus.attention.paged import PagedAttention
from gradus.cache import TableChange
from gradus.device.transfer import current, upload, upload_parts
from gradus.engine.plan import REJECTED, UNDRAFTED, Decodes, Plan, Sampled, Span, upto_missing
from gradus.execution.result import Ready, packed
from gradus.execution.runner import ModelRunner
from gradus.sampling.sampler import Drawn, Rows, Sampler
from gradus.speculative.drafter import Drafter
from gradus.speculative.history import History
from gradus.speculative.states import HiddenStates


class VerifyingRunner:
    """Runs the plans of an engine that speculates.

    runner: runs the spans; it has no history. pages: the runner's attention. drafter, history: on the runner's device.
    states: hidden states, kept only if the drafter reads them.
    """

    def __init__(
        self,
        runner: ModelRunner,
        pages: PagedAttention,
        drafter: Drafter,
        history: History,
        states: HiddenStates | None = None,
    ) -> None:
        self.runner, self.pages, self.drafter, self.history, self.states = runner, pages, drafter, history, states
        self.device = runner.model.device
        runner.verifies, runner.keeps_hidden = True, states is not None

    @property
    def attention(self) -> AttentionBackend:
        return self.runner.attention

    @property
    def sampler(self) -> Sampler:
        return self.runner.sampler

    @torch.inference_mode()
    def run(self, plan: Plan) -> Ready:
        with current(self.device), self.runner.quiet(plan):
            return self._run(plan)

    def _run(self, plan: Plan) -> Ready:
        began = time.perf_counter()
        self.history.admit(plan.admissions)
        for admission in plan.admissions:
            self.drafter.keep(admission.slot, 0)
        self.wipe(plan.wiped)
        self.update_pages(plan.decodes.pages)
        verified = self.spans(plan.decodes)
        spans = [*verified.values(), *plan.spans]
        if not spans:
            return Ready(0, gathered(plan, verified, None))
        batch, rows, drawn = self.runner.draw(Plan(spans, plan.admissions))
        self.record(rows, drawn.tokens)
        sampled = gathered(plan, verified, drawn)
        sampled.scores = [tuple(packed(each)) for each in self.runner.scores]
        sampled.seconds = time.perf_counter() - began
        sampled.usual = self.drafter.steady or not len(plan.decodes.drafts)
        return Ready(len(batch.token_ids), sampled)

    def spans(self, decodes: Decodes) -> dict[int, Span]:
        """Lay the decodes out as spans, by their rows in the columns. A sequence that has reached its end gets none."""
        if not len(decodes):
            return {}
        slots = decodes.slots.tolist()
        lengths, newest = self.history.newest(decodes.slots)
        drafts: list[Sequence[int]] = [()] * len(decodes)
        asking = decodes.drafts.nonzero()[0]
        if len(asking):
            columns = decodes.slots[asking], decodes.limits[asking]
            asked, limits = (upload(each, torch.int64, self.device) for each in columns)
            proposed = self.drafter.propose(self.history, asked, decodes.width - 1, limits).tolist()
            for row, most, tokens in zip(asking.tolist(), decodes.drafts[asking].tolist(), proposed, strict=True):
                drafts[row] = self.sampler.drafts(slots[row], upto_missing(tokens[:most]), most)
        rows = slots, lengths, decodes.limits.tolist(), newest, drafts
        spans = {}
        for row, (slot, length, limit, token, mine) in enumerate(zip(*rows, strict=True)):
            tokens = [token, *mine][: max(0, limit - (length - 1))]
            if tokens:
                spans[row] = Span(None, slot, length - 1, tokens, len(tokens))
        if self.sampler.observer is not None:
            self.sampler.observer.laid_out(spans.values())
        return spans

    def wipe(self, pages: Sequence[int]) -> None:
        """Wipe the pages before anything is stored, even if the step stores nothing: a plan names them only once."""
        self.pages.storage.wipe(pages)
        self.drafter.wipe(pages)

    def update_pages(self, changes: Sequence[tuple[int, TableChange]]) -> None:
        """Update the decodes' block tables before anything runs: a drafter may read them."""
        if changes:
            self.pages.update_tables(changes)
        for slot, change in changes:
            self.drafter.keep(slot, change.kept * self.pages.storage.page_size)

    def record(self, rows: Rows, tokens: Tensor) -> None:
        if len(rows):
            self.history.append(rows.slots, rows.positions, tokens)
        if self.states is not None and self.runner.hidden is not None:
            drawn = zip(rows.slots.tolist(), tokens.tolist(), strict=True)
            last = {slot: row for row, (slot, token) in enumerate(drawn) if token > REJECTED}  # a slot's rows in order
            slots, standing = upload_parts([list(last), list(last.values())], torch.int64, self.device)
            hidden = self.runner.hidden
            self.states.record(slots, hidden if len(standing) == len(hidden) else hidden[standing])


def gathered(plan: Plan, verified: dict[int, Span], drawn: Drawn | None) -> Sampled:
    """Arrange the tokens drawn as the plan's commit expects: the decodes' by row in the columns, then the spans'.

    verified: the decodes' rows, and the spans that they ran as.
    """
    decodes, counts = plan.decodes, [span.logits for span in plan.spans]
    width, ends = decodes.width, len(decodes) * decodes.width
    tokens = np.full(ends + sum(counts), UNDRAFTED)
    logprobs, faults = list[bytes](), dict[int, str]()
    if drawn is not None:
        spans = [range(row * width, row * width + span.logits) for row, span in verified.items()]
        places = np.array([place for span in [*spans, range(ends, len(tokens))] for place in span], np.int64)
        tokens[places] = drawn.tokens.numpy(force=True)
        faults = {int(places[row]): reason for row, reason in drawn.faults.items()}
        if drawn.logprobs is not None:
            logprobs = [b""] * len(tokens)
            for place, pairs in zip(places.tolist(), packed(drawn.logprobs.to_host()), strict=True):
                logprobs[place] = pairs
    return Sampled(tokens, counts, logprobs, width, faults=faults)
