"""Numbers on their way to a device: whole, in order, and where a kernel wants them."""

import pytest
import torch

from gradus.device.transfer import ALIGNMENT, upload_parts


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("lengths", [(1, 1), (3, 5, 4), (0, 2), (256, 256, 257)])
def test_parts_arrive_whole_and_each_is_aligned(dtype, lengths):
    parts = [list(range(10 * number, 10 * number + length)) for number, length in enumerate(lengths)]
    found = upload_parts(parts, dtype, torch.device("cpu"))
    assert [part.tolist() for part in found] == parts and {part.dtype for part in found} == {dtype}
    first = found[0].untyped_storage().data_ptr()
    assert all((part.data_ptr() - first) % ALIGNMENT == 0 for part in found if len(part))
