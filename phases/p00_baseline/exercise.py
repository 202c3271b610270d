"""The student writes the simplest scheduler: whose turn it is, and when the next one's comes."""

from gradus.course import Exercise

EXERCISE = Exercise(
    file="phases/p00_baseline/scheduler.py",
    functions={
        "OneAtATime.schedule": (
            "Two questions in this order: does somebody have to start, and is there anybody to run? The words you need "
            "are Scheduler's in src/gradus/engine/scheduler.py: waiting, running, start, span.",
            "Start a waiting sequence only while nobody runs. `start` takes it from the queue and gives back the "
            "admission, which belongs in this step's plan and in no later one. Without anybody to run there is no "
            "plan.",
            "admissions = [] · if not self.running and self.waiting: append self.start(slot=0) · if not self.running: "
            "return None · return Plan of [self.span(sequence) for each one running], admissions.",
        ),
    },
    text="Decide who runs in the next step: the sequence that came first, from its first step to its last, and only "
    "then the next. Everything else of a scheduler (the queue, the endings, cancelling) is written already, in "
    "src/gradus/engine/scheduler.py.",
)
