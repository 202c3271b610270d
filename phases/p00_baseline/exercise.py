"""The student writes the simplest scheduler: which sequence runs, and when the next one starts."""

from gradus.course import Exercise

EXERCISE = Exercise(
    file="phases/p00_baseline/scheduler.py",
    functions={
        "OneAtATime.schedule": (
            "Two questions in this order: must a sequence start, and is there one to run? The words you need are those "
            "of `Scheduler`, above in the same file: waiting, running, start, span.",
            "Start a waiting sequence only while none runs. `start` takes it from the queue and returns the admission, "
            "which belongs in this step's plan and in no later one. With no running sequence there is no plan.",
            "admissions = []; if not self.running and self.waiting: admissions.append(self.start(slot=0)); if not "
            "self.running: return None; return Plan([self.span(sequence) for sequence in self.running], admissions)",
        ),
    },
    text="Decide what runs in the next step: the sequence that came first, from its first step to its last, and only "
    "then the next. Everything else of a scheduler (the queue, the endings, cancelling) is written already, in the "
    "class `Scheduler` of the same file.",
)
