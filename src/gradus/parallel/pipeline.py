"""A stage of a pipeline: takes rows from the stage before it, runs its own layers, and passes them on.

(GPipe, Huang et al. 2019.) One step is in the pipeline at a time, which divides a model's memory among devices, but not
its time. The last stage's result goes to all ranks: each has a part of the head, and all sample the same tokens.
"""

from torch import Tensor

from gradus.models.attention import Attention
from gradus.models.layers import Model
from gradus.parallel.group import Group
from gradus.parallel.place import Place


class Stage:
    """Runs a model on a rank that has some of its layers, in place of the model's `forward`.

    world: all ranks.
    """

    def __init__(self, model: Model, place: Place, world: Group) -> None:
        self._model, self._place, self._world = model, place, world

    def __call__(self, token_ids: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Return the normalized hidden states on every rank. [N], [N] → [N, D]."""
        place, world = self._place, self._world
        x = self._model.embed(token_ids, positions)  # every rank has a part of the table
        if place.stage > 0:
            x = world.receive(x, place.rank - place.tensor)
        x = self._model.run_layers(x, positions, attention)
        if place.last:
            x = self._model.norm(x)
        else:
            world.send(x, place.rank + place.tensor)
        return world.share(x, place.count - 1)
