"""The student writes what makes a step of bounded length: where a span ends, and which spans are sampled from."""

from gradus.exercises import Exercise

EXERCISE = Exercise(
    file="phases/p06_chunked_prefill/scheduler.py",
    functions={
        "ChunkedPrefill.schedule": (
            "p05's `schedule` plans the step. What must be true of `self.left` before it begins?",
            "Each step has the whole budget. The rest is done by the methods that p05's `schedule` calls.",
            "self.left = self.token_budget; return super().schedule()",
        ),
        "ChunkedPrefill.end_of_span": (
            "The span starts at what the cache has stored. Two numbers say where it ends: what the sequence knows, and "
            "what the step has room for.",
            "It ends at the number of known tokens, or `left` positions after its start, whichever comes first.",
            "return min(len(sequence.tokens), self.cache.stored(sequence.id) + self.left)",
        ),
        "ChunkedPrefill.span": (
            "Like p00's `span`, but it may end before the newest token. What is its last row worth then?",
            "Take start and end before you reserve: `reserve` changes what is stored. Reserve up to the end, and "
            "charge the step for the tokens. The span has logits only if it ends at the newest token; the last row of "
            "any other chunk predicts a token that is in the prompt already.",
            "start, end = self.cache.stored(sequence.id), self.end_of_span(sequence); "
            "self.cache.reserve(sequence.id, end); self.left -= end - start; logits = 1 if end == "
            "len(sequence.tokens) else 0; return Span(sequence, sequence.slot, start, sequence.tokens[start:end], "
            "logits, self.cache.table_change(sequence.id))",
        ),
        "ChunkedPrefill.may_start": (
            "p05 asks for pages. What does a newcomer need beside them?",
            "At least one token of the step's budget. Ask for it first: p05's `may_start` takes hold of pages.",
            "return self.left > 0 and super().may_start(sequence)",
        ),
        "ChunkedPrefill.record": (
            "A chunk without logits has sampled nothing. It has filled pages all the same.",
            "Let p05's `record` publish the pages in any case. Return its outputs only if the span had logits.",
            "outputs = super().record(span, sampled); return outputs if span.logits else []",
        ),
    },
    text="Give every step a budget of tokens. The decodes take one each, and a prompt gets what is left, in chunks. "
    "Five short methods; the order of the sequences is p04's.",
)
