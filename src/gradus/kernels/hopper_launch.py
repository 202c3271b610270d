"""What `hopper_product` is launched with: without Gluon, which not every Triton has."""

from typing import NamedTuple

DEPTH = 128  # columns of x and the weights in a tile


class HopperLaunch(NamedTuple):
    """rows: of x, per consumer. columns: outputs of a tile. stages: tiles in shared memory. buffers: of results, per
    consumer. together: rows of tiles that pass by a column of them. from_registers: x is copied there first, two
    tiles at once, so that it is read from shared memory only once.
    """

    rows: int
    columns: int
    consumers: int
    stages: int
    buffers: int
    together: int
    from_registers: bool = False

    @property
    def tile_rows(self) -> int:
        return self.rows * self.consumers

    @property
    def step(self) -> int:
        """Columns of x and the weights that are multiplied at once: K is a multiple."""
        return 2 * DEPTH if self.from_registers else DEPTH
