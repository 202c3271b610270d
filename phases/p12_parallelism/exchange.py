"""How ranks exchange tensors. The library (gloo) moves the bytes; what is done with them is the lesson's.

Ranks are processes here. They may also be threads of one process, since nothing is global: the tests run them so.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch import Tensor
from torch import distributed as dist

from phases.p12_parallelism.place import Place

PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Sent:
    """A tensor on its way. It must be kept until it has arrived."""

    work: Any
    x: Tensor

    def wait(self) -> None:
        self.work.wait()


class Exchange:
    """A rank's connections: to the ranks of its stage, and to those of other stages.

    path: a file, in a folder of its own, through which the ranks find each other. patience_s: how long a rank waits for
    another one before it gives up.
    """

    def __init__(self, path: str, place: Place, patience_s: float = PATIENCE_S) -> None:
        self.place = place
        self.stage = connect(f"{path}-stage-{place.stage}", place.part, place.parts, patience_s)
        self.all = connect(path, place.rank, place.count, patience_s)

    def close(self) -> None:
        """Break the connections, so that ranks that wait for this one fail at once."""
        self.stage = self.all = None

    def gather(self, x: Tensor) -> Tensor:
        """Collect the x of every rank of this stage, [parts, *x.shape], in the order of the ranks."""
        if self.place.parts == 1:
            return x[None]
        gathered = x.new_empty((self.place.parts, *x.shape))
        self.stage.allgather([list(gathered.unbind())], [x.contiguous()]).wait()
        return gathered

    def send(self, x: Tensor, rank: int) -> Sent:
        """Begin to send x, and return at once: a rank that waited here would not begin its next micro-batch."""
        x = x.contiguous()
        return Sent(self.all.send([x], rank, 0), x)

    def receive(self, x: Tensor, rank: int) -> Tensor:
        """Wait for the next tensor that `rank` sends here, which has the shape of x, and put it into x."""
        self.all.recv([x], rank, 0).wait()
        return x


def connect(path: str, rank: int, size: int, patience_s: float) -> Any:
    """Wait until `size` ranks have named the same file. They talk over this machine's loopback interface alone."""
    library: Any = dist  # the classes exist only where torch was built with them
    options = library.ProcessGroupGloo._Options()
    options._devices = [library.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = timedelta(seconds=patience_s)
    return library.ProcessGroupGloo(library.FileStore(path, size), rank, size, options)
