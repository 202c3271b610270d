"""The paged attention kernels on a GPU: odd sizes, poisoned memory, and the promises that only a GPU can break."""

import pytest
import torch

pytest.importorskip("triton")

from gradus import phases
from gradus.attention.storage import PagedStorage
from gradus.attention.triton_paged import TritonPagedAttention
from gradus.cache.paged import PagedCache
from gradus.cache.radix import PrefixIndex
from gradus.config.options import EngineOptions
from gradus.engine.engine import Engine
from gradus.execution.runner import ModelRunner
from gradus.kernels.attention_launch import launches
from gradus.kernels.paged_attention import paged_attention
from gradus.kernels.paged_attention_reference import paged_attention_reference
from gradus.kernels.split_attention import Partials
from gradus.sampling.sampler import Sampler
from gradus.scheduling.scheduler import Scheduler
from tests.gpu.test_phases import model_on, requests
from tests.kernels.cases import Step
from tests.phases.conftest import FAMILIES, limits_of
from tests.phases.drive import run

pytestmark = pytest.mark.gpu

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
# decodes long, short and first; verifications; chunks and prompts; padding
SPANS = [(1, 1000), (1, 1), (5, 777), (0, 0), (100, 100), (300, 2049), (1, 0), (2, 65), (1, 4097), (17, 17)]


def attended(step: Step) -> torch.Tensor:
    return step.attend(*launches(step.head_dim, step.dtype, step.group))


def assert_close(step: Step) -> None:
    found, expected = attended(step).double(), step.expected()
    rows = (found - expected).norm(dim=-1)  # a wrong row must not hide among good ones
    assert (rows <= TOLERANCE[step.dtype] * expected.norm(dim=-1).mean() * 4).all()
    assert (found - expected).norm() <= TOLERANCE[step.dtype] * expected.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_every_width_and_type(head_dim, dtype):
    assert_close(Step(SPANS, heads=2, group=4, head_dim=head_dim, dtype=dtype, device="cuda"))


@pytest.mark.parametrize("page", [16, 32, 48, 64])
@pytest.mark.parametrize("window, softcap", [(None, 2.0), (1, None), (100, None), (512, 5.0)])
def test_pages_windows_and_soft_caps(page, window, softcap):
    assert_close(
        Step(SPANS, page=page, window=window, softcap=softcap, head_dim=64, dtype=torch.bfloat16, device="cuda")
    )


@pytest.mark.parametrize("heads, group", [(8, 1), (3, 3), (1, 7), (2, 16), (1, 20)])
def test_groups(heads, group):
    assert_close(Step(SPANS, heads=heads, group=group, head_dim=64, dtype=torch.bfloat16, device="cuda"))


@pytest.mark.parametrize("spans", [[(1, 30000)], [(6, 30000)], [(1, 5000)] * 3 + [(1, 10)] * 300, [(700, 9000)]])
def test_splits_of_every_kind(spans):
    assert_close(Step(spans, heads=8, group=2, head_dim=128, dtype=torch.bfloat16, device="cuda"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("group, head_dim, norms", [(1, 64, False), (4, 64, True), (3, 48, True), (2, 128, True)])
def test_decodes_turn_their_heads_and_store_what_is_new(group, head_dim, norms, dtype):
    spans = [(1, 300), (1, 0), (1, 1), (1, 4000), (1, 17)]
    step = Step(spans, group=group, head_dim=head_dim, dtype=dtype, device="cuda")
    launch = launches(head_dim, dtype, group)[0]
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    for found, expected in step.attend_to_new_tokens(launch, norms):
        torch.testing.assert_close(found.double(), expected.double(), rtol=tolerance, atol=tolerance, equal_nan=True)


def test_the_same_step_gives_the_same_bits():
    step = Step(SPANS, heads=8, group=2, head_dim=128, dtype=torch.bfloat16, device="cuda")
    first = attended(step)
    assert all(torch.equal(first, attended(step)) for _ in range(20))  # whoever adds the splits up


def test_a_captured_step_is_replayed_with_other_lengths_and_pages():
    captured = Step([(1, 3)] * 8, heads=8, group=2, head_dim=128, dtype=torch.bfloat16, device="cuda")
    other = Step(
        [(1, n) for n in (1, 5000, 17, 900, 901, 64, 3000)] + [(1, 0)],
        heads=8, group=2, head_dim=128, dtype=torch.bfloat16, device="cuda",
    )  # fmt: skip
    launch = launches(128, torch.bfloat16, 2)[0]
    partials = Partials([launch], kv_heads=8, head_dim=128, device=torch.device("cuda"))
    q, out = torch.empty_like(captured.q), torch.empty_like(captured.q)
    slots, query_start, lengths = (
        captured.numbers(part) for part in (captured.slots, captured.query_start, captured.lengths)
    )
    tables = torch.zeros_like(other.tables)
    work = captured.work(launch)

    def run() -> None:
        work.lay_out(slots, query_start, lengths, most=1)
        paged_attention(q, other.keys, other.values, tables, work, partials, out, scale=0.3)

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    q.copy_(other.q)
    slots.copy_(other.numbers(other.slots))
    lengths.copy_(other.numbers(other.lengths))
    tables.copy_(other.tables)
    out.fill_(float("nan"))
    graph.replay()
    expected = other.expected()
    assert (out.double() - expected).norm() <= 1e-2 * expected.norm()


def test_pages_beyond_two_to_the_31_values_are_found():
    pages, heads, head_dim = 2**31 // (16 * 8 * 128) + 100, 8, 128
    keys, values = (torch.empty(pages, 16, heads, head_dim, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    tables = torch.arange(pages - 1, pages - 9, -1, dtype=torch.int32, device="cuda").view(1, 8)
    keys[-9:].normal_()
    values[-9:].normal_()
    q = torch.randn(1, 16, head_dim, dtype=torch.bfloat16, device="cuda")
    step = Step([(1, 120)], heads=heads, group=2, head_dim=head_dim, dtype=torch.bfloat16, device="cuda")
    step.slots = [0]
    launch = launches(head_dim, torch.bfloat16, 2)[0]
    partials = Partials([launch], kv_heads=heads, head_dim=head_dim, device=q.device)
    out = torch.full_like(q, float("nan"))
    paged_attention(q, keys, values, tables, step.work(launch), partials, out, scale=0.1)
    expected = paged_attention_reference(q, keys, values, tables, [0], [0, 1], [120], scale=0.1)
    assert (out - expected).norm() <= 1e-2 * expected.norm()


@pytest.mark.parametrize("budget", [None, 7])
@pytest.mark.parametrize("shape", FAMILIES)
def test_the_backend_gives_the_cpus_tokens(shape, budget):
    """Prompts whole and in chunks, with preemptions: the pool holds less than what runs."""
    wanted = requests(shape)
    oracle = phases.load("p00").build(model_on("cpu", shape, torch.float32), EngineOptions(limits_of(shape)))
    model = model_on("cuda", shape, torch.float32)
    storage = PagedStorage(model.config, 24, 4, model.dtype, model.device)
    windows = [group.window for group in storage.groups]
    runner = ModelRunner(model, TritonPagedAttention(model.config, storage, 3), Sampler(320, model.device))
    cache = PagedCache(24, 4, windows, PrefixIndex())
    engine = Engine(Scheduler(cache, 3, budget), runner, limits_of(shape))
    assert run(engine, wanted) == run(oracle, wanted)
