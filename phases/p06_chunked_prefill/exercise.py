"""The student bounds the length of a step: where a span ends, and which spans are sampled from."""

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
    why={
        "ChunkedPrefill.schedule": (
            "The budget is a number that each span draws from, reset once per step. So the methods below need no "
            "arguments for it, and p05's `schedule` stays as it is."
        ),
        "ChunkedPrefill.end_of_span": (
            "One line replaces p04's and every caller follows: admission, room and span all ask where a span ends. "
            "That is why p04 put the question into a method."
        ),
        "ChunkedPrefill.span": (
            "The end is asked for before `reserve` moves what is stored. A chunk that stops inside the prompt gets "
            "no logits: its last row predicts a token that is known already, and computing it would cost a product "
            "with the whole vocabulary."
        ),
        "ChunkedPrefill.may_start": (
            "The cheap question comes first, since p05's `may_start` takes hold of the pages that it finds. A "
            "newcomer that is admitted without budget would hold them and not run."
        ),
        "ChunkedPrefill.record": (
            "Pages are published for every chunk, so that a sequence with the same prompt can use them before the "
            "prompt is complete. Only the outputs depend on whether anything was sampled."
        ),
    },
)
