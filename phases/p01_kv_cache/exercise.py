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
            "`attend` will need both numbers in each layer.",
            "Positions start to end are written, 0 to end are read. The causal mask depends on the start, too.",
            "(self.start,), (self.end,) = batch.starts, batch.lengths.",
        ),
        "ContiguousAttention.attend": (
            "Store first, then attend: a token sees itself.",
            "k and v come as [N, Hkv, Dh], and self.keys[layer] is [Hkv, capacity, Dh]: positions start to end are "
            "written, and attend_causal gets those from 0 to end. Where k and v are None, the layer reads what an "
            "earlier one has stored, and stores nothing.",
            "keys = self.keys[layer][:, : self.end], and if k is not None: keys[:, self.start :] = k.transpose(0, 1); "
            "the same for values. Then attend_causal(q, keys, values, start=self.start, scale=…, "
            "window=self.config.windows[layer], softcap=…, sinks=sinks) with the config's scale and cap.",
        ),
    },
    text="Keep every key and value, so that a step computes only the rows that are new. `Contiguous` knows how many "
    "positions are stored, and never sees a tensor; `ContiguousAttention` has the tensors, and never asks which "
    "sequence owns them.",
    why={
        "Contiguous.stored": (
            "The manager answers for one owner and never sees a tensor. So it can be tested in microseconds, and "
            "the scheduler can ask it before any memory is touched."
        ),
        "Contiguous.reserve": (
            "Both refusals come before the first change, so a refused call leaves nothing to undo. The length moves "
            "when the step is planned, not when it has run: p10 plans a step ahead and depends on that."
        ),
        "ContiguousAttention.prepare": (
            "What is the same for all layers is worked out once per step. Here it is two numbers; in p02 it will be "
            "masks."
        ),
        "ContiguousAttention.attend": (
            "Keys are stored before they are read, so a token sees itself and no case is special. Scale, window and "
            "soft cap come from the configuration: recomputing the scale works for most models, and breaks those "
            "that choose another one."
        ),
    },
)
