"""Keys and values of a step that several layers read: those of the layer that makes them, lent to later ones."""

from torch import Tensor

from gradus.models.config import ModelConfig


class Lent:
    """Keeps a layer's keys and values, as it stored them, until the last layer that reads them has run."""

    def __init__(self, config: ModelConfig) -> None:
        readers = [layer for layer in range(config.num_layers) if not config.stores_kv(layer)]
        self._sources = {layer: config.kv_source(layer) for layer in readers}
        self._last = {source: reader for reader, source in self._sources.items()}
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}

    def through(self, layer: int, k: Tensor | None, v: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the keys and values that a layer attends to: its own, or, where they are None, those that it reads."""
        if k is not None and v is not None:
            if layer in self._last:
                self._kept[layer] = k, v
            return k, v
        source = self._sources[layer]
        return self._kept.pop(source) if self._last[source] == layer else self._kept[source]
