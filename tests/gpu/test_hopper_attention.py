"""Long prompts on Hopper: uneven spans behind cached prefixes, poisoned memory, and which steps take the kernel."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is for Linux alone")

from gradus.attention import triton_paged
from gradus.attention.batch import Batch
from gradus.attention.fp8_storage import Fp8Storage
from gradus.attention.storage import PagedStorage
from gradus.attention.triton_paged import TritonPagedAttention
from gradus.device.capability import Capability, capability
from gradus.kernels.attention.launch import HOPPER_LAUNCHES, HopperLaunch
from gradus.kernels.attention.work import Work
from gradus.models.shapes import SHAPES
from tests.kernels.cases import Step

on_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or capability(torch.device("cuda")) != (9, 0), reason="needs a Hopper GPU"
)
pytestmark = [pytest.mark.gpu, on_hopper]

# prompts, chunks behind cached positions, lengths that end within a page, at its end and one behind it
SPANS = [
    (37, 37),
    (200, 200),
    (64, 1000),
    (129, 513),
    (300, 305),
    (16, 16),
    (1, 130),
    (257, 777),
    (128, 128),
    (2, 4097),
]


def step_of(spans: list[tuple[int, int]], heads: int = 8, group: int = 4, head_dim: int = 128, **options) -> Step:
    step = Step(spans, heads=heads, group=group, head_dim=head_dim, dtype=torch.bfloat16, device="cuda", **options)
    return step.in_product()


def launch_of(step: Step) -> HopperLaunch:
    return HOPPER_LAUNCHES[step.head_dim]


def attended(step: Step, work: Work | None = None, q: Tensor | None = None) -> Tensor:
    from gradus.kernels.attention.hopper import HopperPrompts

    q = step.q if q is None else q
    out = torch.full(q.shape, float("nan"), device="cuda", dtype=q.dtype)
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    prompts = HopperPrompts({5: (step.keys, step.values)}, processors)
    work = work or step.work(launch_of(step))
    prompts.attend(5, q, step.tables.long(), work, out, 0.3, step.sink_logits)
    return out


def assert_close(step: Step) -> None:
    found, expected = attended(step).double(), step.expected()
    rows = (found - expected).norm(dim=-1)  # a wrong row must not hide among good ones
    assert (rows <= 0.04 * expected.norm(dim=-1).mean()).all()
    assert (found - expected).norm() <= 1e-2 * expected.norm()


@pytest.mark.quick
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("heads, group", [(8, 4), (8, 1), (8, 2), (2, 8), (1, 64), (2, 7)])
def test_groups_and_uneven_spans(heads, group, head_dim):
    assert_close(step_of(SPANS, heads, group, head_dim))


@pytest.mark.quick
@pytest.mark.parametrize("head_dim, window", [(256, 512), (64, 128), (128, 1), (128, 100), (64, 1000), (128, 4096)])
def test_windows(head_dim, window):
    assert_close(step_of([*SPANS, (700, 5000), (2000, 2000)], 2, 4, head_dim, window=window))


@pytest.mark.quick
@pytest.mark.parametrize("window", [None, 128])
def test_sinks(window):
    assert_close(step_of([*SPANS, (700, 3000)], 2, 8, 64, window=window, sinks=True))


@pytest.mark.parametrize("length", [*range(1, 18), 127, 128, 129, 255, 256, 257])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_every_end_of_a_page_and_of_a_block(length, head_dim):
    assert_close(step_of([(length, length), (1, length), (min(length, 40), length)], heads=2, head_dim=head_dim))


def test_more_tiles_than_programs_and_a_long_prefix():
    assert_close(step_of([(2048, 2048), (700, 9000), (1500, 1501)]))


def test_the_same_step_gives_the_same_bits():
    step = step_of([*SPANS, (1500, 3000)])
    first = attended(step)
    assert all(torch.equal(first, attended(step)) for _ in range(20))


@pytest.mark.parametrize("number", [2, 3, 7])
def test_a_sequence_alone_gets_the_bits_that_it_gets_in_a_batch(number):
    step = step_of(SPANS)
    count, length = SPANS[number]
    rows = slice(step.query_start[number], step.query_start[number + 1])
    launch = launch_of(step)
    tiles = -(-count // launch.tokens(4))
    work = Work(launch, tiles=tiles, group=4, kv_heads=8, window=None, device=step.q.device)
    numbers = (step.numbers(part) for part in ([step.slots[number]], [0, count], [length]))
    work.lay_out(*numbers, most=count)
    assert torch.equal(attended(step, work, step.q[rows]), attended(step)[rows])


# -- in the engine -----------------------------------------------------------------------------------------------------


def backend() -> TritonPagedAttention:
    config = SHAPES["llama-3.1-8b"]
    storage = PagedStorage(config, 300, 16, torch.bfloat16, torch.device("cuda"))
    return TritonPagedAttention(config, storage, slots=2)


def launches_of(attention: TritonPagedAttention, *spans: tuple[int, int]) -> list[bool]:
    """Whether each launch of such a step is Hopper's."""
    counts, lengths = zip(*spans, strict=True)
    starts = [sum(counts[:number]) for number in range(len(counts) + 1)]
    numbers = [torch.tensor(part, dtype=torch.int32, device="cuda") for part in ([0, 1], starts, lengths)]
    attention.plan(numbers[0][: len(spans)], numbers[1], numbers[2], list(counts))
    return [isinstance(work.launch, HopperLaunch) for works in attention.works.values() for work in works]


def test_long_prompts_take_it_and_what_is_beside_them_does_not():
    attention = backend()
    assert launches_of(attention, (2048, 4000)) == [True]
    assert launches_of(attention, (1, 300), (2048, 2048)) == [False, True]
    assert launches_of(attention, (1024, 4000)) == [False], "176 tiles would leave 88 of 264 places empty"
    assert launches_of(attention, (512, 512)) == [False]
    assert launches_of(attention, (1, 300), (1, 20)) == [False]


def test_no_other_gpu_takes_it(monkeypatch):
    monkeypatch.setattr(triton_paged, "capability", lambda device: Capability(10, 0))
    assert launches_of(backend(), (2048, 4000)) == [False]


def test_the_backend_attends_as_its_other_kernel_does(monkeypatch):
    """A prompt of 2,000 tokens beside a decode, in a layer that is not the first."""
    found = []
    for able in (Capability(9, 0), Capability(10, 0)):
        monkeypatch.setattr(triton_paged, "capability", lambda device, able=able: able)
        attention = backend()
        torch.manual_seed(0)
        attention.storage.keys.normal_()
        attention.storage.values.normal_()
        attention.tables[0, 0, :125] = torch.arange(125) + 1
        attention.tables[0, 1, :10] = torch.arange(10) + 200
        counts, lengths = [2000, 1], [2000, 150]
        starts = [end - count for end, count in zip(lengths, counts, strict=True)]
        positions = torch.cat([torch.arange(*span) for span in zip(starts, lengths, strict=True)]).cuda()
        owners = torch.tensor([0] * 2000 + [1]).cuda()
        batch = Batch(
            token_ids=positions, positions=positions, owners=owners, slots=[0, 1], query_start=[0, 2000],
            counts=counts, starts=starts, lengths=lengths, tables=[None, None], logits_rows=positions[:2],
            row_spans=[0, 1],
        )  # fmt: skip
        attention.prepare(batch)
        q = torch.randn(2001, 32, 128, device="cuda", dtype=torch.bfloat16)
        k, v = torch.randn(2, 2001, 8, 128, device="cuda", dtype=torch.bfloat16)
        found.append((attention.hopper is not None, attention.attend(5, q, k, v).double()))
    (taken, ours), (other, theirs) = found
    assert taken and not other
    assert (ours - theirs).norm() <= 1e-2 * theirs.norm()


# -- over a cache of 8 bits --------------------------------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize("head_dim, window", [(64, None), (128, None), (128, 600)])
def test_a_long_prompt_over_8_bits_is_widened_and_attends_as_the_other_kernel_does(monkeypatch, head_dim, window):
    found = []
    config = replace(SHAPES["llama-3.1-8b"], head_dim=head_dim, context_length=8192, windows=(window,) * 32)
    for able in (Capability(9, 0), Capability(10, 0)):
        monkeypatch.setattr(triton_paged, "capability", lambda device, able=able: able)
        storage = Fp8Storage(config.stage(range(2)), 300, 16, torch.bfloat16, torch.device("cuda"))
        attention = TritonPagedAttention(config.stage(range(2)), storage, slots=2)
        torch.manual_seed(0)
        pages = torch.randperm(250) + 1
        attention.tables[0, 1, :250] = pages
        for layer in range(2):
            rows = torch.arange(16, 251 * 16, device="cuda")
            storage.store(layer, rows, *torch.randn(2, len(rows), 8, head_dim, device="cuda", dtype=torch.bfloat16))
        slots, starts, lengths = (
            torch.tensor(part, dtype=torch.int32, device="cuda") for part in ([1], [0, 2000], [3990])
        )
        attention.plan(slots, starts, lengths, [2000])
        launches = [work.launch for works in attention.works.values() for work in works]
        assert [isinstance(launch, HopperLaunch) for launch in launches] == [able == (9, 0)]
        q = torch.randn(2000, 32, head_dim, device="cuda", dtype=torch.bfloat16)
        found.append(torch.stack([attention.attend_stored(layer, q).double() for layer in range(2)]))
    ours, theirs = found
    assert (ours - theirs).norm() <= 1e-2 * theirs.norm()


def test_several_long_prompts_over_8_bits_are_left_to_the_other_kernel():
    config = SHAPES["llama-3.1-8b"]
    attention = TritonPagedAttention(config, Fp8Storage(config, 300, 16, torch.bfloat16, torch.device("cuda")), slots=2)
    assert launches_of(attention, (2048, 2048)) == [True]
    assert launches_of(attention, (2048, 2048), (2048, 2048)) == [False]
