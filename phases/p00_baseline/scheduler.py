"""The simplest order there is: first come, first served, one sequence at a time."""

from gradus.engine.plan import Plan
from gradus.engine.scheduler import Scheduler


class OneAtATime(Scheduler):
    """Runs a sequence to its end, then takes the next. The others wait, a request's own n samples too."""

    def schedule(self) -> Plan | None:
        admissions = []
        if not self.running and self.waiting:
            admissions.append(self.start(slot=0))
        if not self.running:
            return None
        return Plan([self.span(sequence) for sequence in self.running], admissions)
