"""The paged attention kernels on a GPU: odd sizes, poisoned memory, and the promises that only a GPU can break."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is for Linux alone")

from gradus import phases
from gradus.attention.storage import PagedStorage
from gradus.attention.triton_paged import TritonPagedAttention
from gradus.cache.paged import PagedCache
from gradus.cache.radix import PrefixIndex
from gradus.config.options import EngineOptions
from gradus.device.capability import capability
from gradus.engine.engine import Engine
from gradus.kernels.attention.launch import SMALLEST_TILE, launches
from gradus.kernels.attention.paged import paged_attention
from gradus.kernels.attention.reference import paged_attention_reference
from gradus.kernels.attention.splits import Partials
from gradus.kernels.rows.reference import rope_store_reference
from gradus.kernels.rows.rope_store import rope_store
from gradus.quantization.fp8 import E4M3
from gradus.sampling.sampler import Sampler
from gradus.scheduling.scheduler import Scheduler
from tests.execution.runners import in_torch
from tests.gpu.test_phases import model_on, requests
from tests.kernels.cases import Step
from tests.pairwise import pairwise
from tests.phases.conftest import EVERY_FAMILY, limits_of
from tests.phases.drive import run

pytestmark = pytest.mark.gpu

needs_fp8 = pytest.mark.skipif(
    torch.cuda.is_available() and not capability(torch.device("cuda")).multiplies_fp8, reason="a GPU without fp8"
)
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
# decodes long, short and first; verifications; chunks and prompts; padding
SPANS = [(1, 1000), (1, 1), (5, 777), (0, 0), (100, 100), (300, 2049), (1, 0), (2, 65), (1, 4097), (17, 17)]


def attended(step: Step) -> torch.Tensor:
    return step.attend(*launches(step.head_dim, step.dtype, step.group, eight_bits=step.fp8))


def assert_close(step: Step) -> None:
    found, expected = attended(step).double(), step.expected()
    # weights of values in 8 bits are bfloat16 where the rest is float16
    tolerance = TOLERANCE[torch.bfloat16 if step.fp8 and step.dtype == torch.float16 else step.dtype]
    rows = (found - expected).norm(dim=-1)  # a wrong row must not hide among good ones
    assert (rows <= tolerance * expected.norm(dim=-1).mean() * 4).all()
    assert (found - expected).norm() <= tolerance * expected.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256, 512])
def test_every_width_and_type(head_dim, dtype):
    assert_close(Step(SPANS, heads=2, group=4, head_dim=head_dim, dtype=dtype, device="cuda"))


@pytest.mark.parametrize("page", [16, 32, 48, 64])
@pytest.mark.parametrize("window, softcap", [(None, 2.0), (1, None), (100, None), (512, 5.0)])
def test_pages_windows_and_soft_caps(page, window, softcap):
    assert_close(
        Step(SPANS, page=page, window=window, softcap=softcap, head_dim=64, dtype=torch.bfloat16, device="cuda")
    )


@pytest.mark.quick
@pytest.mark.parametrize("fp8", [False, pytest.param(True, marks=needs_fp8)], ids=["16 bits", "8 bits"])
@pytest.mark.parametrize("group, spans", [(8, SPANS), (16, SPANS), (16, [(1, 9000)])])
def test_heads_of_512_that_share_a_key_head(group, spans, fp8):
    """Of Gemma 4's layers that see everything."""
    assert_close(Step(spans, heads=1, group=group, head_dim=512, dtype=torch.bfloat16, device="cuda", fp8=fp8))


@pytest.mark.quick
@pytest.mark.parametrize("fp8", [False, pytest.param(True, marks=needs_fp8)], ids=["16 bits", "8 bits"])
@pytest.mark.parametrize("window", [None, 128])
def test_sinks(window, fp8):
    """Heads as gpt-oss has them, in splits as well."""
    heads = {"heads": 8, "group": 8, "head_dim": 64, "window": window, "fp8": fp8, "sinks": True}
    assert_close(Step(SPANS, dtype=torch.bfloat16, device="cuda", **heads))


@pytest.mark.quick
@pytest.mark.parametrize("heads, group", [(8, 1), (3, 3), (1, 7), (2, 16), (1, 20)])
def test_groups(heads, group):
    assert_close(Step(SPANS, heads=heads, group=group, head_dim=64, dtype=torch.bfloat16, device="cuda"))


@pytest.mark.parametrize("spans", [[(1, 30000)], [(6, 30000)], [(1, 5000)] * 3 + [(1, 10)] * 300, [(700, 9000)]])
def test_splits_of_every_kind(spans):
    assert_close(Step(spans, heads=8, group=2, head_dim=128, dtype=torch.bfloat16, device="cuda"))


DECODES = [(1, 300), (1, 0), (1, 1), (1, 4000), (1, 17)]
DRAFTED = [(3, 300), (1, 0), (2, 2), (4, 4001), (1, 17), (4, 131)]


@pytest.mark.parametrize(
    "group, head_dim, norms, dtype, spans",
    pairwise(
        [(1, 64, False), (4, 64, True), (3, 48, True), (2, 128, True)],
        [torch.float32, torch.bfloat16],
        [DECODES, DRAFTED],
    ),
)
def test_decodes_turn_their_heads_and_store_what_is_new(group, head_dim, norms, dtype, spans):
    step = Step(spans, group=group, head_dim=head_dim, dtype=dtype, device="cuda")
    launch = launches(head_dim, dtype, group)[0]
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    for found, expected in step.attend_to_new_tokens(launch, norms):
        torch.testing.assert_close(found.double(), expected.double(), rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.quick
@pytest.mark.parametrize("spans", [DECODES, DRAFTED], ids=["decodes", "with drafts"])
def test_decodes_grow_queries_and_normalize_values(spans):
    step = Step(spans, group=4, head_dim=64, dtype=torch.bfloat16, device="cuda")
    for found, expected in step.attend_to_new_tokens(launches(64, step.dtype, 4)[0], norms=True, more=True):
        torch.testing.assert_close(found.double(), expected.double(), rtol=2e-2, atol=2e-2, equal_nan=True)


# -- keys and values in 8 bits -----------------------------------------------------------------------------------------


@needs_fp8
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("head_dim, group", [(64, 4), (80, 3), (128, 2), (128, 1), (256, 4)])
def test_8_bits_are_read_by_every_tile_as_torch_reads_them(head_dim, group, dtype):
    assert_close(Step(SPANS, heads=2, group=group, head_dim=head_dim, dtype=dtype, device="cuda", fp8=True))


@needs_fp8
@pytest.mark.parametrize("page, window, softcap", [(16, 100, 2.0), (48, 512, None), (1, None, 5.0)])
def test_8_bits_in_pages_windows_and_soft_caps(page, window, softcap):
    assert_close(Step(SPANS, page=page, window=window, softcap=softcap, dtype=torch.bfloat16, device="cuda", fp8=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [8, 16])
def test_many_drafts_turn_in_a_tall_tile(tokens, dtype):
    step = Step([(tokens, 300), (tokens, tokens), (1, 4000)], group=3, head_dim=64, dtype=dtype, device="cuda")
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    tall = next(
        launch for launch in launches(64, dtype, 3) if launch.rows >= 3 * tokens and launch.rows > SMALLEST_TILE
    )
    for found, expected in step.attend_to_new_tokens(tall, norms=False):
        torch.testing.assert_close(found.double(), expected.double(), rtol=tolerance, atol=tolerance, equal_nan=True)


@needs_fp8
@pytest.mark.parametrize("spans", [DECODES, DRAFTED], ids=["decodes", "with drafts"])
@pytest.mark.parametrize("group, head_dim, norms", [(1, 64, False), (4, 64, True), (3, 48, True)])
def test_decodes_turn_their_heads_and_store_8_bits(group, head_dim, norms, spans):
    """In float32 the kernel's keys and torch's may fall to two sides of a step, so few values may be one step apart."""
    step = Step(spans, group=group, head_dim=head_dim, device="cuda", fp8=True)
    (out, expected), *stored = step.attend_to_new_tokens(
        launches(head_dim, step.dtype, group, eight_bits=True)[0], norms
    )
    torch.testing.assert_close(out.double(), expected.double(), rtol=0.01, atol=0.01)
    for found, right in stored[:2]:
        apart = (found.view(torch.uint8).int() - right.view(torch.uint8).int()).abs()[~right.float().isnan()]
        assert apart.max() <= 1 and apart.count_nonzero() <= 2
    for found, right in stored[2:]:
        torch.testing.assert_close(found, right, rtol=0, atol=0, equal_nan=True)


@pytest.mark.quick
@needs_fp8
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("tokens", [3, 700])
def test_what_is_stored_in_8_bits_is_what_torch_stores(tokens, dtype):
    q_heads, kv_heads, head_dim = 8, 4, 96
    qkv = torch.randn(tokens, (q_heads + 2 * kv_heads) * head_dim, device="cuda").to(dtype)
    qkv[1, -3] = float("inf")
    slots = torch.randperm(tokens, device="cuda") + 16
    storage = torch.zeros(2, tokens // 16 + 3, 16, kv_heads, head_dim, device="cuda").to(E4M3)
    scales = torch.zeros(2, tokens // 16 + 3, kv_heads, 16, device="cuda")
    expected, expected_scales = storage.clone(), scales.clone()
    q = rope_store(qkv, storage[0], storage[1], slots, scales=(scales[0], scales[1]))  # unrotated: nothing to sum
    right = rope_store_reference(qkv, expected[0], expected[1], slots, scales=(expected_scales[0], expected_scales[1]))
    torch.testing.assert_close(q, right, rtol=0, atol=0)
    torch.testing.assert_close(scales, expected_scales, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(storage.float(), expected.float(), rtol=0, atol=0, equal_nan=True)


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
@pytest.mark.parametrize("shape", EVERY_FAMILY)
def test_the_backend_gives_the_cpus_tokens(shape, budget):
    """Prompts whole and in chunks, with preemptions: the pool holds less than what runs."""
    wanted = requests(shape)
    oracle = phases.load("p00").build(model_on("cpu", shape, torch.float32), EngineOptions(limits_of(shape)))
    model = model_on("cuda", shape, torch.float32)
    storage = PagedStorage(model.config, 24, 4, model.dtype, model.device)
    windows = [group.window for group in storage.groups]
    runner = in_torch(model, TritonPagedAttention(model.config, storage, 4), Sampler(320, model.device))
    cache = PagedCache(24, 4, windows, PrefixIndex())
    engine = Engine(Scheduler(cache, 3, budget), runner, limits_of(shape))
    assert run(engine, wanted) == run(oracle, wanted)
