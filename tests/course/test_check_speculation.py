"""The mistakes that p08 invites are caught, and the check says in a sentence what is wrong; of three files, which."""

from pathlib import Path

import pytest

from gradus import phases
from tests.course.conftest import exercise_of, mistakes, reference

WRONG = {
    # the file, the right text, the wrong text, what the sentence must say
    "the ending finds itself": (
        "drafting.py",
        "range(len(tokens) - size - 1, -1, -1)",
        "range(len(tokens) - size, -1, -1)",
        "1, 2, 3 stood at the beginning, so the text goes on at place 3: 3; yours says 7",
    ),
    "the first place is followed, not the last": (
        "drafting.py",
        "range(len(tokens) - size - 1, -1, -1)",
        "range(len(tokens) - size)",
        "1, 2 stood at places 0 and 3, and the last time counts: 5; yours says 2",
    ),
    "short endings are tried first": (
        "drafting.py",
        "range(LONGEST, SHORTEST - 1, -1)",
        "range(SHORTEST, LONGEST + 1)",
        "the last three tokens stood at place 0, the last two at place 6: 3; yours says 8",
    ),
    "the shortest ending is never tried": (
        "drafting.py",
        "range(LONGEST, SHORTEST - 1, -1)",
        "range(LONGEST, SHORTEST, -1)",
        "1, 2 stood at places 0 and 3, and the last time counts: 5; yours says None",
    ),
    "a single token is enough": (
        "drafting.py",
        "range(LONGEST, SHORTEST - 1, -1)",
        "range(LONGEST, 0, -1)",
        "only a single token was, which says too little: None; yours says 1",
    ),
    "the place of the ending is told, not what follows it": (
        "drafting.py",
        "return start + size",
        "return start",
        "1, 2, 3 stood at the beginning, so the text goes on at place 3: 3; yours says 0",
    ),
    "an ending may not overlap its earlier place": (
        "drafting.py",
        "range(len(tokens) - size - 1, -1, -1)",
        "range(len(tokens) - 2 * size, -1, -1)",
        "5, 5 stood at place 0 as well: 2; yours says None",
    ),
    "the copy ends where the text ends": (
        "drafting.py",
        "    for place in range(match, match + count):\n        text.append(text[place])\n",
        "    text += tokens[match : match + count]\n",
        "6 tokens behind [1, 2, 3, 4, 1, 2, 3] are [4, 1, 2, 3, 4, 1]; yours are [4, 1, 2, 3]",
    ),
    "the text itself grows": (
        "drafting.py",
        "text = list(tokens)\n",
        "text, tokens = tokens, list(tokens)\n",
        "the text itself must not grow",
    ),
    "one draft too many": (
        "drafting.py",
        "range(match, match + count)",
        "range(match, match + count + 1)",
        "3 tokens behind [1, 2, 3, 4, 9, 8, 1, 2, 3] are [4, 9, 8]; yours are [4, 9, 8, 1]",
    ),
    "agreement behind a difference counts": (
        "verification.py",
        "    count = 0\n    while count < len(drafts) and drafts[count] == sampled[count]:\n        count += 1\n"
        "    return count\n",
        "    return sum(draft == token for draft, token in zip(drafts, sampled, strict=False))\n",
        "6 and 7 agree, but their rows have seen the wrong 5, so 0; yours says 2",
    ),
    "drafts are compared with the row that read them": (
        "verification.py",
        "drafts[count] == sampled[count]",
        "drafts[count] == sampled[count + 1]",
        "5 and 6 agree, 7 does not, so 2; yours says 0",
    ),
    "whatever is drafted is accepted": (
        "verification.py",
        " and drafts[count] == sampled[count]",
        "",
        "5 and 6 agree, 7 does not, so 2; yours says 3",
    ),
    "the last draft is never verified": (
        "verification.py",
        "count < len(drafts)",
        "count < len(drafts) - 1",
        "all agree, so 3; yours says 2",
    ),
    "the token that comes free of charge is forgotten": (
        "verification.py",
        "rows = 1 + accepted",
        "rows = accepted",
        "the next tokens are (5, 6, 9); yours are (5, 6)",
    ),
    "the newest token is verified as well": (
        "verification.py",
        "accepted(span.tokens[1:], sampled.tokens)",
        "accepted(span.tokens, sampled.tokens)",
        "the next tokens are (5, 6, 9); yours are (5,)",
    ),
    "the drafts are given, not the samples": (
        "verification.py",
        "SpanResult(sampled.tokens[:rows],",
        "SpanResult(tuple(span.tokens[1 : rows + 1]),",
        "the next tokens are (5, 6, 9); yours are (5, 6, 7)",
    ),
    "rejected drafts stay in the span": (
        "verification.py",
        "tokens=span.tokens[:rows], ",
        "",
        "the rows that count are those of [4, 5, 6]; yours of [4, 5, 6, 7]",
    ),
    "the span still has logits for every row": (
        "verification.py",
        ", logits=1)",
        ")",
        "the span is sampled from once, at its end; yours has 4",
    ),
    "log-probabilities of dropped tokens stay": (
        "verification.py",
        "sampled.logprobs[:rows]",
        "sampled.logprobs",
        "a log-probability for each token that is kept",
    ),
    "the length stays": (
        "cache.py",
        "        self.lengths[id] = end\n",
        "",
        "from 11 positions back to 10: yours still counts 11",
    ),
    "pages are forgotten, not given back": (
        "cache.py",
        "        self.pool.drop(*reversed(table[pages:]))\n",
        "",
        "2 of 8 pages are held, so 6 are free",
    ),
    "pages are given back and still used": (
        "cache.py",
        "        del table[pages:]\n",
        "",
        "yours keeps",
    ),
    "a page that is begun is given back": (
        "cache.py",
        "pages = self.pages_for(end)",
        "pages = end // self.page_size",
        "yours keeps",
    ),
    "the first page without a position is kept": (
        "cache.py",
        "pages = self.pages_for(end)",
        "pages = self.pages_for(end) + 1",
        "yours keeps",
    ),
    "the sequence begins anew": (
        "cache.py",
        "        table = self.block_tables[id]\n",
        "        self.release(id)\n        self.reserve(id, end)\n        table = self.block_tables[id]\n",
        "b still begins with the two pages of a",
    ),
    "the first page is given back first": (
        "cache.py",
        "self.pool.drop(*reversed(table[pages:]))",
        "self.pool.drop(*table[pages:])",
        "pages go back last one first, and so come again in their old order: (1, 2, 3, 4); yours: (1, 4, 3, 2)",
    ),
    "only the latest tokens are searched": (
        "drafting.py",
        "range(len(tokens) - size - 1, -1, -1)",
        "range(len(tokens) - size - 1, max(-1, len(tokens) - 64), -1)",
        "then 2000 other tokens, then 1, 2 again, the text goes on at place 2; yours: None",
    ),
    "drafts agree with anything sampled": (
        "verification.py",
        "drafts[count] == sampled[count]",
        "drafts[count] in sampled",
        "draft i is for what row i samples, so 0; yours says 3",
    ),
    "a full acceptance has no free token": (
        "verification.py",
        "rows = 1 + accepted(span.tokens[1:], sampled.tokens)",
        "rows = min(1 + accepted(span.tokens[1:], sampled.tokens), max(1, len(span.tokens) - 1))",
        "sampled (5, 6, 7, 1): the next tokens are (5, 6, 7, 1); yours are (5, 6, 7)",
    ),
    "a text repeats no token": (
        "drafting.py",
        "        text.append(text[place])\n",
        "        if text[place] == text[-1]:\n            break\n        text.append(text[place])\n",
        "4 tokens behind [5, 5, 5] are [5, 5, 5, 5]; yours are []",
    ),
}


@pytest.mark.parametrize("mistake", mistakes(WRONG))
def test_a_wrong_solution_is_caught_and_explained(checked, mistake):
    name, right, wrong, says = WRONG[mistake]
    source = reference("p08", name)
    assert source.count(right) == 1
    verdict = checked("p08", source.replace(right, wrong), exercise_of(phases.find("p08"), Path(name)))
    assert not verdict.passed
    assert says in verdict.sentence, verdict.sentence
    assert verdict.test.startswith("tests/phases/test_promises_speculation.py") and "\n" not in verdict.sentence
