"""The mistakes that p05 and p06 invite are caught, and the check says in a sentence what is wrong."""

from pathlib import Path

import pytest

from gradus import phases
from tests.course.conftest import PHASES, exercise_of, mistakes, reference

SWAP = """                self.pool.share(page)
                self.pool.drop(table[place])
                table[place] = page
"""
SPLIT = """                if count < len(node.keys):
                    self.split(node, count)
"""

WRONG = {
    # phase, file, the right text, the wrong text, what the sentence must say
    "p05: a prompt is hit to its end": (
        "p05",
        "cache.py",
        "page_keys(tokens[:-1], self.page_size, salt)",
        "page_keys(tokens, self.page_size, salt)",
        "a hit ends before the last token, whose row gives the logits",
    ),
    "p05: tenants share": (
        "p05",
        "cache.py",
        "page_keys(tokens[:-1], self.page_size, salt)",
        "page_keys(tokens[:-1], self.page_size)",
        "nothing is shared",
    ),
    "p05: pages found are not held": (
        "p05",
        "cache.py",
        "        self.pool.share(*pages)\n",
        "",
        "page 1 would be evicted before page 8, which is behind it",
    ),
    "p05: two copies of a page are kept": ("p05", "cache.py", SWAP, "                pass\n", "hold"),
    "p05: the copy is not given back": (
        "p05",
        "cache.py",
        "                self.pool.drop(table[place])\n",
        "",
        "PrefixCache.check",
    ),
    "p05: pages are published before they are full": (
        "p05",
        "cache.py",
        "        keys = page_keys(tokens[: self.stored(id)], self.page_size, salt)\n",
        "        keys = page_keys(tokens[: self.stored(id)] + [0] * self.page_size, self.page_size, salt)\n",
        "PrefixCache",
    ),
    "p05: the newest idle page is evicted": (
        "p05",
        "cache.py",
        "        (page,) = self.pool.oldest_idle(1)\n",
        "        page = self.pool.oldest_idle(len(self.pool.idle))[-1]\n",
        "PrefixIndex.remove",
    ),
    "p05: an evicted page stays in the tree": (
        "p05",
        "cache.py",
        "        self.index.remove(page)\n",
        "",
        "a page is indexed twice",
    ),
    "p05: a page is looked up by its own tokens alone": (
        "p05",
        "radix.py",
        "        while depth < len(keys) and keys[depth] in node.children:\n"
        "            node = node.children[keys[depth]]\n",
        "        nodes = {key: each for each in self.nodes() for key in each.keys[:1]}\n"
        "        while depth < len(keys) and keys[depth] in nodes:\n"
        "            node = nodes[keys[depth]]\n",
        "behind a fork a page is found on its own path alone",
    ),
    "p05: the walk goes on below a node that agrees in part": (
        "p05",
        "radix.py",
        "            if count < len(node.keys):\n                return\n",
        "",
        "behind a fork a page is found on its own path alone",
    ),
    "p05: a node is not split where two sequences part": (
        "p05",
        "radix.py",
        SPLIT.replace("                ", "            ").replace("                    ", "                "),
        "",
        "",
    ),
    "p05: the pages that came later are kept": (
        "p05",
        "radix.py",
        "return known + fresh",
        "return pages",
        "after the commit both hold the same two pages",
    ),
    "p05: the lower half keeps its old parent": (
        "p05",
        "radix.py",
        "            child.parent = lower\n",
        "            pass\n",
        "PrefixIndex.check",
    ),
    "p05: the lower half's pages have no owner": (
        "p05",
        "radix.py",
        "        self.owners |= dict.fromkeys(lower.pages, lower)\n",
        "",
        "PrefixIndex.check",
    ),
    "p06: the budget is not heeded": (
        "p06",
        "scheduler.py",
        "return min(len(sequence.tokens), self.cache.stored(sequence.id) + self.left)",
        "return len(sequence.tokens)",
        "is (0, 8, 0); yours is (0, 19, 1)",
    ),
    "p06: the budget is not charged": (
        "p06",
        "scheduler.py",
        "        self.left -= end - start\n",
        "",
        "a takes all 8 tokens of the budget, and b starts in the next step",
    ),
    "p06: the budget is given once and for all": (
        "p06",
        "scheduler.py",
        "        self.left = self.token_budget\n        return super().schedule()\n",
        "        self.left = self.left or self.token_budget\n        return super().schedule()\n",
        "",
    ),
    "p06: every chunk is sampled from": (
        "p06",
        "scheduler.py",
        "logits = 1 if end == len(sequence.tokens) else 0",
        "logits = 1",
        "is (0, 8, 0); yours is (0, 8, 1)",
    ),
    "p06: a prompt begins anew with every chunk": (
        "p06",
        "scheduler.py",
        "        start, end = self.cache.stored(sequence.id), self.end_of_span(sequence)\n",
        "        start, end = 0, self.end_of_span(sequence)\n",
        "is (8, 8, 0); yours is (0, 16, 0)",
    ),
    "p06: newcomers start without a token of budget": (
        "p06",
        "scheduler.py",
        "return self.left > 0 and super().may_start(sequence)",
        "return super().may_start(sequence)",
        "b starts in the next step",
    ),
    "p06: a chunk publishes nothing": (
        "p06",
        "scheduler.py",
        "        outputs = super().record(span, sampled)\n        return outputs if span.logits else []\n",
        "        return super().record(span, sampled) if span.logits else []\n",
        "",
    ),
    "p06: a chunk has an output": (
        "p06",
        "scheduler.py",
        "return outputs if span.logits else []",
        "return outputs",
        "",
    ),
    "p05: all known tokens count as stored": (
        "p05",
        "cache.py",
        "page_keys(tokens[: self.stored(id)], self.page_size, salt)",
        "page_keys(tokens, self.page_size, salt)",
        "one page of 16 is full: b finds 16; yours finds 32",
    ),
    "p05: a node that agrees in part is known whole": (
        "p05",
        "radix.py",
        "known += node.pages[:count]",
        "known += node.pages",
        "two pages before the fork and one behind it are found again: (48, 1); yours is",
    ),
    "p05: the walk goes on by one page per node": (
        "p05",
        "radix.py",
        "depth += count",
        "depth += 1",
        "two pages before the fork and one behind it are found again: (48, 1); yours is (32, 17)",
    ),
    "p05: tenants publish into one tree": (
        "p05",
        "cache.py",
        "page_keys(tokens[: self.stored(id)], self.page_size, salt)",
        "page_keys(tokens[: self.stored(id)], self.page_size, None)",
        "with the salts ('x', None) nothing is shared: (0, 33); yours is (32, 1)",
    ),
    "p05: hits are counted in pages": (
        "p05",
        "cache.py",
        "self.hit_positions += found",
        "self.hit_positions += len(pages)",
        "69 prompt tokens, of which 32 were found: (69, 32); yours counted (69, 2)",
    ),
    "p05: a single page is no hit": (
        "p05",
        "cache.py",
        "        self.pool.share(*pages)\n",
        "        pages = pages if len(pages) > 1 else []\n        self.pool.share(*pages)\n",
        "the second page differs in its last token: b's span is (16, 48); yours is (0, 64)",
    ),
    "p06: all behind the prompt is sampled from": (
        "p06",
        "scheduler.py",
        "1 if end == len(sequence.tokens) else 0",
        "1 if end >= len(sequence.request.prompt) else 0",
        "ends before the newest one: logits is 0; yours is 1",
    ),
    "p06: each sequence has the whole budget": (
        "p06",
        "scheduler.py",
        "self.cache.stored(sequence.id) + self.left",
        "self.cache.stored(sequence.id) + self.token_budget",
        "the budget is 8 tokens per step; yours planned 9: [('a', 24, 6), ('b', 0, 3)]",
    ),
    "p05: below, the page that came last leaves": (
        "p05",
        "tiers.py",
        "            del self.host[next(iter(self.host))]\n",
        "            self.host.popitem()\n",
        "a page of the host cannot be reached",
    ),
    "p05: a page moves down as the least recently used": (
        "p05",
        "tiers.py",
        "        self.host[self.names.pop(page)] = copy_out(self.storage, page)\n",
        "        self.host = {self.names.pop(page): copy_out(self.storage, page), **self.host}\n",
        "a page of the host cannot be reached",
    ),
    "p05: host memory has room for one page more": (
        "p05",
        "tiers.py",
        "if len(self.host) > self.host_pages:",
        "if len(self.host) > self.host_pages + 1:",
        "3 pages in host memory for 2",
    ),
    "p05: host memory always keeps one page": (
        "p05",
        "tiers.py",
        """        self.host[self.names.pop(page)] = copy_out(self.storage, page)
        if len(self.host) > self.host_pages:
            del self.host[next(iter(self.host))]
""",
        """        if self.host and len(self.host) >= self.host_pages:
            del self.host[next(iter(self.host))]
        self.host[self.names.pop(page)] = copy_out(self.storage, page)
""",
        "1 pages in host memory for 0",
    ),
    "p05: a page that is fetched does not enter the tree": (
        "p05",
        "tiers.py",
        "            self.publish(id, tokens, salt)\n        return",
        "        return",
        "a page of the host cannot be reached",
    ),
    "p05: tenants share below": (
        "p05",
        "tiers.py",
        "        yield before, key\n        before = digest((before, key))\n",
        "        yield before, (None, key[1])\n        before = digest((before, (None, key[1])))\n",
        "page 0 of a sequence holds keys and values of other tokens",
    ),
    "p05: what moves down is a view": (
        "p05",
        "tiers.py",
        'layer[page].to("cpu", copy=True)',
        'layer[page].to("cpu")',
        "page 0 of a sequence holds keys and values of other tokens",
    ),
    "p05: keys move down in place of values": (
        "p05",
        "tiers.py",
        "for layer in (*storage.keys, *storage.values)]",
        "for layer in (*storage.keys, *storage.keys)]",
        "the output parts from the right one",
    ),
    "p05: room is made before the page has left the host": (
        "p05",
        "tiers.py",
        """            contents = self.host.pop(name)  # first: making room moves another page down
            table += self.take(1)
""",
        """            table += self.take(1)
            contents = self.host.pop(name)
""",
        "a's pages come up in exchange for b's, so a finds all its 12 tokens; yours finds 8",
    ),
    "p05: a page is named by its own tokens alone": (
        "p05",
        "tiers.py",
        "        before = digest((before, key))\n",
        "",
        "four paths without a common beginning have 12 names",
    ),
    "p05: the last token's page is fetched": (
        "p05",
        "tiers.py",
        "page_keys(tokens[:-1], self.page_size, salt)",
        "page_keys(tokens, self.page_size, salt)",
        "a hit ends before the last token, whose row gives the logits: 8 of 12; yours finds 12",
    ),
    "p05: pages get names before they are full": (
        "p05",
        "tiers.py",
        "page_keys(tokens[: self.stored(id)], self.page_size, salt)",
        "page_keys(tokens, self.page_size, salt)",
        "a has stored 7 of its 12 tokens, and one full page gets a name; yours gave 2",
    ),
    "p05: the copies of a page that was computed twice get names": (
        "p05",
        "tiers.py",
        """        super().publish(id, tokens, salt)
        path = names(page_keys(tokens[: self.stored(id)], self.page_size, salt))
        for page, name in zip(self.block_tables[id], path, strict=False):
""",
        """        table = [*self.block_tables[id]]
        super().publish(id, tokens, salt)
        path = names(page_keys(tokens[: self.stored(id)], self.page_size, salt))
        for page, name in zip(table, path, strict=False):
""",
        "the second sequence takes the first one's pages, [1, 2, 3]; yours has names for [1, 2, 3, 5, 6, 7]",
    ),
    "p05: a page that was computed again stays below": (
        "p05",
        "tiers.py",
        "            self.host.pop(name, None)\n",
        "",
        "a page is in both tiers",
    ),
    "p05: more comes up than the pool has room for": (
        "p05",
        "tiers.py",
        " or not self.pool.available",
        "",
        "no page is idle",
    ),
}


@pytest.mark.parametrize("mistake", mistakes({name: made for name, made in WRONG.items() if made[0] in PHASES}))
def test_a_wrong_solution_is_caught_and_explained(checked, mistake):
    phase, name, right, wrong, says = WRONG[mistake]
    source = reference(phase, name)
    assert source.count(right) == 1
    verdict = checked(phase, source.replace(right, wrong), exercise_of(phases.find(phase), Path(name)))
    assert not verdict.passed
    assert says in verdict.sentence
    assert verdict.test.startswith("tests/") and "\n" not in verdict.sentence
