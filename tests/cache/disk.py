"""A disk tier over the stand-in for tensors: its thread is called by hand, and its disk can be damaged and full."""

import errno
import random
import struct
from pathlib import Path

from gradus.cache.disk.folder import PrefixFolder
from gradus.cache.disk.names import Names
from gradus.cache.disk.tier import DiskTier
from gradus.cache.paged import PagedCache
from gradus.cache.radix import PrefixIndex
from tests.cache.memory import Memory

CELL = struct.Struct("<q")


class CellStore:
    """Pages of a `Memory` as bytes: each cell is the number of its content in `contents`, which outlives a restart."""

    def __init__(self, memory: Memory, contents: list) -> None:
        self.memory, self.contents = memory, contents

    @property
    def page_bytes(self) -> int:
        return CELL.size * self.memory.page_size

    def copy_out(self, page: int) -> bytes:
        cells = [self.memory.cells[page, offset] for offset in range(self.memory.page_size)]
        self.contents += [cell for cell in cells if cell not in self.contents]
        return b"".join(CELL.pack(self.contents.index(cell)) for cell in cells)

    def copy_in(self, page: int, data: memoryview) -> None:
        for offset, (number,) in enumerate(CELL.iter_unpack(data)):
            self.memory.cells[page, offset] = self.contents[number]


class FullFolder(PrefixFolder):
    """A folder whose disk can be full."""

    full = False

    def _write(self, path: Path, *parts) -> None:
        if self.full:
            super()._write(path, parts[0][:5])
            raise OSError(errno.ENOSPC, "No space left on device")
        super()._write(path, *parts)


class Machine:
    """A cache, its memory and its disk, from one restart to the next. No thread: `work` does what the tier's would."""

    def __init__(self, path: Path, pages: int, size: int, windows: tuple[int | None, ...], most: int = 1 << 30) -> None:
        self.path, self.pages, self.size, self.windows, self.most = path, pages, size, windows, most
        self.contents: list = []
        self.start()

    def start(self) -> None:
        self.memory = Memory(self.size, self.windows)
        self.folder = FullFolder(self.path, self.most)
        names = Names({"model": "a"}, self.folder.secret, self.size)
        self.tier = DiskTier(self.folder, names, CellStore(self.memory, self.contents), self.size)
        self.cache = PagedCache(self.pages, self.size, self.windows, PrefixIndex(), self.tier)

    def restart(self, written: bool = True) -> None:
        """Begin again with what is on disk. written: after the queue has been written; else as after SIGKILL."""
        while written and self.tier.work():
            pass
        self.tier.close()
        self.start()

    def warm(self, tokens: list[int], salt: str | None, times: int | None = None) -> None:
        """Load what a sequence could hit, as the scheduler would; or interrupt that after some turns of the thread."""
        if not self.cache.loading:
            self.cache.load(tokens, salt, self.cache.available)
        while self.cache.loading and (times is None or times > 0):
            self.tier.work()
            self.cache.settle()
            times = None if times is None else times - 1

    def files(self) -> list[Path]:
        return sorted(path for path in self.path.glob("*/*") if path.is_file())

    def damage(self, draw: random.Random) -> bool:
        """Do to a file what a crash, a bad disk or a person might. False if there is none."""
        if not self.files():
            return False
        path = draw.choice(self.files())
        content = bytearray(path.read_bytes())
        match draw.randrange(4):
            case 0:
                content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
                path.write_bytes(content)
            case 1:
                path.write_bytes(content[: draw.randrange(len(content))])
            case 2:
                path.unlink()
            case 3:
                draw.choice(self.files()).write_bytes(content)  # another page's
        return True
