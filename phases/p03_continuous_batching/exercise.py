"""The student writes the step from static to continuous: slots that are given and taken back at every step."""

from gradus.course import Exercise

EXERCISE = Exercise(
    file="phases/p03_continuous_batching/scheduler.py",
    functions={
        "ContinuousBatching.schedule": (
            "What p02 asks only when its batch is empty, this one asks at every step.",
            "Admit whoever fits first, then plan one span for each sequence that runs, newcomers included.",
            "admissions = self.admit() · if nobody runs, None · otherwise a Plan of a span for each one running, and "
            "the admissions.",
        ),
        "ContinuousBatching.admit": (
            "How many may start now? Two numbers limit it.",
            "As many as there are free slots and as there are waiting sequences, whichever is less. `start` takes the "
            "first of the queue; a slot that is given away is no longer free.",
            "One self.start(self.free_slots.pop()) for each of min(len(self.free_slots), len(self.waiting)), in a "
            "list.",
        ),
        "ContinuousBatching.release": (
            "It is called when a sequence ends and when a running one is cancelled. What does the Scheduler's own "
            "`release` do already, and what does it not know?",
            "The sequence leaves the running ones and the cache first; then its slot is free again. The list keeps the "
            "lowest slot on top, because attention reads up to the highest slot in use.",
            "super().release(sequence), then append sequence.slot to self.free_slots and sort it with reverse=True.",
        ),
    },
    text="Let sequences join and leave at every step: whoever ends gives its slot back at once, and whoever waits "
    "takes it in the next step, while the others run on. No tensor is touched: a slot changes owner by being "
    "overwritten.",
)
