"""The student writes attention over a rectangle whose padding cells are neither stored nor seen."""

from gradus.exercises import Exercise

EXERCISE = Exercise(
    file="phases/p02_static_batching/padded.py",
    functions={
        "pad": (
            "The flat batch has its rows one span after the other; the rectangle has batch_size rows of `width` "
            "tokens. Where does token i of a span with slot s go? And what else in a batch counts rows?",
            "Token i of slot s goes to row s · width + i, `width` being the longest span's count. All other rows are "
            "token 0 at position 0. Whatever points at rows (query_start, logits_rows) points into the rectangle now.",
            "where: that row for each flat row, as a tensor on the device of batch.token_ids, as are all new ones. "
            "token_ids = torch.zeros(batch_size * width, dtype=torch.int64, device=…); "
            "token_ids[where] = batch.token_ids, the same for positions; logits_rows = where[batch.logits_rows]; "
            "query_start = [slot · width, for each slot]. The rest of the Batch stays: "
            "dataclasses.replace(batch, token_ids=…, …) makes the new one.",
        ),
        "PaddedAttention.prepare": (
            "The batch is a rectangle: the rows of slot s are s · width to (s + 1) · width - 1. Which of them are "
            "real, and what may each one see? Everything here is the same for all layers, so it is worked out once.",
            "The rows of span i are query_start[i] + 0 … counts[i] - 1; all others are padding, which is stored "
            "nowhere. A row sees its own slot's keys up to its own position, so one comparison of positions with a "
            "range of key positions makes the mask, [size, width, length]. There is one mask for each window of the "
            "configuration.",
            "Keep self.width, the largest of batch.counts; self.size, the rows divided by the width; self.length, the "
            "largest of batch.lengths. self.real: a tensor of the real rows, on the batch's device; self.slots = "
            "real // width; self.positions = batch.positions[real]; queries = batch.positions.view(size, width, 1); "
            "keys = torch.arange(self.length, device=queries.device); self.masks = {window: visible(queries, keys, "
            "window) for window in set(self.config.windows)}.",
        ),
        "PaddedAttention.attend": (
            "The same two acts as in p01: store, unless k and v are None, then attend. Only the real rows are stored; "
            "all rows attend.",
            "self.storage.store wants the slots and positions of the real rows, and k and v of just these. "
            "self.storage.seen gives the keys and values of the first `size` slots; q becomes [size, width, Hq, Dh].",
            "if k is not None: store(layer, self.slots, self.positions, k[self.real], v[self.real]); keys, values = "
            "self.storage.seen(layer, self.size, self.length); then attend_masked(q.view(size, width, Hq, Dh), keys, "
            "values, the mask of this layer's window, scale=…, softcap=…, sinks=sinks), with the config's scale and "
            "cap, flattened to [N, Hq, Dh] again.",
        ),
        "visible": (
            "p01's causal mask, said with positions: which keys may a query see, and how far back does a window reach?",
            "A key is seen if its position is at most the query's. With a window, it must also be nearer than that: a "
            "query sees itself and the window - 1 positions before it.",
            "seen = keys <= queries, and with a window also keys > queries - window. Broadcasting does the rest.",
        ),
    },
    text="Lay the batch out as a rectangle, attend over all of it at once, and let no padding in: a pad token is "
    "stored nowhere, and no real query ever sees a key that is not its own sequence's. What a pad row itself sees "
    "does not matter, but it must see something: a softmax over nothing is NaN.",
    why={
        "pad": (
            "One index tensor says where each real row goes, and serves tokens, positions and logits alike. The "
            "padding is real work on purpose: this phase is here to show what it costs."
        ),
        "PaddedAttention.prepare": (
            "Masks are the same in all layers, so they are made here, one per distinct window and not one per "
            "layer. `real` is found once, and then storing needs no condition."
        ),
        "PaddedAttention.attend": (
            "Only real rows are stored, but all rows attend: a rectangle is what the batched product wants. What "
            "padded rows compute is thrown away later, when logits are taken from real rows alone."
        ),
        "visible": (
            "Positions, not places in the rectangle, decide what is seen. So one comparison is right for a prompt, "
            "for a decode, and for sequences of different lengths side by side."
        ),
    },
)
