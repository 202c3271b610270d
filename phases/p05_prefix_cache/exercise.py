"""The student writes the radix tree, and what the cache does with it: find, publish, evict."""

from gradus.exercises import Exercise

TREE = Exercise(
    file="phases/p05_prefix_cache/radix.py",
    functions={
        "PrefixIndex.path": (
            "Walk down from the root as long as the tree agrees with the keys. A node is known to its parent by its "
            "first key; how many more of its keys agree, `agreeing` says. When does the walk end?",
            "Keep the node and the depth, the number of keys passed. Step into the child for keys[depth] while there "
            "is one, and yield it with the number of keys that agree. A node of which only a part agrees is the last "
            "one: whatever hangs below it continues the whole node.",
            "node, depth = self.root, 0; while depth < len(keys) and keys[depth] in node.children: node = "
            "node.children[keys[depth]]; count = agreeing(node.keys, keys[depth:]); yield node, count; if count < "
            "len(node.keys): return; depth += count.",
        ),
        "PrefixIndex.insert": (
            "First follow the tree as far as it knows the keys. Another sequence may have entered the same prefix "
            "before: whose pages does the tree keep?",
            "Collect the known pages along `path`. If there are pages beyond them, they go behind the last node of the "
            "path: `split` it first if only a part of it agrees, then `grow`. A path of no nodes ends at the root. "
            "Return the known pages and the new ones: the path as it is in the tree.",
            "known, node, count = [], self.root, 0; for node, count in self.path(keys): known += node.pages[:count]. "
            "fresh = pages[len(known):]; if fresh: self.split(node, count) if count < len(node.keys), then "
            "self.grow(node, keys[len(known):], fresh). Return known + fresh.",
        ),
        "PrefixIndex.split": (
            "Afterwards the node has its first `count` keys and pages, and one child with the rest. What else must "
            "know that it has a new parent, or a new owner?",
            "Make a Node below `node` with the keys and pages from `count` on, and the children that node had. Their "
            "parent is the new node now. `owners` must say so for each of its pages, and `node` keeps the first "
            "`count` keys and pages and the new node as its only child.",
            "lower = Node(node, node.keys[count:], node.pages[count:], node.children); del node.keys[count:], "
            "node.pages[count:]; node.children = {lower.keys[0]: lower}; for each child of lower.children.values(): "
            "child.parent = lower; self.owners |= dict.fromkeys(lower.pages, lower).",
        ),
    },
    text="Write the tree that finds the longest known prefix of a prompt. It deals in keys (the tokens of a page, and "
    "the salt) and page numbers; it touches no tensor and counts no reference.",
)

REUSE = Exercise(
    file="phases/p05_prefix_cache/cache.py",
    functions={
        "PrefixCache.admit": (
            "A sequence begins with the pages that `index.match` finds for its keys. Which tokens may not be looked "
            "up, and what must happen to the pages before anything else can evict them?",
            "Look up all tokens but the last: one row must be computed, since its logits give the next token. Share "
            "the pages found with the pool, make them the block table, and count their positions as stored. "
            "`queried_positions` and `hit_positions` keep the statistics.",
            "pages = self.index.match(page_keys(tokens[:-1], self.page_size, salt)); self.pool.share(*pages); "
            "self.block_tables[id] = pages; found = self.lengths[id] = len(pages) * self.page_size; add len(tokens) "
            "to self.queried_positions and found to self.hit_positions; return found.",
        ),
        "PrefixCache.publish": (
            "Enter the pages that are full into the index. `insert` returns the path's pages in the tree. What if one "
            "of them is not the sequence's own?",
            "Only stored tokens count, and only whole pages: `page_keys` of the stored tokens, and as many entries of "
            "the block table. Where the tree has another page for the same prefix, share that one, drop the "
            "sequence's copy, and put it into the block table.",
            "table = self.block_tables[id]; keys = page_keys(tokens[: self.stored(id)], self.page_size, salt); for "
            "place, page in enumerate(self.index.insert(keys, table[: len(keys)])): if page != table[place]: "
            "self.pool.share(page); self.pool.drop(table[place]); table[place] = page.",
        ),
        "PrefixCache.evict": (
            "Which idle page is needed least? Two parts must forget it.",
            "`self.pool.oldest_idle(1)` lists the page that has been idle longest. Remove it from the index, then let "
            "the pool reclaim it, and count the eviction.",
            "(page,) = self.pool.oldest_idle(1); self.index.remove(page); self.pool.reclaim(page); self.evictions += 1",
        ),
    },
    text="Let sequences share pages. `admit` begins one with what the tree knows, `publish` tells the tree what a "
    "step has filled, `evict` makes room. A page that any sequence refers to must never be evicted, and a sequence "
    "must hold every page of its path in the tree.",
)

EXERCISES = (TREE, REUSE)
