"""Steps of paged attention to try kernels on: their tensors, with everything poisoned that must not be read."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradus.kernels.attention.launch import Launch
from gradus.kernels.attention.paged import paged_attention
from gradus.kernels.attention.reference import paged_attention_reference
from gradus.kernels.attention.splits import Partials
from gradus.kernels.attention.work import Work
from gradus.kernels.rows.passage import Passage
from gradus.kernels.rows.reference import rope_store_reference
from gradus.kernels.step.plain import places
from gradus.quantization.kv import to_e4m3


@dataclass
class Step:
    """spans: (new tokens, positions stored after them) of each; a length of 0 is a padded span."""

    spans: list[tuple[int, int]]
    heads: int = 2
    group: int = 2
    head_dim: int = 32
    page: int = 16
    window: int | None = None
    softcap: float | None = None
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    fp8: bool = False  # keys and values in 8 bits
    sinks: bool = False

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(sum(length for _, length in self.spans))
        needed = [-(-length // self.page) for _, length in self.spans]
        order = (torch.randperm(sum(needed), generator=generator) + 1).split(needed)  # pages lie anywhere
        shape = (sum(needed) + 1, self.page, self.heads, self.head_dim)
        poison = torch.full(shape, float("nan"))  # page 0, and what lies behind the last position
        keys, values = poison.clone(), poison.clone()
        tables = torch.zeros(len(needed) + 2, max(needed) + 1, dtype=torch.int32)
        self.slots = torch.randperm(len(needed) + 2, generator=generator)[: len(needed)].tolist()
        for slot, pages, (count, length) in zip(self.slots, order, self.spans, strict=True):
            tables[slot, : len(pages)] = pages
            if self.window is not None:  # pages before the window are given back: page 0 is in their place
                tables[slot, : max(0, length - count - self.window + 1) // self.page] = 0
            for kept in (keys, values):
                rows = torch.randn(length, *shape[2:], generator=generator)
                for number, page in enumerate(pages.tolist()):
                    part = rows[number * self.page : (number + 1) * self.page]
                    kept[page, : len(part)] = part
        counts = torch.tensor([count for count, _ in self.spans])
        self.query_start = [0, *counts.cumsum(0).tolist()]
        q = torch.randn(self.query_start[-1], self.heads * self.group, self.head_dim, generator=generator)
        self.q, self.keys, self.values = (part.to(self.device, self.dtype) for part in (q, keys, values))
        self.scales = None
        if self.fp8:
            (self.keys, key_scales), (self.values, value_scales) = to_e4m3(self.keys), to_e4m3(self.values)
            self.scales = tuple(scales.transpose(1, 2).contiguous() for scales in (key_scales, value_scales))
        self.tables = tables.to(self.device)
        # some outweigh all scores, and some hardly count
        noise = 3 * torch.randn(self.heads * self.group, generator=generator)
        self.sink_logits = noise.to(self.device) if self.sinks else None
        self.lengths = [length for _, length in self.spans]

    def in_product(self) -> "Step":
        """Let queries lie in the product with keys and values, as in a model."""
        widths = [len(self.q), (self.group + 2) * self.heads * self.head_dim]
        product = torch.full(widths, float("nan"), device=self.device, dtype=self.dtype)
        rows = product[:, : self.heads * self.group * self.head_dim].unflatten(1, self.q.shape[1:])
        self.q = rows.copy_(self.q)
        return self

    def numbers(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def work(self, launch: Launch, fewest: int = 1, most: int = 1 << 30) -> Work:
        tokens = launch.tokens(self.group)
        work = Work(
            launch,
            tiles=sum(-(-count // tokens) for count, _ in self.spans),
            group=self.group,
            kv_heads=self.heads,
            window=self.window,
            device=torch.device(self.device),
        )
        work.items.fill_(-7)  # what an earlier step may have left
        arguments = (self.numbers(part) for part in (self.slots, self.query_start, self.lengths))
        work.lay_out(*arguments, fewest=fewest, most=most)
        return work

    def attend(self, *launches: Launch) -> Tensor:
        """With the kernels: each span by the first launch whose tile holds it, the rest by the last."""
        out = torch.full_like(self.q, float("nan"))
        fewest = 1
        for launch in launches:
            most = 1 << 30 if launch is launches[-1] else launch.tokens(self.group)
            work = self.work(launch, fewest, most)
            partials = Partials([launch], kv_heads=self.heads, head_dim=self.head_dim, device=self.q.device)
            for part in (partials.sums, partials.totals, partials.peaks):
                part.fill_(float("nan"))
            paged_attention(
                self.q, self.keys, self.values, self.tables, work, partials, out, scale=0.3, softcap=self.softcap,
                scales=self.scales, sinks=self.sink_logits,
            )  # fmt: skip
            fewest = most + 1
        return out

    def expected(self) -> Tensor:
        """In float64, from what the kernels got."""
        exact = [part.double() for part in (self.q, self.keys, self.values)]
        for part, scales in zip(exact[1:], self.scales or (), strict=False):
            part *= scales.transpose(1, 2).unsqueeze(-1)
        return paged_attention_reference(
            *exact, self.tables, self.slots, self.query_start, self.lengths,
            scale=0.3, window=self.window, softcap=self.softcap, sinks=self.sink_logits,
        )  # fmt: skip

    def attend_to_new_tokens(
        self, launch: Launch, norms: bool, rotates: bool = True, more: bool = False
    ) -> list[tuple[Tensor, Tensor]]:
        """Of decodes, with drafts or without, whose qkv product is noise: (found, expected) of the result, of all keys,
        of all values, and of their scales.

        more: queries grow with their positions, if they are rotated, and values are normalized.
        """
        tokens, device = self.query_start[-1], self.device
        width = (self.group + 2) * self.heads * self.head_dim
        qkv = torch.randn(tokens, width).to(device, self.dtype)
        angles = 6 * torch.rand(max(self.lengths), self.head_dim // 2)
        rotary = torch.cat((angles.cos(), angles.sin()), 1).to(device, self.dtype)
        gains = torch.randn(2, self.head_dim).to(device, self.dtype)
        passage = Passage(
            rotary if rotates else None, (gains[0], gains[1]) if norms else None, 1e-5,
            growth=1 + torch.rand(len(angles), device=device) if more and rotates else None,
            value_eps=1e-5 if more else None,
        )  # fmt: skip
        work, out = self.work(launch), torch.full_like(self.q, float("nan"))
        partials = Partials([launch], kv_heads=self.heads, head_dim=self.head_dim, device=self.q.device)
        keys, values = self.keys.clone(), self.values.clone()
        scales = self.scales and tuple(part.clone() for part in self.scales)
        paged_attention(
            qkv, keys, values, self.tables, work, partials, out, scale=0.3, softcap=self.softcap,
            passage=passage, scales=scales, sinks=self.sink_logits,
        )  # fmt: skip

        each = [length - count + new for count, length in self.spans for new in range(count)]
        owners = [slot for slot, (count, _) in zip(self.slots, self.spans, strict=True) for _ in range(count)]
        positions = torch.tensor(each)
        rows = places(
            torch.tensor(owners), positions.clamp(min=0), self.tables[None].cpu(), self.page
        )[0].where(positions >= 0, -1)  # fmt: skip
        self.q = rope_store_reference(
            qkv, self.keys, self.values, rows.to(device), passage, positions.clamp(min=0).to(device),
            scales=self.scales,
        )  # fmt: skip
        stored = [(keys, self.keys), (values, self.values), *zip(scales or (), self.scales or (), strict=True)]
        return [(out, self.expected()), *stored]


def on_host(operation, *arguments):
    """Run a plain operation of a step on tensors of integers: it shares their memory, so they have what it writes.

    Returns its columns as tensors.
    """
    found = operation(*map(column, arguments))
    return type(found)(*map(torch.from_numpy, found)) if hasattr(found, "_fields") else found


def column(part):
    """A column of a tensor of integers; of a record, each of its parts; anything else as it is."""
    if hasattr(part, "_fields"):
        return type(part)(*map(column, part))
    return part.numpy() if isinstance(part, Tensor) and not part.is_floating_point() else part


def parted(found: Tensor, expected: Tensor) -> str:
    """Say where a result is farthest from what is expected, and what both have there. NaN is farther than anything."""
    off = (found.double() - expected.double()).abs().nan_to_num(torch.inf)
    place = [int(each) for each in torch.unravel_index(off.argmax(), off.shape)]
    return f"at {place} it is {float(expected[tuple(place)]):.6g}; yours: {float(found[tuple(place)]):.6g}"
