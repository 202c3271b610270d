"""The student writes the step from static to continuous: slots that are given and taken back at every step."""

from gradus.exercises import Exercise

EXERCISE = Exercise(
    file="phases/p03_continuous_batching/scheduler.py",
    functions={
        "ContinuousBatching.schedule": (
            "p02 asks for newcomers only when its batch is empty. This scheduler asks at every step.",
            "Admit what fits first, then plan one span for each running sequence, newcomers included.",
            "admissions = self.admit(); if not self.running: return None; return Plan([self.span(sequence) for "
            "sequence in self.running], admissions)",
        ),
        "ContinuousBatching.admit": (
            "How many sequences may start now? Two numbers limit it.",
            "As many as there are free slots and as there are waiting sequences, whichever is less. `start` takes the "
            "first of the queue; a slot that is given away is no longer free.",
            "return [self.start(self.free_slots.pop()) for _ in range(min(len(self.free_slots), len(self.waiting)))]",
        ),
        "ContinuousBatching.release": (
            "It is called when a sequence ends and when a running one is cancelled. What does the `release` of "
            "`Scheduler` (p00) do already, and what does it not know?",
            "The sequence leaves `running` and the cache first; then its slot is free again. The list keeps the lowest "
            "slot on top, because attention reads up to the highest slot in use.",
            "super().release(sequence); self.free_slots.append(sequence.slot); self.free_slots.sort(reverse=True)",
        ),
    },
    text="Let sequences join and leave at every step: one that ends gives its slot back at once, and one that waits "
    "takes it in the next step, while the others run on. No tensor is touched: a slot changes owner by being "
    "overwritten.",
    why={
        "ContinuousBatching.schedule": (
            "Admission comes before planning, so a newcomer runs in the very step that admits it. No branch tells "
            "prompts from decodes: a span is a span."
        ),
        "ContinuousBatching.admit": (
            "The smaller of two numbers limits admission, and counting first avoids a loop with two exits. The list "
            "of free slots has the lowest one on top, so pop takes it."
        ),
        "ContinuousBatching.release": (
            "The parent's `release` goes first, since it still needs the sequence's slot. Sorting keeps the lowest "
            "slot on top: attention reads up to the highest slot in use, so gaps at the end cost nothing and high "
            "slots cost time."
        ),
    },
)
