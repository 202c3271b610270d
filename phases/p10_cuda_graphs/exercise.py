"""The student writes the overlap, from the loop to the device: three files. None of it needs a GPU."""

from gradus.course import Exercise

LOOP = Exercise(
    file="src/gradus/engine/engine.py",
    functions={
        "Engine.step": (
            "Three things happen, and none of them may wait for the step that was just launched: make a plan, launch "
            "it, and record the oldest step that is under way. When is there nothing to record yet, and when must "
            "something be recorded although nothing new was launched?",
            "`_parts` says who plans and who runs (the scheduler and the runner, or a timeline that watches both). "
            "Schedule; collect what the scheduler ended by itself (`take_ended`) and count those endings. If there is "
            "a plan, launch it and put it into `in_flight`, with its result, unasked. Then, if more than `lag` steps "
            "are under way, commit the oldest one. With no plan there is nothing to overlap with: commit the oldest "
            "then, too, or the last steps would never be seen.",
            "scheduler, runner = self._parts(); plan = scheduler.schedule() · outputs = self.scheduler.take_ended(); "
            "self._count_endings(outputs) · if plan is not None: self.in_flight.append((plan, runner.run(plan))) · if "
            "self.in_flight and (plan is None or len(self.in_flight) > self.lag): outputs += self._commit(scheduler, "
            "*self.in_flight.popleft()) · return outputs.",
        ),
        "Engine.has_work": (
            "Whoever owns the loop turns it as long as this is true. Who waits and who runs is counted already in p00. "
            "What can be left when nobody waits and nobody runs?",
            "Four kinds of work: sequences that wait, sequences that run, endings that nobody has been told of yet, "
            "and steps that were launched and not recorded. The last kind outlives the others when a stop is seen "
            "late.",
            "scheduler = self.scheduler; return scheduler.waiting_count + scheduler.active_count + "
            "len(scheduler.ended) + len(self.in_flight) > 0.",
        ),
    },
    text="Turn the loop one step ahead of what is known. `step` launches a plan before the one before it has been "
    "looked at; with `lag` 0 it is the loop that you know since p00. Nothing may be lost at the end: a step that was "
    "launched is waited for once, in its turn.",
    tests=("tests/scheduling/test_overlap.py",),
)

AHEAD = Exercise(
    file="src/gradus/scheduling/batching.py",
    functions={
        "PagedBatching.decode": (
            "A decode needs a length, pages, and a slot. Which length is it, if a step under way is going to make the "
            "sequence longer by one? And which of those who decode need no further step, whatever that one samples?",
            "For everybody in `running` who is `decoding` and whose `planned` has not reached `longest`: have [0, "
            "planned) stored (which may send back others who are still to come: who has no slot any more is skipped), "
            "and plan one token at position planned - 1. If it is beyond what is known, its place is taken by UNKNOWN. "
            "Then the sequence is planned to be one longer, and the budget has one less for each span. (The reference "
            "asks the cache only where a page begins: `enter_page`. Ask every time at first.)",
            "for s in tuple(self.running): end = s.planned · if s.slot >= 0 and s.decoding and end < s.longest and "
            "self.make_room(s, end): newest = s.tokens[-1] if end == len(s.tokens) else UNKNOWN; "
            "self.plan.spans.append(Span(s, s.slot, end - 1, (newest,), 1, self.cache.table_change(s.id))); "
            "s.planned = end + 1 · after the loop: self.left -= len(self.plan.spans).",
        ),
        "PagedBatching.commit": (
            "By the time a step's tokens are here, its sequences may have ended: by a stop token in the step before, "
            "or from outside. What is owed to them? And for whom is a token all that happened?",
            "Go over spans and results together. Who has a finish_reason is passed over: slot, pages and books were "
            "settled when it ended. If the span has logits, the sequence accepts what was sampled, and that is an "
            "output. Whatever is more than a plain decoded token is for `settle`: a span of a prompt, an ending, or a "
            "page that is full now. At the end one more plan is committed. (The reference has a shorter way for a "
            "token that is sure to do nothing else. It is right without.)",
            "for span, sampled in zip(plan.spans, result.get(), strict=True): sequence = span.sequence; continue if "
            "sequence.finish_reason is not None · decoded = sequence.decoding and sequence.first_token is not None "
            "and len(span.tokens) == 1, asked before accept · if span.logits: outputs.append(sequence.accept(sampled)) "
            "· if not decoded, or it has ended, or (span.start + 1) % self._publish_every == 0: self.settle(sequence, "
            "span, sampled, decoded) · self.committed += 1; self.deadlines.step_ended(); return outputs.",
        ),
    },
    text="Plan with tokens that nobody has seen, and deal with what is seen late. `decode` plans a step from lengths "
    "alone; `commit` records a step in whose meantime a sequence may have stopped, been cancelled or been sent back. "
    "No token after a stop may reach anybody.",
    tests=("tests/scheduling/test_overlap.py", "tests/scheduling/test_batching.py"),
)

DEVICE = Exercise(
    file="src/gradus/execution/runner.py",
    functions={
        "LatestTokens.record": (
            "The i-th token was sampled in slots[i]. Slots come in any order, and most of the table belongs to others.",
            "Write each token to the row of its slot and leave all other rows alone. The slots are numbers of the "
            "host: `upload` takes them to the device without waiting for anything.",
            "self.tokens[upload(slots, torch.int64, self.tokens.device)] = tokens.",
        ),
        "LatestTokens.fill_in": (
            "The batch is flat: span i begins at row batch.query_start[i]. Which spans have a hole, and whose token "
            "belongs there?",
            "Find the spans whose first token is UNKNOWN. If there are any, take the newest token of each one's slot "
            "out of the table, and write it to the row where the span begins. No value may come to the host on the "
            "way: rows and slots go up, and the rest is two look-ups on the device.",
            "unknown = [i for i, span in enumerate(plan.spans) if span.tokens[0] == UNKNOWN] · if unknown: upload the "
            "rows [batch.query_start[i] …] and the slots [batch.slots[i] …], in one tensor if you like · "
            "batch.token_ids[rows] = self.tokens[slots].",
        ),
    },
    text="Keep on the device what the next step starts from. A step writes what it sampled into a table, a row a slot; "
    "the next one, planned before anybody has seen that, takes it from there. This is what makes it possible not to "
    "wait.",
)

EXERCISES = (LOOP, AHEAD, DEVICE)
