"""The student writes the radix tree, what the cache does with it (find, publish, evict), and a second tier below."""

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
    why={
        "PrefixIndex.path": (
            "It is a generator, because its two callers want different things of the same walk: `match` only pages, "
            "`insert` also the place where the walk ended. It stops inside a node, since what hangs below continues "
            "the whole node."
        ),
        "PrefixIndex.insert": (
            "What the tree knows stays, and only the rest is added, so that a page number once in the tree never "
            "changes under its readers. The caller gets the tree's pages back and can give up its own copies."
        ),
        "PrefixIndex.split": (
            "The new node is the lower one, so the upper node keeps its identity and its parent need not be told. "
            "Only the grandchildren and the owners of the moved pages change hands."
        ),
    },
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
    why={
        "PrefixCache.admit": (
            "The last token is left out, because its row gives the next token's logits and so must be computed. "
            "Sharing at once protects the pages: idle ones could be evicted by the very next reservation."
        ),
        "PrefixCache.publish": (
            "Only full pages of stored tokens are entered, since a page that is still written to cannot be shared. "
            "Where two sequences computed the same prefix at the same time, the second adopts the first one's page, "
            "and the copy is free again."
        ),
        "PrefixCache.evict": (
            "The pool knows which page has been idle longest, the index knows its path, and each forgets its part. "
            "A page at the end of a path goes first, because `release` drops pages last first."
        ),
    },
)

TIERS = Exercise(
    file="phases/p05_prefix_cache/tiers.py",
    functions={
        "names": (
            "In the tree, a page's place says what came before it. What must a name contain to say as much without "
            "the tree?",
            "A name is a pair: a digest of all pages before, and the page's own key, which has the salt and the "
            'tokens. The first page\'s digest is b"". Each later one is the `digest` of the whole name before it.',
            'before = b""; for key in keys: yield before, key, and then before = digest((before, key)).',
        ),
        "copy_out": (
            "Another sequence will soon overwrite the page. Which operations of torch give a view of it, and which a "
            "copy?",
            "Index each layer's keys and values by the page and copy that to the CPU. On a CPU, `.to` returns its own "
            "tensor unless it is asked for a copy.",
            'return [layer[page].to("cpu", copy=True) for layer in (*storage.keys, *storage.values)]',
        ),
        "TieredCache.admit": (
            "p05's `admit` finds the pages in the tree. The path may go on below. What must happen to a page from "
            "there, so that the next prompt finds it in the tree?",
            "Walk the names behind the pages found: stop at the first that the host lacks, or when the pool has no "
            "page available. Take each out of the host before the pool makes room, which may move another page down. "
            "Copy it in, put it into the block table, count its positions as stored, hit and fetched, and publish.",
            "found = super().admit(id, tokens, salt); table = self.block_tables[id]; for name in [*names(page_keys("
            "tokens[:-1], self.page_size, salt))][len(table):]: if name not in self.host or not "
            "self.pool.available: break; contents = self.host.pop(name); table += self.take(1); "
            "copy_in(self.storage, table[-1], contents). Then fetched = len(table) * self.page_size - found; if "
            "fetched: add it to self.lengths[id], self.hit_positions and self.fetched_positions, and "
            "self.publish(id, tokens, salt). Return found + fetched.",
        ),
        "TieredCache.publish": (
            "A page that enters the tree will need its name when it is evicted. Can the host have a page of that name "
            "already?",
            "After p05's `publish`, go through the full pages of stored tokens, as the block table has them now. Note "
            "each page's name, and drop the host's page of that name, if any: this page was computed again.",
            "super().publish(id, tokens, salt); path = names(page_keys(tokens[: self.stored(id)], self.page_size, "
            "salt)); for page, name in zip(self.block_tables[id], path, strict=False): self.names[page] = name; "
            "self.host.pop(name, None).",
        ),
        "TieredCache.evict": (
            "p05 says which page leaves the pool. Where in the host's order does it belong, and which page leaves the "
            "host?",
            "Copy the page that has been idle longest to the end of the host's dict, under its name. If the dict then "
            "has more than `host_pages` pages, its first one goes. Then evict as p05 does.",
            "(page,) = self.pool.oldest_idle(1); self.host[self.names.pop(page)] = copy_out(self.storage, page); if "
            "len(self.host) > self.host_pages: del self.host[next(iter(self.host))]; super().evict().",
        ),
    },
    text="Give evicted pages a second place, in host memory: name them, move them down when the pool evicts them, and "
    "fetch them when a prompt hits them. Together, the two tiers forget the least recently used page.",
    why={
        "names": (
            "The chained digest stands for the path, so that a name stays small however long the prompt is. The key is "
            "compared in full."
        ),
        "copy_out": (
            "`layer[page]` is a view: without a copy, the host would hold whatever the page's next owner writes there."
        ),
        "TieredCache.admit": (
            "Pages come up one at a time, each after it has left the host. So the page that is pushed down to make "
            "room takes the place that has just become free, and never pushes out a page that is about to be fetched."
        ),
        "TieredCache.publish": (
            "Names are made here because the tokens are known here. A page can be in the host and computed again: a "
            "prompt's last page, for its logits, or a page for which the pool had no room. One copy is enough."
        ),
        "TieredCache.evict": (
            "No clock is needed: the page that the pool evicts was used more recently than all pages of the host, so "
            "its place is the end of the dict."
        ),
    },
    alone="tests/phases/test_promises_tiers.py",
)

EXERCISES = (TREE, REUSE, TIERS)
