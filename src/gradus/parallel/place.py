"""A rank's place: its stage of the pipeline, and its part of that stage's matrices."""

from dataclasses import dataclass, replace

from gradus.errors import ConfigError
from gradus.models.config import ModelConfig, Shard


@dataclass(frozen=True, slots=True)
class Place:
    """Rank `rank` among `tensor` * `pipeline` ranks. Consecutive ranks share a stage."""

    rank: int
    tensor: int = 1
    pipeline: int = 1

    @property
    def count(self) -> int:
        """The number of all ranks."""
        return self.tensor * self.pipeline

    @property
    def stage(self) -> int:
        return self.rank // self.tensor

    @property
    def part(self) -> int:
        """The rank's number in its stage."""
        return self.rank % self.tensor

    @property
    def first(self) -> bool:
        """Whether this is the first stage, which embeds tokens."""
        return self.stage == 0

    @property
    def last(self) -> bool:
        """Whether this is the last stage, which has the head and samples."""
        return self.stage == self.pipeline - 1

    @property
    def before(self) -> int:
        """The rank with this part of the stage before; of the last stage, if this is the first."""
        return (self.rank - self.tensor) % self.count

    @property
    def after(self) -> int:
        """The rank with this part of the next stage; of the first stage, if this is the last."""
        return (self.rank + self.tensor) % self.count

    def layers(self, count: int) -> range:
        """Divide `count` layers evenly among the stages, one more for the first ones; return this stage's."""
        each, more = divmod(count, self.pipeline)
        start = self.stage * each + min(self.stage, more)
        return range(start, start + each + (self.stage < more))

    def shard(self, config: ModelConfig) -> Shard:
        """The rank's part of the model: its stage's layers, its heads and features, and its tokens of the vocabulary.

        The ranks of a stage divide the vocabulary. Raises ConfigError if the model does not divide evenly, or
        if a stage would need what only another one has.
        """
        if config.num_layers < self.pipeline:
            raise ConfigError(f"pipeline_parallel {self.pipeline}: the model has only {config.num_layers} layers")
        try:
            shard = config.shard(self.part, self.tensor)
        except ValueError as error:
            raise ConfigError(f"tensor_parallel {self.tensor}: {error}") from error
        rows = -(-config.vocab_size // self.tensor)
        try:
            part = replace(shard.config.stage(self.layers(config.num_layers)), vocab_size=rows)
        except ValueError as error:
            raise ConfigError(f"pipeline_parallel {self.pipeline}: {error}; use tensor_parallel") from error
        return shard._replace(config=part, tokens=range(self.part * rows, (self.part + 1) * rows))
