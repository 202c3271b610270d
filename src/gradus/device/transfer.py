"""Copies between host and device without a wait.

A copy from or to ordinary memory makes the host wait for all earlier work of the device. From and to
pinned memory, which the device reads by itself, a copy is one more piece of work in the stream: the host goes on, and
an event reports when it is done. On a CPU there is nothing to move, and nothing to wait for.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

BUFFERS = 3  # copies from a `Staging` that may be in flight at once; more wait

Numbers = Sequence[int] | Sequence[float] | NDArray[Any]


def upload(values: Numbers, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Send numbers from the host to a tensor on the device: [len(values)]."""
    return upload_parts([values], dtype, device)[0]


ALIGNMENT = 16  # bytes: kernels are compiled separately for pointers with and without this alignment


def upload_parts(parts: Sequence[Numbers], dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """Send several lists in one copy, if the device is a GPU. Returns a tensor [len(part)] for each, all aligned."""
    if device.type != "cuda":
        return [torch.tensor(part, dtype=dtype, device=device) for part in parts]
    unit, spans, end = ALIGNMENT // dtype.itemsize, [], 0
    for part in parts:
        spans.append(slice(end, end + len(part)))
        end += -(-len(part) // unit) * unit
    # torch keeps the pinned block until the copy has run, even if the tensor is deleted
    sent = torch.empty(end, dtype=dtype, pin_memory=True)
    numbers = sent.numpy()
    for span, part in zip(spans, parts, strict=True):
        numbers[span] = part
    there = sent.to(device, non_blocking=True)
    return [there[span] for span in spans]


def to_host(tensor: Tensor) -> Tensor:
    """Start a copy to the host, complete once an `Arrival` made after it has arrived; on a CPU, the tensor itself."""
    if not tensor.is_cuda:
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)


def current(device: torch.device) -> AbstractContextManager[object]:
    """Work on `device` within this context: kernels and graphs are launched on torch's current GPU."""
    # by number: for a device object, torch looks through all kinds of devices
    return torch.cuda.device(numbered(device).index) if device.type == "cuda" else nullcontext()


_streams: dict[tuple[int, int], torch.cuda.Stream] = {}  # by GPU and address


def current_stream(index: int) -> torch.cuda.Stream:
    """Return a GPU's current stream. Torch makes an object for it every time, which takes longer than its use."""
    key = index, torch._C._cuda_getCurrentRawStream(index)
    stream = _streams.get(key)
    if stream is None:
        stream = _streams[key] = torch.cuda.current_stream(index)
    return stream


def numbered(device: torch.device) -> torch.device:
    """Fix the device's number: a GPU without a number becomes the one that is current now.

    A model, and everything else that outlives a call, needs this.
    """
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


class Arrival:
    """A point in the device's work: `wait` returns when all work submitted before it is done.

    timed: whether `since` can measure the time from another one.
    """

    def __init__(self, device: torch.device, *, timed: bool = False) -> None:
        self._index = numbered(device).index
        self._event = torch.cuda.Event(enable_timing=timed) if device.type == "cuda" else None
        self.renew()

    def renew(self) -> None:
        """Move the point to the end of the work submitted so far."""
        if self._event is not None:
            self._event.record(current_stream(self._index))
        self._renewed = time.perf_counter()

    @property
    def reached(self) -> bool:
        """Whether `wait` would return at once."""
        return self._event is None or bool(self._event.query())

    def wait(self) -> None:
        if self._event is not None:
            self._event.synchronize()

    def since(self, earlier: "Arrival") -> float:
        """Seconds from the earlier point to this one, on the device's clock. Both have been reached, and are timed."""
        if self._event is None or earlier._event is None:
            return self._renewed - earlier._renewed
        return 1e-3 * earlier._event.elapsed_time(self._event)


class Staging:
    """Pinned buffers used in turn: the host fills one while copies of others may still be in flight.

    shape, dtype: of each buffer. Calls come in pairs: `fill`, then `send` or `lent`.
    """

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self.buffers = [torch.zeros(*shape, dtype=dtype, pin_memory=pinned) for _ in range(BUFFERS)]
        self._numbers: list[NDArray[Any]] = [buffer.numpy() for buffer in self.buffers]
        self._read = [Arrival(device) for _ in range(BUFFERS)]  # after the last copy from each
        self._turn = 0

    def fill(self) -> NDArray[Any]:
        """Return the next buffer to write to, with its old contents."""
        self._turn = (self._turn + 1) % BUFFERS
        self._read[self._turn].wait()  # until the device has read its last copy, which it nearly always has
        return self._numbers[self._turn]

    def send(self, *targets: Tensor) -> None:
        """Copy the buffer's rows to the device, from the first on: as many to each target as it has."""
        row = 0
        for target in targets:
            target.copy_(self.buffers[self._turn][row : row + len(target)], non_blocking=True)
            row += len(target)
        self._read[self._turn].renew()

    @contextmanager
    def lent(self) -> Iterator[int]:
        """Lend the buffer, by its number, to kernels launched within: they read it where it lies. Replaces `send`."""
        yield self._turn
        self._read[self._turn].renew()
