"""Slots that change owners: requests that leave much behind, and tables that hold the worst that could be left.

In other engines a freed slot kept its mask of allowed tokens, or a penalty, and the next user's answer was constrained
by a stranger's request (CVE-2026-114049). Here a test overwrites every value of a freed slot with poison: a next owner
whose admission forgot one of them gets another answer, or none.
"""

import math
from itertools import cycle

import torch

from gradus.engine.request import ModelLimits, Request, SamplingParams
from gradus.sampling.slots import MAX_ENTRIES, SlotTable

EOS, VOCAB = 257, 320
LIMITS = ModelLimits(VOCAB, 64, (EOS,), structured=True)

LEAVING = {
    "mask": dict(structured={"choice": ["xyz"]}, temperature=1.0, seed=1),
    "bias": dict(logit_bias={7: 100.0, 8: -100.0}, min_tokens=3, stop_token_ids=[9]),
    "penalties": dict(repetition_penalty=5.0, presence_penalty=2.0, frequency_penalty=2.0, seed=3, temperature=0.1),
    "filters": dict(temperature=2.0, top_k=1, top_p=0.01, min_p=0.9, seed=2**63 - 1, logprobs=5),
}

COMING = {
    "greedy": {},
    "drawn": dict(temperature=1.0, seed=11),
    "penalized": dict(presence_penalty=0.5, frequency_penalty=0.1, temperature=0.8, seed=12),
    "biased": dict(logit_bias={40: 3.0}, temperature=1.0, seed=13),
    "masked": dict(structured={"regex": "[a-f]{4}"}, temperature=1.0, seed=14),
    "filtered": dict(temperature=1.0, top_k=50, top_p=0.9, seed=15, logprobs=2),
}

PAIRS = list(zip(COMING, cycle(LEAVING), strict=False))
"""Each request that comes, and the one whose slot it gets."""


def request(name: str, params: dict) -> Request:
    return Request.create(name, [5, 6, 7, 5], SamplingParams(max_tokens=4, **params), LIMITS)


@torch.inference_mode()
def spoil(table: SlotTable) -> None:
    """Overwrite every value of every slot, on the device and on the host, with one that would change an answer."""
    table.seeds.fill_(-1)
    table.top_k.fill_(1)
    table.adjusts.fill_(3)  # penalized and masked
    table.reports.fill_(5)
    table.entries.fill_(MAX_ENTRIES)
    table.floats.fill_(math.nan)
    table.bias_tokens.fill_(40)
    table.banned_until.fill_(1 << 30)
    table.bias_values.fill_(math.nan)
    if table.masks is not None:
        table.masks.zero_()  # no token may be drawn
    if table.seen is not None:
        table.seen[:, ::2].fill_(-1)  # a penalty for all tokens alike would change no draw
    for column in (table.adjusting, table.masked, table.drawing, table.ranking, table.narrowing):
        column.fill(True)
    table.plain.fill(False)
    table.reporting.fill(5)
