"""The student writes what makes a step of bounded length: who gets a part of it, and how much."""

from gradus.course import Exercise

EXERCISE = Exercise(
    file="src/gradus/scheduling/batching.py",
    functions={
        "PagedBatching.schedule": (
            "A step has three rounds, and each gets what the one before left of the budget. Whose tokens must no "
            "prompt ever delay? And who is treated badly if newcomers are let in before prompts that are half done?",
            "First end whose time is up, then begin an empty plan with the whole budget left (None is as much as you "
            "like). Then the decodes, the prompts under way, and the newcomers. Making room for one sequence may "
            "send another one back to the queue: that one is not placed any more, and nobody is admitted in such a "
            "step.",
            "self.expire(); self.plan, self.left = Plan([]), self.token_budget or sys.maxsize; remember "
            "self.preemptions; self.decode(); for each of self.ready(), if self.left and its slot is not -1: "
            "self.place(sequence, self.make_room); self.admit() only if self.preemptions has not changed; return "
            "None for a plan without spans; self.plan.wiped = self.cache.take_wiped(); return self.plan.",
        ),
        "PagedBatching.place": (
            "A span starts where the cache says that the sequence's stored positions end. Two numbers say where it "
            "ends: what the sequence knows, and what the step has room for (`self.left`).",
            "Ask for room before anything else, and give up if there is none. Then plan one span. It is sampled from "
            "only if it reaches the newest known token, for the logits of a chunk's last row predict a token that is "
            "in the prompt already. What the span takes is gone from the step.",
            "start = self.cache.stored(sequence.id), end = min(len(sequence.tokens), start + self.left) · if not "
            "find_room(sequence, end): return False · append Span(sequence, sequence.slot, start, tokens[start:end], "
            "logits, self.cache.table_change(sequence.id)) to self.plan.spans, logits being 1 if end is the sequence's "
            "length and 0 if not · self.left -= end - start · return True.",
        ),
    },
    text="Give every step a budget of tokens, and spend it in the right order. `schedule` fills the step round by "
    "round; `place` cuts the next chunk off a prompt, or off a newcomer's. With a budget of None both are "
    "p04's: a prompt is one span.",
    tests=("tests/scheduling/test_batching.py",),
)
