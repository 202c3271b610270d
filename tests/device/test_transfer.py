"""Numbers on their way to a device: whole, in order, and where a kernel wants them."""

import pytest
import torch

from gradus.device import transfer
from gradus.device.transfer import ALIGNMENT, BUFFERS, Arrival, Staging, upload_parts

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("lengths", [(1, 1), (3, 5, 4), (0, 2), (256, 256, 257)])
def test_parts_arrive_whole_and_each_is_aligned(dtype, lengths):
    parts = [list(range(10 * number, 10 * number + length)) for number, length in enumerate(lengths)]
    found = upload_parts(parts, dtype, CPU)
    assert [part.tolist() for part in found] == parts and {part.dtype for part in found} == {dtype}
    first = found[0].untyped_storage().data_ptr()
    assert all((part.data_ptr() - first) % ALIGNMENT == 0 for part in found if len(part))


def test_what_was_written_last_is_sent_and_no_more_than_the_target_has_room_for():
    staging, target = Staging([4], torch.int64, CPU), torch.zeros(4, dtype=torch.int64)
    for number in range(2 * BUFFERS):
        staging.fill()[:2] = [number, -number]
        staging.send(target[:2])
        assert target.tolist() == [number, -number, 0, 0]


def test_a_buffer_is_written_again_only_when_the_device_has_read_it(monkeypatch):
    """The n-th copy is behind the n-th renewal of its buffer's arrival: that one is what has to be waited for."""
    sent, told = [], []

    class Watched(Arrival):
        behind = 0  # copies

        def renew(self) -> None:
            self.behind = len(sent)

        def wait(self) -> None:
            told.append(self.behind)

    monkeypatch.setattr(transfer, "Arrival", Watched)
    staging, target = Staging([1], torch.int64, CPU), torch.zeros(1, dtype=torch.int64)
    for number in range(2 * BUFFERS):
        buffer = staging.fill()
        assert buffer[0] == (sent[number - BUFFERS] if number >= BUFFERS else 0), "it is not its turn"
        buffer[0] = number
        sent.append(number)
        staging.send(target)
    assert told == [0] * BUFFERS + list(range(1, BUFFERS + 1))
