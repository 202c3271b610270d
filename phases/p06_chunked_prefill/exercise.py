"""The student writes what makes a step of bounded length: which prompt goes on, and how far."""

from gradus.course import Exercise

EXERCISE = Exercise(
    file="src/gradus/engine/batching.py",
    functions={
        "PagedBatching.ready": (
            "These get what the decodes have left of the budget. Which of the running sequences are they, and who comes "
            "first?",
            "A running sequence is `decoding` once its whole prompt is stored. Those that are not yet, by their `order`: "
            "the smaller one goes first, under every policy.",
            "sorted(those of self.running that are not decoding, key=BY_ORDER).",
        ),
        "PagedBatching.place": (
            "A span starts where the cache says that the sequence's stored positions end. Two numbers say where it ends: "
            "what the sequence knows, and what the step has room for (`self.left`).",
            "Ask for room before anything else, and give up if there is none. Then plan one span. It is sampled from only "
            "if it reaches the newest known token, for the logits of a chunk's last row predict a token that is in the "
            "prompt already. What the span takes is gone from the step.",
            "start = self.cache.stored(sequence.id), end = min(len(sequence.tokens), start + self.left) · if not "
            "find_room(sequence, end): return False · append Span(sequence, sequence.slot, start, tokens[start:end], "
            "logits, self.cache.tables(sequence.id)) to self.plan.spans, logits being 1 if end is the sequence's length "
            "and 0 if not · self.left -= end - start · return True.",
        ),
    },
    text="Give every step a budget of tokens. The decodes have had theirs when your functions are asked: `ready` names "
    "the prompts under way in the order in which they get what is left, `place` cuts the next chunk off one of them. "
    "Newcomers are placed by the same function, and with a budget of None it is p04's: the whole prompt in one span.",
    tests=("tests/engine/test_batching.py",),
)
