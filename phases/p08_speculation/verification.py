"""Verify drafts by sampling: draw a token in every row as if no draft followed it, and compare.

Row i of a verification has seen the drafts before it, d1 … di. If these are what the model samples, the row has seen
what it would see without speculation, so its logits are the same. So is its noise, which is that of its position. It
therefore draws the same token. From the first draft that differs on, rows have seen a wrong text, and are dropped.
"""

from collections.abc import Sequence as Ordered
from dataclasses import replace

from gradus.engine.plan import Span
from gradus.engine.sequence import SpanResult


def accepted(drafts: Ordered[int], sampled: Ordered[int]) -> int:
    """Count the drafts that equal the token sampled in their place, up to the first that differs. sampled[i]: for
    drafts[i]."""
    count = 0
    while count < len(drafts) and drafts[count] == sampled[count]:
        count += 1
    return count


def kept(span: Span, sampled: SpanResult) -> tuple[Span, SpanResult]:
    """Remove the rejected drafts from the span and its result, as if they had never been there.

    span.tokens: the newest token, then the drafts; sampled: a token for each row of them. The rows that stay are the
    newest token's and those of accepted drafts. Each has seen the true text, so each gives a token. The span that is
    left has logits=1, as every span that ends at the newest known token.
    """
    rows = 1 + accepted(span.tokens[1:], sampled.tokens)
    result = SpanResult(sampled.tokens[:rows], sampled.logprobs[:rows])
    return replace(span, tokens=span.tokens[:rows], logits=1), result
