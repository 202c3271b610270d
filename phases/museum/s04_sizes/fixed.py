"""The largest batch that the engine admits has a graph, even if it is on no grid."""

from phases.museum.s04_sizes import engine
from phases.museum.s04_sizes.engine import MODEL as MODEL
from phases.museum.s04_sizes.engine import Device as Device


class Engine(engine.Engine):
    """Records one graph more: for `most` rows, which are what a server runs when it matters."""

    def sizes(self, most: int) -> list[int]:
        """The numbers of rows to record: few, since each graph takes memory and time at the start."""
        return sorted({most, *(rows for rows in (1, 2, 4, *range(8, most + 1, 8)) if rows <= most)})
