"""The student writes the guess, its verification, and the rollback of the cache."""

from gradus.exercises import Exercise

DRAFTING = Exercise(
    file="phases/p08_speculation/drafting.py",
    functions={
        "seen_before": (
            "An ending is the last few tokens of the text. Which size do you try first? And of several places, which "
            "one do you want?",
            "Try the sizes from LONGEST down to SHORTEST. For each, compare the ending with the tokens from every "
            "earlier start, the latest start first. An ending always equals itself, so the latest start is one before "
            "its own. The text goes on `size` tokens behind the start.",
            "for size in range(LONGEST, SHORTEST - 1, -1): ending = tokens[-size:]; for start in range(len(tokens) - "
            "size - 1, -1, -1): if tokens[start : start + size] == ending: return start + size. After both loops, "
            "return None.",
        ),
        "continuation": (
            "`seen_before` says where to copy from. What if the copy comes to the end of the text before it has enough "
            "tokens?",
            "Append token by token to a copy of the text, and read from the same list: behind the old end are the "
            "tokens that you have just written. Return what is new.",
            "match = seen_before(tokens); if match is None: return []. text = list(tokens); for place in range(match, "
            "match + count): text.append(text[place]). Return text[len(tokens) :].",
        ),
    },
    text="Guess the next tokens of a text from the text itself: find where its ending stood before, and copy what "
    "followed.",
    why={
        "seen_before": (
            "The longest ending is tried first, because a longer match predicts better, and the latest place first, "
            "because texts repeat what they said recently. A look-up reads the whole text, so an answer takes "
            "quadratic time; the final engine keeps an index instead."
        ),
        "continuation": (
            "It reads from the list that it appends to, so a copy may run over the old end of the text. That is how "
            "a repeated word, or a table row, goes on for as long as it is asked to."
        ),
    },
)

VERIFICATION = Exercise(
    file="phases/p08_speculation/verification.py",
    functions={
        "accepted": (
            "sampled[i] is the model's own token in the place of drafts[i]. After the first difference, what have the "
            "other rows seen?",
            "Count drafts from the first on while they equal the sample in their place, and stop at the first that "
            "does not: later ones may agree by chance, but their rows have seen the wrong text. There is one sample "
            "more than there are drafts.",
            "count = 0; while count < len(drafts) and drafts[count] == sampled[count]: count += 1; return count",
        ),
        "kept": (
            "The span has the newest token and then the drafts. Which rows have seen accepted tokens only?",
            "With n accepted drafts, the first n + 1 rows: the newest token's, and one for each accepted draft. Each "
            "gives a sampled token. Cut the span's tokens, the sampled tokens and their log-probabilities to that "
            "number, and let the span have logits once, like any decode.",
            "rows = 1 + accepted(span.tokens[1:], sampled.tokens); result = SpanResult(sampled.tokens[:rows], "
            "sampled.logprobs[:rows]); return replace(span, tokens=span.tokens[:rows], logits=1), result",
        ),
    },
    text="Compare the drafts with what the model samples in their places, and cut the step down to what agrees, so "
    "that the rest of the engine never learns that there was a guess.",
    why={
        "accepted": (
            "It compares tokens and asks for no probabilities: the noise depends on seed and position alone, so "
            "sampling every row gives what plain decoding would have given. That keeps the output the same at any "
            "temperature."
        ),
        "kept": (
            "The span is cut to what a step without speculation could have been. So scheduler, cache and outputs "
            "need no case for drafts, and one sample more than accepted drafts always comes out."
        ),
    },
)

ROLLBACK = Exercise(
    file="phases/p08_speculation/cache.py",
    functions={
        "RollbackCache.truncate": (
            "What does the cache hold of a sequence? Its length, its block table, and a reference to each page in it. "
            "Which of them change?",
            "`pages_for` says how many pages `end` positions fill. Give the others back with `self.pool.drop`, the "
            "last one first, take them out of the block table, and set the length. If no page gets empty, only the "
            "length changes.",
            "table = self.block_tables[id]; pages = self.pages_for(end); self.pool.drop(*reversed(table[pages:])); del "
            "table[pages:]; self.lengths[id] = end",
        ),
    },
    text="Take positions back: a sequence forgets what rejected drafts have stored, and gives back the pages that it "
    "no longer fills.",
    why={
        "RollbackCache.truncate": (
            "Pages beyond the new end go back, last first, as in `release`. The keys and values of rejected drafts "
            "stay where they are: the next tokens overwrite them, and nothing reads beyond a sequence's length."
        ),
    },
)

EXERCISES = (DRAFTING, VERIFICATION, ROLLBACK)
