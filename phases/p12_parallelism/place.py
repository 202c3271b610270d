"""A rank's place: its stage of the pipeline, and its part of that stage's matrices."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """Rank `rank` of parts * stages. Neighbors in number share a stage, since they exchange most."""

    rank: int
    parts: int = 1
    stages: int = 1

    @property
    def count(self) -> int:
        """The number of all ranks."""
        return self.parts * self.stages

    @property
    def part(self) -> int:
        return self.rank % self.parts

    @property
    def stage(self) -> int:
        return self.rank // self.parts

    @property
    def last(self) -> bool:
        """Whether it is in the last stage."""
        return self.stage == self.stages - 1

    def peer(self, stage: int) -> int:
        """The rank that has the same part in another stage."""
        return stage * self.parts + self.part

    def layers(self, count: int) -> range:
        """The layers of its stage, of `count` in all: consecutive ones, as many in each stage as possible."""
        return range(count * self.stage // self.stages, count * (self.stage + 1) // self.stages)
