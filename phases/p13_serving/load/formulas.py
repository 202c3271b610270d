"""The simulated server on the back of an envelope: a load's utilization, its tokens' pace, its queue.

A request needs `output` steps. It shares each step's fixed time with the others in it, and adds `work` seconds of its
own. With k requests inside, a step takes fixed + k · work / output on average, and k / (output · step) requests leave
per second. Arrivals and departures then move one number up and down, and how often it has which value follows.
"""

import math
from dataclasses import dataclass

from phases.p13_serving.load.simulator import Pace


def spread(low: int, high: int) -> float:
    """The standard deviation of whole numbers from `low` to `high`, all equally likely, as a share of their mean."""
    return math.sqrt(((high - low + 1) ** 2 - 1) / 12) / ((low + high) / 2)


@dataclass(frozen=True, slots=True)
class Load:
    """prompt, output: mean tokens of a request. spread: standard deviation of `output`, as a share of its mean."""

    pace: Pace
    prompt: float
    output: float
    spread: float = 0.0

    @property
    def work(self) -> float:
        """Seconds that a request adds to steps."""
        return self.prompt * self.pace.token + self.output * self.pace.row

    def step(self, inside: int) -> float:
        """Mean seconds of a step with so many requests, their prompts' tokens included."""
        return self.pace.fixed + inside * self.work / self.output

    @property
    def capacity(self) -> float:
        """Requests per second with all slots taken: what the server answers, however many arrive."""
        return self.pace.slots / (self.output * self.step(self.pace.slots))

    def utilization(self, rate: float) -> float:
        return rate / self.capacity

    def states(self, rate: float) -> list[float]:
        """The shares of time with 0, 1, … requests inside; the last is that of all slots taken, below capacity."""
        weights = [1.0]
        for inside in range(1, self.pace.slots + 1):
            leave = inside / (self.output * self.step(inside))
            weights.append(weights[-1] * rate / leave)
        weights[-1] /= 1 - self.utilization(rate)  # and any number of others wait: a geometric series
        return [weight / sum(weights) for weight in weights]

    def running(self, rate: float) -> float:
        return sum(inside * share for inside, share in enumerate(self.states(rate)))

    def tpot(self, rate: float) -> float:
        """Mean seconds per token after the first.

        By Little's law a request stays for what runs, divided by the rate. Its own prompt is no part of this time.
        """
        stays = self.running(rate) / rate if rate < self.capacity else self.output * self.step(self.pace.slots)
        return (stays - self.prompt * self.pace.token) / self.output

    def waits(self, rate: float) -> float:
        """The share of requests that find all slots taken: random arrivals see the shares of time."""
        return self.states(rate)[-1] if rate < self.capacity else 1.0

    def wait(self, rate: float, share: float) -> float:
        """Seconds that `share` of all requests wait at most: 0.99 asks for p99. Infinite from capacity on.

        Requests that wait do so for an exponential time, which Kingman's factor shortens if answers are of like length.
        """
        if rate >= self.capacity:
            return math.inf
        usual = (1 + self.spread**2) / 2 / (self.capacity - rate)
        return usual * max(0.0, math.log(self.waits(rate) / (1 - share)))

    def ttft(self, rate: float, share: float) -> float:
        """The wait, half of the step that is under way, and the step that reads the prompt."""
        return self.wait(rate, share) + 1.5 * self.tpot(rate) + self.prompt * self.pace.token
