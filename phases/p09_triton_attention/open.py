"""The open task: read shared keys once.

p05 lets sequences share pages, and p09's kernel reads a shared page once for each of them. With a long system prompt
these are most of the bytes that a step reads. They are counted in the loads of the interpreted kernel.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gradus.course.open.declaration import Open, Refused, Trial
from phases.p09_triton_attention.paged_attention import paged_attention_reference

START = '''"""p09's open task. So far this is p09 itself, which scores 1.00."""

from torch import Tensor

from phases.p09_triton_attention.paged_attention import paged_attention


def attend(q: Tensor, keys: Tensor, values: Tensor, tables: Tensor, lengths: Tensor, scale: float) -> Tensor:
    """Attend for one new token of each of S sequences. Change what you like, in a kernel of your own or around p09's.

    q: [S, Hq, Dh]. keys, values: [pages, page_size, Hkv, Dh]. tables: int64 [S, W], filled up with page 0; sequences
    that share a beginning have the same pages there. lengths: int64 [S]. Returns [S, Hq, Dh].
    """
    query_start = lengths.new_tensor(range(len(lengths) + 1))
    return paged_attention(q, keys, values, tables, query_start, lengths, longest=1, scale=scale)
'''

PAGE, HEADS, GROUP, WIDTH = 8, 2, 2, 16
FAMILIES = ((4, 12), (3, 6), (1, 0))  # sequences, and the pages that they share


class Reads(TorchDispatchMode):
    """Bytes of keys and values that are read: by kernels, where they load, and by torch's operations, all they get.

    A copy of them is read like them. So a kernel's loads of any numbers but those of q count; and a result of an
    operation that is as large as the keys or values it was made of is taken for a copy.
    """

    def __init__(self, q: Tensor, *stored: Tensor) -> None:
        super().__init__()
        self.q, self.stored = q, list(stored)  # copies are added, and kept: no other tensor gets their addresses
        self.bytes = 0

    def loaded(self, addresses: Any, mask: Any, width: int) -> None:
        first, end = self.q.data_ptr(), self.q.data_ptr() + self.q.nbytes
        self.bytes += width * int((((addresses < first) | (addresses >= end)) & mask).sum())

    def holds(self, x: object) -> bool:
        return isinstance(x, Tensor) and storage(x) in map(storage, self.stored)

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = operation(*args, **(kwargs or {}))
        if not re.search(r"::new_|_like$", operation._schema.name):  # these look at a shape alone
            made = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
            self.read([x for x in tree_leaves((args, kwargs)) if self.holds(x)], made)
        return out

    def read(self, given: list[Tensor], made: list[Tensor]) -> None:
        """Count what an operation was given, unless it made only a view of that. Remember copies."""
        places = {storage(x) for x in made}
        if size := sum(x.nbytes for x in given if storage(x) not in places):
            self.bytes += size
            self.stored += [x for x in made if x.nbytes >= size and not self.holds(x)]

    def kept_in_torch(self, name: str) -> Callable[..., Any]:
        """A tensor's method that takes its numbers out of torch: refused for keys and values."""
        inner = getattr(Tensor, name)

        def method(x: Tensor, *args: Any, **kwargs: Any) -> Any:
            if self.holds(x):
                raise Refused(f"{name}() takes keys or values to where their reads are not counted: stay in torch")
            return inner(x, *args, **kwargs)

        return method

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count the loads of interpreted kernels within the block. Keys and values cannot leave torch."""
        from triton.runtime.interpreter import interpreter_builder as builder

        load: Callable[..., Any] = builder.create_masked_load

        def counted(ptrs: Any, mask: Any, *rest: Any) -> Any:
            if (kind := ptrs.get_element_ty()).is_floating():
                self.loaded(ptrs.data, mask.data, kind.primitive_bitwidth // 8)
            return load(ptrs, mask, *rest)

        builder.create_masked_load = counted
        with ExitStack() as stack:
            stack.callback(delattr, builder, "create_masked_load")
            for name in ("numpy", "tolist"):
                stack.enter_context(patch.object(Tensor, name, self.kept_in_torch(name)))
            stack.enter_context(self)
            yield


def storage(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def batch(seed: int) -> tuple[Tensor, ...]:
    """Families of sequences that share their first pages, in any order. Returns q, keys, values, tables, lengths."""
    random, generator = Random(seed), torch.Generator().manual_seed(seed)
    pages = iter(random.sample(range(1, 80), 79))
    rows = []
    for count, shared in FAMILIES:
        common = [next(pages) for _ in range(shared)]
        for _ in range(count):
            length = PAGE * shared + random.randint(3, 30)
            rows.append(([*common, *(next(pages) for _ in range(-(-length // PAGE) - shared))], length))
    random.shuffle(rows)
    widest = max(len(table) for table, _ in rows)
    tables = torch.tensor([[*table, *[0] * (widest - len(table))] for table, _ in rows])
    keys, values = (torch.randn(80, PAGE, HEADS, WIDTH, generator=generator) for _ in range(2))
    q = torch.randn(len(rows), HEADS * GROUP, WIDTH, generator=generator)
    return q, keys, values, tables, torch.tensor([length for _, length in rows])


def trial(yours: Any, seed: int) -> Trial:
    q, keys, values, tables, lengths = batch(seed)
    query_start = torch.arange(len(q) + 1)
    scale = WIDTH**-0.5
    wanted = paged_attention_reference(q, keys, values, tables, query_start, lengths, longest=1, scale=scale)
    asked = q.clone()
    reads = Reads(asked, keys, values)
    with reads.watching():
        out = yours.attend(asked, keys, values, tables.clone(), lengths.clone(), scale)
    if out.shape != wanted.shape or not torch.allclose(out, wanted, atol=1e-4):
        raise Refused("the result is not that of attention")
    return {"read": float(reads.bytes)}


TASK = Open(
    goal="Attend for eight sequences that share some pages, and read 55 % of the bytes of keys and values that p09's "
    "kernel reads.",
    counts="read",
    unit="bytes of keys and values",
    reach=0.55,
    trial=trial,
    start=START,
    interpreted=True,
)
