"""The student removes the waits, and then writes a replay: three files. None of it needs a GPU."""

from gradus.exercises import Exercise

AHEAD = Exercise(
    file="phases/p10_cuda_graphs/scheduler.py",
    functions={
        "PlanningAhead.advance": (
            "A decode needs a length, and `length` says which it will be. Which sequences need no further step, "
            "whatever the steps under way will sample?",
            "A sequence is never planned past `sequence.longest`. All others advance as in p04.",
            "if self.length(sequence) < sequence.longest: super().advance(sequence, plan).",
        ),
        "PlanningAhead.end_of_span": (
            "p06 ends a span at the number of known tokens, or where the budget ends. Which number takes the place of "
            "the first one?",
            "The length that the sequence will have once every planned step has run.",
            "return min(self.length(sequence), self.cache.stored(sequence.id) + self.left).",
        ),
        "PlanningAhead.span": (
            "p06's `span` takes the tokens from what is known. Which tokens does it find for a decode whose token is "
            "under way, and does it ask for logits?",
            "It finds none, and asks for none. Such a span has one token, UNKNOWN, and is sampled from. Then count "
            "what this span will sample, so that the next plan knows the length.",
            "span = super().span(sequence); if not span.tokens: span.tokens, span.logits = (UNKNOWN,), 1; "
            "self.unknown[sequence] += span.logits; return span.",
        ),
        "PlanningAhead.record": (
            "By the time a step's tokens are here, the sequence may have ended: by a stop token in the step before, or "
            "from outside. Or it was preempted: then its pages are gone. What is owed to it in each case?",
            "What the span sampled is under way no more: count it down, and forget a sequence with nothing under way. "
            "A sequence that has ended gets nothing: its slot and pages were settled when it ended. One without a "
            "block table was preempted: `record_preempted`. All others are recorded as in p06.",
            "sequence = span.sequence; self.unknown[sequence] -= span.logits; if not self.unknown[sequence]: del "
            "self.unknown[sequence] · if sequence.finish_reason is not None: return [] · if sequence.id not in "
            "self.cache.block_tables: return self.record_preempted(sequence, span, sampled) · return "
            "super().record(span, sampled).",
        ),
    },
    text="Plan with tokens that are not known yet, and set right what is known too late. `span` plans a step from "
    "lengths alone; while it runs, a sequence may stop, be cancelled or be preempted, and `record` must cope. No token "
    "after a stop may come out.",
    why={
        "PlanningAhead.advance": (
            "The limit is checked here, because it is the one ending that can be known ahead. A stop token cannot "
            "be, so a step may be computed in vain: that is the price of not waiting."
        ),
        "PlanningAhead.end_of_span": (
            "Planned length takes the place of known tokens, and nothing else changes. p06's rule about the budget "
            "stays as it was."
        ),
        "PlanningAhead.span": (
            "The parent plans what is known, and an empty span shows that the token is still on the device. A "
            "placeholder fills it in; the count of such tokens is what `length` is made of."
        ),
        "PlanningAhead.record": (
            "Late news is sorted out in one place, in the order in which it may have become stale: ended, "
            "preempted, or as planned. The scheduler before it never has to look back."
        ),
    },
)

DEVICE = Exercise(
    file="phases/p10_cuda_graphs/runner.py",
    functions={
        "NewestTokens.record": (
            "The i-th token was sampled in slots[i]. Slots come in any order, and most of the table belongs to others.",
            "Write each token to the row of its slot and leave all other rows alone. The slots are numbers of the "
            "host: `upload` takes them to the device without waiting for anything. A token of -1 is none: write 0.",
            "self.tokens[upload(slots, torch.int64, self.tokens.device)] = sampled.clamp(min=0).",
        ),
        "NewestTokens.fill_in": (
            "The batch is flat: span i begins at row batch.query_start[i]. Which spans have a hole, and whose token "
            "belongs there?",
            "Find the spans whose first token is UNKNOWN. If there are any, take the newest token of each one's slot "
            "out of the table, and write it to the row where the span begins. No value may come to the host on the "
            "way: rows and slots go up, and the rest is two look-ups on the device.",
            "unknown = [i for i, span in enumerate(plan.spans) if span.tokens[0] == UNKNOWN] · if unknown: rows = "
            "upload([batch.query_start[i] for i in unknown], torch.int64, self.tokens.device), slots likewise from "
            "batch.slots; batch.token_ids[rows] = self.tokens[slots].",
        ),
    },
    text="Keep on the device what the next step starts from. A step writes what it sampled into a table, one row per "
    "slot; the next one, planned before the host has seen that, takes it from there.",
    why={
        "NewestTokens.record": (
            "One indexed write serves any slots in any order. The clamp turns the -1 of an invalid row into a "
            "harmless token, because a condition would need the value on the host."
        ),
        "NewestTokens.fill_in": (
            "Which spans have a hole is known on the host, so only row and slot numbers travel, and the tokens "
            "never leave the device. Without holes nothing is launched."
        ),
    },
)

GRAPH = Exercise(
    file="phases/p10_cuda_graphs/graph_runner.py",
    functions={
        "GraphRunner.step": (
            "This is what is recorded. It may read the runner's own tensors and nothing else: which of them, and how "
            "many rows? At which position is a sequence's newest token, and where should a padded row be?",
            "The first `size` rows of token ids, lengths and tables. The newest token of a sequence is at its length - "
            "1; a padded row has the length 0, and must not be at position -1. Set attention up with "
            "`prepare_decodes`, then run the model and return what it returns. Ask no tensor for its value.",
            "positions = (self.lengths[:size] - 1).clamp(min=0) · self.attention.prepare_decodes(self.tables[:size], "
            "positions, self.lengths[:size]) · return self.model(self.token_ids[:size], positions, self.attention).",
        ),
        "GraphRunner.forward": (
            "Which steps were recorded, and which of the recorded sizes holds this one?",
            "A step in which a span has more than one token is p10's eager one: super().forward(batch). All others "
            "take the smallest recorded size with room for them: fill the inputs, then replay.",
            "if max(batch.counts) > 1: return super().forward(batch) · size = next(size for size in self.sizes if size "
            ">= len(batch.slots)) · self.fill(batch, size); return self.replays[size]().",
        ),
        "GraphRunner.fill": (
            "The replay reads `size` rows. The batch has fewer, and the rows behind it still hold what a larger batch "
            "left there. What would such a row do to the page that it names?",
            "Copy the batch's token ids, lengths (a decode's position, plus one) and block tables to the first rows, "
            "in place: a graph knows tensors by their address. The rows behind, up to `size`, get 0 everywhere, so "
            "that padding writes to page 0 and sees nothing.",
            "count, tables = len(batch.slots), uploaded_tables(batch) · self.token_ids[:count] = batch.token_ids; "
            "self.lengths[:count] = batch.positions + 1; self.tables[:count, : tables.shape[1]] = tables · "
            "self.token_ids[count:size] = 0, self.lengths[count:size] = 0, self.tables[count:size] = 0.",
        ),
    },
    text="Record a decode step and replay it. Without a GPU the check records with `recording.py`, which has a CUDA "
    "graph's rules: it does the noted operations again, on the same memory, whatever the host computes meanwhile.",
    why={
        "GraphRunner.step": (
            "Every input is a slice of a tensor that the runner owns, at the same address in each replay. The clamp "
            "lets padded rows compute something harmless instead of branching around them, which a graph cannot do."
        ),
        "GraphRunner.forward": (
            "Only the commonest step is recorded, one token per sequence. Everything else stays eager, so a handful "
            "of graphs covers almost all steps."
        ),
        "GraphRunner.fill": (
            "The copies are in place, since a new tensor would have a new address that the graph does not know. The "
            "rows behind are zeroed at every step, or a shrinking batch would write through another sequence's old "
            "table."
        ),
    },
    triton=True,
)

EXERCISES = (AHEAD, DEVICE, GRAPH)
