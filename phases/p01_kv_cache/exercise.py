"""The student writes the cache itself: the numbers of its manager, and the reading and writing of its tensors."""

from gradus.exercises import Exercise

EXERCISE = Exercise(
    file="phases/p01_kv_cache/contiguous.py",
    functions={
        "Contiguous.stored": (
            "What it promises stands in src/gradus/cache/__init__.py. Whose positions does self.length count?",
            "Only the owner has anything stored. Of every other id, 0 positions are.",
            "Give back self.length if the id is self.owner, and 0 otherwise.",
        ),
        "Contiguous.reserve": (
            "All or nothing: find every reason to say False before you change anything.",
            "There is no room if another sequence owns the cache, or if `end` is more than the capacity. Otherwise the "
            "id owns the cache, and `end` positions count as stored, although the step has yet to run.",
            "if self.owner not in (None, id) or end > self.capacity: return False. Then set self.owner = id and "
            "self.length = end, and return True.",
        ),
        "ContiguousAttention.prepare": (
            "One step holds one span. batch.starts and batch.lengths say where its new positions begin and end, and "
            "`attend` will need two views of keys and values in each layer: what to write, and what to read.",
            "The tensors are [layers, Hkv, capacity, Dh]: positions start to end are written, 0 to end are read. Keep "
            "the start too: the causal mask depends on it.",
            "(start,), (end,) = batch.starts, batch.lengths. self.keys[:, :, start:end] is what this step writes in "
            "all layers, self.keys[:, :, :end] what it reads; .unbind() cuts both into a view a layer.",
        ),
        "ContiguousAttention.attend": (
            "Store first, then attend: a token sees itself.",
            "k and v come as [N, Hkv, Dh] and are kept as [Hkv, positions, Dh]. Copy into the views that `prepare` "
            "made, and hand attend_causal the views of all positions so far.",
            "new_keys.copy_(k.transpose(0, 1)), the same for values, then attend_causal(q, keys, values, "
            "start=self.start, scale=…, window=self.config.windows[layer], softcap=…) with the config's scale and cap.",
        ),
    },
    text="Keep every key and value, so that a step computes only the rows that are new. `Contiguous` knows how many "
    "positions are stored, and never sees a tensor; `ContiguousAttention` has the tensors, and never asks which "
    "sequence owns them.",
)
