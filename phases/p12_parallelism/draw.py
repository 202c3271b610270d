"""The next token, from scores that no rank has whole: one exchange of a few bytes, in place of a row of logits."""

import torch
from torch import Tensor

from phases.p12_parallelism.exchange import Exchange

MOST_BYTES = 24  # that a rank may give away for each token that may still be drawn


def draw(exchange: Exchange, scores: Tensor, noise: Tensor, first: int, top_k: int) -> Tensor:
    """Draw a token for each row, as one rank would that had the whole row. Returns ids, int64 [R], on every rank.

    scores: float32 [R, V'], the logits of this rank's V' tokens, whose ids begin with `first`. Ranks have tokens in
    their order; the last ones may have fewer than the others, or none.
    noise: float32 [R, V'], which is added to the scores: the token with the largest sum is drawn. (0 is greedy.)
    top_k: only the tokens with the top_k largest scores, without noise, may be drawn; 0: all may. Of equal scores, and
    of equal sums, those with lower ids count as larger.

    There is one exchange, in which a rank gives away at most MOST_BYTES * max(1, top_k) bytes per row.
    """
    sums, most = scores + noise, max(1, top_k)
    mine = largest(scores if top_k else sums, most)
    offered = torch.stack([each.gather(1, mine) for each in (scores, sums)] + [first + mine], dim=-1).double()
    missing = offered.new_tensor([-torch.inf, -torch.inf, 0]).expand(len(scores), most - mine.shape[1], 3)
    everyone = exchange.gather(torch.cat([offered, missing], dim=1))  # [parts, R, most, 3]
    scores, sums, ids = everyone.transpose(0, 1).flatten(1, 2).unbind(-1)  # in order of the ranks
    kept = largest(scores, most) if top_k else largest(sums, 1)
    sums, ids = sums.gather(1, kept), ids.gather(1, kept)
    return ids.where(sums == sums.amax(dim=1, keepdim=True), torch.inf).amin(dim=1).long()


def largest(values: Tensor, count: int) -> Tensor:
    """The places of the `count` largest values of each row, or of all there are, the largest first; of equal ones, the
    first. [R, n] → int64 [R, min(count, n)]."""
    return values.sort(dim=1, descending=True, stable=True).indices[:, :count]
