"""The fused kernels on a CUDA GPU, compiled: against their torch references, on shapes of real models and on odd ones.

Every output starts poisoned (torch fills new memory with NaN), so an element that no program wrote is seen.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.pairwise import pairwise

pytestmark = pytest.mark.gpu

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
ROUNDING = {torch.float32: 2e-5, torch.float16: 1e-3, torch.bfloat16: 6e-3}  # of ‖out - reference‖ / ‖reference‖


@pytest.fixture(autouse=True)
def _poisoned():
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)  # torch.empty then gives NaN
    yield
    torch.use_deterministic_algorithms(False)


def noise(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def assert_close(out: Tensor, reference: Tensor) -> None:
    assert out.dtype == reference.dtype and out.shape == reference.shape
    error = (out.double() - reference.double()).norm() / reference.double().norm()
    assert error < ROUNDING[out.dtype], f"off by {error:.1e}"  # NaN is not below anything


@pytest.mark.quick
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 768), (3, 2048), (257, 4096), (5, 640), (2, 80), (4, 1)])
def test_norms_with_a_residual(rows, width, dtype):
    from gradus.kernels.rows import norm
    from gradus.kernels.rows.reference import (
        add_layer_norm_reference,
        add_normalized_reference,
        add_rms_norm_reference,
    )

    x, delta, weight, bias = (
        noise(rows, width, dtype=dtype),
        noise(rows, width, dtype=dtype),
        noise(width),
        noise(width),
    )
    mine, theirs = x.clone(), x.clone()
    y = norm.add_rms_norm(mine, delta, weight.to(dtype), 1e-5)
    assert_close(y, add_rms_norm_reference(theirs, delta, weight.to(dtype), 1e-5))
    assert_close(mine, theirs)
    mine, theirs = x.clone(), x.clone()
    factor = noise(1).to(dtype)
    norm.add_normalized(mine, delta, bias, 1e-5, factor)
    add_normalized_reference(theirs, delta, bias, 1e-5, factor)
    assert_close(mine, theirs)
    if width > 1:
        mine, theirs = x.clone(), x.clone()
        y = norm.add_layer_norm(mine, delta, weight, bias, 1e-5)
        assert_close(y, add_layer_norm_reference(theirs, delta, weight, bias, 1e-5))
        assert_close(mine, theirs)
    assert_close(
        norm.add_rms_norm(x.clone(), None, weight, 1e-5), add_rms_norm_reference(x.clone(), None, weight, 1e-5)
    )


# (query heads, key heads, head dim) of GPT-2, Qwen3, Llama-3.2-1B, Gemma 3, Gemma 4, SmolLM2, and two that no model has
HEADS = [(12, 12, 64), (16, 8, 128), (32, 8, 64), (4, 1, 256), (16, 1, 512), (9, 3, 64), (4, 2, 80), (6, 2, 24)]


@pytest.mark.quick
@pytest.mark.parametrize("q_heads, kv_heads, head_dim, tokens, dtype", pairwise(HEADS, [1, 37, 300], DTYPES))
def test_rope_and_storing(q_heads, kv_heads, head_dim, tokens, dtype):
    from gradus.kernels.rows.passage import Passage
    from gradus.kernels.rows.reference import rope_store_reference, turned_queries_reference
    from gradus.kernels.rows.rope_store import rope_store, turned_queries

    qkv = noise(tokens, (q_heads + 2 * kv_heads) * head_dim, dtype=dtype)
    pages = tokens // 16 + 3
    slots = torch.randperm(pages * 16, device="cuda")[:tokens]
    slots[::5] = -1
    angles = torch.rand(1000, head_dim // 2, device="cuda") * 6
    table = torch.cat((angles.cos(), angles.sin()), 1).to(dtype)
    positions = torch.randint(0, 1000, (tokens,), device="cuda")
    norms = noise(head_dim).to(dtype), noise(head_dim).to(dtype)
    across = noise(q_heads * head_dim).to(dtype), noise(kv_heads * head_dim).to(dtype)
    growth = 1 + torch.rand(1000, device="cuda")
    for passage in (
        Passage(table, norms, 1e-6), Passage(table), Passage(), Passage(table, across, 1e-6, across=True),
        Passage(table, norms, 1e-6, growth=growth, value_eps=1e-6),
    ):  # fmt: skip
        keys, values = (noise(pages, 16, kv_heads, head_dim, dtype=dtype) for _ in range(2))
        expected_keys, expected_values = keys.clone(), values.clone()
        q = rope_store(qkv, keys, values, slots, passage, positions)
        right = rope_store_reference(qkv, expected_keys, expected_values, slots, passage, positions)
        assert_close(q, right)
        assert_close(keys, expected_keys)
        assert_close(values, expected_values)
        queries = qkv[:, : q_heads * head_dim].contiguous()
        assert_close(turned_queries(queries, head_dim, passage, positions), right)
        assert_close(turned_queries_reference(queries, head_dim, passage, positions), right)


@pytest.mark.quick
@pytest.mark.parametrize(
    "rows, width, name, dtype",
    pairwise([(1, 3072), (33, 8192), (7, 1000), (2, 3)], ["silu", "gelu", "gelu_tanh"], DTYPES),
)
def test_activations(rows, width, name, dtype):
    from gradus.kernels.rows import activation
    from gradus.kernels.rows.reference import activation_reference, gated_activation_reference

    x = 4 * noise(rows, 2 * width, dtype=dtype)
    assert_close(activation.gated_activation(x, name), gated_activation_reference(x, name))
    assert_close(activation.activation(x, name), activation_reference(x, name))
    beside = noise(rows, 5 * width, dtype=dtype)[:, width : 3 * width]
    assert_close(activation.activation(x, name, beside), activation_reference(x, name, beside))


@pytest.mark.quick
@pytest.mark.parametrize(
    "n, k, rows, tile, dtype",
    pairwise(
        [(768, 3072), (3072, 2048), (1001, 1000), (5, 24)],
        [(1, (1, 512, 4)), (1, (4, 1024, 4)), (3, (2, 512, 2)), (4, (1, 512, 4))],
        DTYPES,
    ),
)
def test_gemv_with_everything_around_it(n, k, rows, tile, dtype):
    from gradus.kernels.linear.epilogue import Norm
    from gradus.kernels.linear.gemv import gemv
    from gradus.kernels.linear.launches import GemvLaunch
    from gradus.kernels.quantized.reference import product_reference

    x, stream = noise(rows, k, dtype=dtype), noise(rows, n, dtype=dtype)
    around: list[dict[str, Any]] = [
        {},
        {"norm": Norm(noise(k).to(dtype), None, 1e-5), "activation": "silu", "gated": True},
        {"norm": Norm(noise(k), noise(k), 1e-5), "activation": "gelu_tanh"},
        {"residual": stream},
    ]
    for options in around:
        weight = noise(2 * n if options.get("gated") else n, k, dtype=dtype) / k**0.5
        options["bias"] = noise(weight.shape[0]).to(dtype)
        expected = options | ({"residual": stream.clone()} if "residual" in options else {})
        assert_close(gemv(x, weight, GemvLaunch(*tile), **options), product_reference(x, weight, **expected))


@pytest.mark.quick
@pytest.mark.parametrize(
    "n, k, launch, rows, dtype",
    pairwise(
        [(768, 3072, (16, 8, 14, 1)), (1001, 1000, (16, 4, 5, 2)), (5, 24, (16, 4, 1, 1)), (37, 1111, (32, 16, 2, 2))],
        [*range(1, 9), 11, 16],
        DTYPES[1:],
    ),
)
def test_few_rows_with_everything_around_them_are_each_as_if_alone(n, k, rows, launch, dtype):
    from gradus.kernels.linear.epilogue import Norm
    from gradus.kernels.linear.few_rows import few_rows
    from gradus.kernels.linear.launches import FewRowsLaunch
    from gradus.kernels.quantized.reference import product_reference

    x, launch = noise(rows, k, dtype=dtype), FewRowsLaunch(*launch)
    gain = noise(k).to(dtype)
    around: list[dict[str, Any]] = [
        {},
        {"norm": Norm(gain, None, 1e-5), "activation": "silu", "gated": True},
        {"norm": Norm(gain, None, 1e-5), "activation": "gelu_tanh"},
    ]
    for options in around:
        weight = noise(2 * n if options.get("gated") else n, k, dtype=dtype) / k**0.5
        options["bias"] = noise(weight.shape[0]).to(dtype)
        out = few_rows(x, weight, launch, **options)
        assert_close(out, product_reference(x, weight, **options))
        assert torch.equal(out[-1:], few_rows(x[-1:], weight, launch, **options))
    stream = noise(rows + 1, n, dtype=dtype)
    before = stream.clone()
    few_rows(x, weight, launch, residual=stream[:rows])
    assert_close(stream[:rows], product_reference(x, weight, residual=before[:rows].clone()))
    assert torch.equal(stream[rows], before[rows]), "nothing is written behind the rows"


# all of a slice in shared memory, or a ring of tiles; whole slices, unequal ones, and fewer outputs than programs
@pytest.mark.quick
@pytest.mark.parametrize(
    "n, k, launch, early, dtype",
    pairwise(
        [(4864, 896), (896, 4864), (3072, 2048), (1001, 1000), (5, 24), (1, 8)],
        [((4, 1024, 1, 8, 100, 1),), ((8, 256, 2, 2, 24, 2),), ((16, 128, 4, 1, 40, 1),)],
        [False, True],
        DTYPES[1:],
    ),
)
def test_a_streamed_row_with_everything_around_it(n, k, launch, early, dtype):
    from gradus.device.capability import capability
    from gradus.kernels.core.overlap import early_launches
    from gradus.kernels.linear.epilogue import Norm
    from gradus.kernels.linear.launches import StreamedLaunch
    from gradus.kernels.linear.streamed_gemv import streamed_gemv
    from gradus.kernels.quantized.reference import product_reference

    if early and not capability(torch.device("cuda", 0)).starts_early:
        pytest.skip("launches of this GPU do not start early")
    x, launch, gain = noise(1, k, dtype=dtype), StreamedLaunch(*launch), noise(k).to(dtype)
    around: list[dict[str, Any]] = [
        {},
        {"norm": Norm(gain, None, 1e-5), "activation": "silu", "gated": True},
        {"norm": Norm(gain, None, 1e-5), "activation": "gelu_tanh"},
    ]
    for options in around:
        weight = noise(2 * n if options.get("gated") else n, k, dtype=dtype) / k**0.5
        options["bias"] = noise(weight.shape[0]).to(dtype)
        with early_launches(early):
            out = streamed_gemv(x, weight, launch, **options)
        assert_close(out, product_reference(x, weight, **options))
    weight, stream = noise(n, k, dtype=dtype) / k**0.5, noise(2, n, dtype=dtype)
    before = stream.clone()
    with early_launches(early):
        streamed_gemv(x, weight, launch, residual=stream[:1])
    assert_close(stream[:1], product_reference(x, weight, residual=before[:1].clone()))
    assert torch.equal(stream[1], before[1]), "nothing is written behind the row"


@pytest.mark.quick
@pytest.mark.parametrize(
    "n, k, rows, launch, early, dtype",
    pairwise(
        [(4864, 896), (896, 2048), (3072, 1536), (1001, 1000), (5, 24)],
        [2, 4, 7, 16],
        [((16, 512, 1, 8, 100, 1),), ((32, 128, 1, 2, 24, 2),), ((16, 1024, 1, 16, 200, 1),)],
        [False, True],
        DTYPES[1:],
    ),
)
def test_streamed_rows_with_everything_around_them(n, k, rows, launch, early, dtype):
    from gradus.device.capability import capability
    from gradus.kernels.core.overlap import early_launches
    from gradus.kernels.linear.epilogue import Norm
    from gradus.kernels.linear.launches import StreamedLaunch
    from gradus.kernels.linear.streamed_rows import streamed_rows
    from gradus.kernels.quantized.reference import product_reference

    if early and not capability(torch.device("cuda", 0)).starts_early:
        pytest.skip("launches of this GPU do not start early")
    x, launch, gain = noise(rows, k, dtype=dtype), StreamedLaunch(*launch), noise(k).to(dtype)
    around: list[dict[str, Any]] = [
        {},
        {"norm": Norm(gain, None, 1e-5), "activation": "silu", "gated": True},
        {"norm": Norm(gain, None, 1e-5), "activation": "gelu_tanh"},
    ]
    for options in around:
        weight = noise(2 * n if options.get("gated") else n, k, dtype=dtype) / k**0.5
        options["bias"] = noise(weight.shape[0]).to(dtype)
        with early_launches(early):
            out = streamed_rows(x, weight, launch, **options)
            others = torch.cat([x[:1], noise(rows - 1, k, dtype=dtype)])
            assert torch.equal(streamed_rows(others, weight, launch, **options)[0], out[0])
        assert_close(out, product_reference(x, weight, **options))
    weight, stream = noise(n, k, dtype=dtype) / k**0.5, noise(rows + 1, n, dtype=dtype)
    before = stream.clone()
    with early_launches(early):
        streamed_rows(x, weight, launch, residual=stream[:rows])
    assert_close(stream[:rows], product_reference(x, weight, residual=before[:rows].clone()))
    assert torch.equal(stream[rows], before[rows]), "nothing is written behind the rows"


@pytest.mark.parametrize(
    ("rows", "launch"),
    [
        (1, (4, 1024, 1, 8, 100, 1)),
        (1, (8, 256, 2, 2, 24, 2)),
        (4, (16, 512, 1, 8, 100, 1)),
        (16, (16, 256, 1, 4, 24, 2)),
    ],
)
def test_streamed_rows_that_start_early_wait_for_each_other(rows, launch):
    """In a CUDA graph, where each launch reads what the one before it wrote, and the weights of all are under way."""
    from gradus.device.capability import capability
    from gradus.kernels.core.overlap import early_launches
    from gradus.kernels.linear.dispatch import fused_linear
    from gradus.kernels.linear.launches import StreamedLaunch
    from gradus.kernels.quantized.reference import product_reference

    if not capability(torch.device("cuda", 0)).starts_early:
        pytest.skip("launches of this GPU do not start early")
    weights = [noise(896, 896, dtype=torch.bfloat16) / 896**0.5 for _ in range(12)]
    start = noise(rows, 896, dtype=torch.bfloat16)

    def chain(product):
        x = start.clone()
        for weight in weights:
            x = product(x, weight)
        return x

    def streamed():
        with early_launches():
            return chain(lambda x, weight: fused_linear(x, weight, StreamedLaunch(*launch)))

    expected = chain(product_reference)
    streamed()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = streamed()
    for _ in range(20):
        found.fill_(float("nan"))
        graph.replay()
        error = (found.double() - expected.double()).norm() / expected.double().norm()
        assert error < 4 * ROUNDING[torch.bfloat16], "rounded twelve times, not always to the same side"


@pytest.mark.quick
@pytest.mark.parametrize(
    "m, n, k, tile, dtype",
    pairwise(
        [(2, 768, 3072), (16, 1001, 1024), (33, 2048, 1000), (64, 4096, 256), (7, 5, 24)],
        [((32, 64, 1, 3, 4),), ((64, 64, 5, 3, 4),), ((16, 128, 16, 2, 4),)],
        DTYPES,
    ),
)
def test_splitk_products(m, n, k, tile, dtype):
    from gradus.kernels.core.counters import counters_of
    from gradus.kernels.linear.launches import SplitKLaunch
    from gradus.kernels.linear.splitk import splitk
    from gradus.kernels.quantized.reference import product_reference

    x, weight = noise(m, k, dtype=dtype), noise(n, k, dtype=dtype) / k**0.5
    bias, stream = noise(n).to(dtype), noise(m, n, dtype=dtype)
    launch = SplitKLaunch(*tile)
    first = splitk(x, weight, launch, bias=bias)
    assert_close(first, product_reference(x, weight, bias=bias))
    for _ in range(20):  # whoever arrives last, the sum is the same
        assert torch.equal(splitk(x, weight, launch, bias=bias), first)
    assert not counters_of(x.device, 1).any()
    expected = product_reference(x, weight, residual=stream.clone())
    assert_close(splitk(x, weight, launch, residual=stream), expected)


@pytest.mark.parametrize("rows", [1, 2, 16, 33, 64, 65])
def test_linear_is_the_product_whatever_it_chooses(rows):
    from gradus.kernels.linear.dispatch import linear
    from gradus.kernels.quantized.reference import product_reference

    for n, k in [(2048, 2048), (1536, 640), (768, 3072), (777, 1024)]:
        x, weight = noise(rows, k, dtype=torch.bfloat16), noise(n, k, dtype=torch.bfloat16) / k**0.5
        bias, stream = noise(n, dtype=torch.bfloat16), noise(rows, n, dtype=torch.bfloat16)
        assert_close(linear(x, weight, bias), product_reference(x, weight, bias=bias))
        expected = product_reference(x, weight, bias=bias, residual=stream.clone())
        assert_close(linear(x, weight, bias, residual=stream), expected)


@pytest.mark.parametrize("rows, vocab_size, dtype", pairwise([1, 9], [50257, 151936, 700, 3], DTYPES))
def test_samples_are_those_of_the_torch_sampler(rows, vocab_size, dtype):
    from gradus.kernels.sampling.plain import sample
    from gradus.kernels.sampling.reference import sample_reference

    logits = 4 * noise(rows, vocab_size + 13, dtype=dtype)[:, :vocab_size]  # rows of a padded matrix
    logits = logits if rows > 1 else logits.contiguous()
    seeds = torch.randint(-(2**63), 2**63 - 1, (rows,), device="cuda")
    positions = torch.randint(0, 2**31, (rows,), device="cuda")
    for temperature in (0.0, 0.3, 1.0, 5.0):
        temperatures = torch.full((rows,), temperature, device="cuda")
        tokens = sample(logits, seeds, positions, temperatures)
        assert torch.equal(tokens, sample_reference(logits, seeds, positions, temperatures))


@pytest.mark.quick
@pytest.mark.parametrize("rows", [1, 256])
def test_a_step_of_decodes_starts_and_ends_in_the_tables_of_its_slots(rows):
    from gradus.kernels.sampling.plain import sample
    from gradus.kernels.sampling.reference import sample_reference
    from gradus.kernels.step import plain
    from gradus.kernels.step.places import places

    slots = torch.randperm(300, device="cuda")[:rows].to(torch.int32)
    lengths = torch.randint(0, 160, (rows,), dtype=torch.int32, device="cuda")
    latest = torch.randint(0, 500, (300, 1), device="cuda")
    tables = torch.randint(1, 2**31, (2, 300, 10), device="cuda")
    newest = (lengths.long() - 1).clamp(min=0)
    assert torch.equal(places(slots, lengths, tables, 16), plain.places(slots, newest, tables, 16))

    logits, where = noise(rows, 50257), slots.long()
    seeds, temperatures = torch.arange(300, device="cuda"), torch.rand(300, device="cuda").round()
    tokens = sample(logits, seeds, lengths, temperatures, slots=slots, history=latest)
    assert torch.equal(tokens, sample_reference(logits, seeds[where], lengths.long(), temperatures[where]))
    assert torch.equal(tokens, latest[where, 0])


@pytest.mark.quick
@pytest.mark.parametrize("count", [1, 256])
def test_passes_of_a_draft_model_begin_as_they_do_in_torch(count):
    from gradus.device.capability import capability
    from gradus.kernels.core.overlap import early_launches
    from gradus.kernels.step import draft_passes
    from gradus.kernels.step.draft_reference import first_rows_reference, next_rows_reference
    from gradus.kernels.step.rows import Drafting

    known, history = torch.randint(1, 150, (301,)), torch.randint(0, 500, (301, 160), dtype=torch.int32)
    slots = torch.randint(0, 301, (count,), dtype=torch.int32)
    limits = (known[slots.long()] + torch.randint(-1, 5, (count,))).int()
    spans, tables = Drafting(slots, limits, known, 140, 500), torch.randint(1, 2**31, (2, 301, 10))
    there = Drafting(slots.cuda(), limits.cuda(), known.cuda(), 140, 500)
    inputs = torch.zeros(2, 2 * count, dtype=torch.int64, device="cuda")
    found = draft_passes.first_rows(there, inputs, history.cuda(), tables.cuda(), 16)
    expected = first_rows_reference(spans, history, tables, 16)
    assert all(torch.equal(mine.cpu(), theirs) for mine, theirs in zip(found, expected, strict=True))
    drafts, kept = torch.empty(count, 4, dtype=torch.int64), torch.empty(count, 4, dtype=torch.int64, device="cuda")
    with early_launches(capability(inputs.device).starts_early):
        for number in range(4):
            drawn = torch.randint(-1, 502, (count,))
            rows = draft_passes.next_rows(there, inputs, drawn.cuda(), kept, number)
            right = next_rows_reference(spans, drawn, drafts, number)
            assert all(torch.equal(mine.cpu(), theirs) for mine, theirs in zip(rows, right, strict=True))
        draft_passes.keep_draft(there, drawn.cuda(), kept, 3)
    assert torch.equal(kept.cpu(), drafts)


def test_noise_is_the_engines_bit_for_bit():
    """Flat logits: the winner of each row is the token with the least noise, so all of the noise decides."""
    from gradus.kernels.sampling.noise import exponential
    from gradus.kernels.sampling.plain import sample

    rows = 4096
    seeds, positions = torch.arange(rows, device="cuda") * 2**40 - 7, torch.arange(rows, device="cuda")
    tokens = sample(torch.zeros(rows, 5000, device="cuda"), seeds, positions, torch.ones(rows, device="cuda"))
    assert torch.equal(tokens, exponential(seeds, positions, 5000).argmin(-1))


def test_a_row_that_is_not_finite_shows_and_leaves_its_neighbors_alone():
    from gradus.kernels.sampling.plain import sample

    logits = noise(4, 60000)
    logits[1, 59999] = float("nan")
    logits[2, :] = float("-inf")
    temperatures = torch.tensor([0.0, 1.0, 1.0, 0.0], device="cuda")
    tokens = sample(logits, torch.arange(4, device="cuda"), torch.arange(4, device="cuda"), temperatures)
    likeliest = logits.argmax(-1)
    assert tokens.tolist() == [int(likeliest[0]), -1, -1, int(likeliest[3])]


def test_products_and_samples_replay_from_a_cuda_graph():
    from gradus.kernels.linear.launches import SplitKLaunch
    from gradus.kernels.linear.splitk import splitk
    from gradus.kernels.quantized.reference import product_reference
    from gradus.kernels.sampling.plain import sample

    x, weight = noise(8, 512, dtype=torch.bfloat16), noise(3000, 512, dtype=torch.bfloat16)
    which = torch.arange(8, device="cuda")

    def step() -> tuple[Tensor, Tensor]:
        logits = splitk(x, weight, SplitKLaunch(64, 64, 4, 3, 4))
        return logits, sample(logits, which, which, which / 4)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits, tokens = step()
    for _ in range(3):
        x.normal_()
        graph.replay()
        assert_close(logits, product_reference(x, weight))
        assert torch.equal(tokens, sample(logits, which, which, which / 4))


def test_dependent_launches_give_bit_for_bit_what_waiting_ones_give():
    """A layer with every kernel in it, and each writes memory that the one before it has just read or written."""
    from gradus.kernels.core.overlap import early_launches
    from gradus.kernels.linear.epilogue import Norm
    from gradus.kernels.linear.gemv import gemv
    from gradus.kernels.linear.launches import GemvLaunch, SplitKLaunch
    from gradus.kernels.linear.splitk import splitk
    from gradus.kernels.rows.activation import gated_activation
    from gradus.kernels.rows.norm import add_rms_norm
    from gradus.kernels.rows.rope_store import rope_store
    from gradus.kernels.sampling.plain import sample

    def matrix(n: int, k: int) -> Tensor:
        return noise(n, k, dtype=torch.bfloat16) / k**0.5

    hidden, width, dim = 1024, 3072, 128
    gain, up, down, qkv = noise(hidden), matrix(2 * width, hidden), matrix(hidden, width), matrix(4 * hidden, hidden)
    output, head = matrix(hidden, 2 * hidden), matrix(5000, hidden)
    keys, values = noise(2, 4, 16, 8, dim, dtype=torch.bfloat16)
    first, slots = noise(1, hidden, dtype=torch.bfloat16), torch.tensor([17], device="cuda")
    few, split = GemvLaunch(2, 1024, 4), SplitKLaunch(32, 128, 4, 3, 4)

    def step() -> tuple[Tensor, ...]:
        x, norm = first.clone(), Norm(gain, None, 1e-5)
        for _ in range(8):
            q = rope_store(gemv(x, qkv, few, norm=norm), keys, values, slots)
            gemv(q.view(1, -1), output, few, residual=x)
            wide = gemv(x, up, few, norm=norm, activation="silu", gated=True)
            gemv(wide, down, few, residual=x)
            y = add_rms_norm(x, q.view(2, -1)[:1].contiguous(), gain, 1e-5)
            wide = gated_activation(splitk(y, up, split), "silu")
            splitk(wide, down, split, residual=x)
        logits = gemv(x, head, few, norm=norm)
        return x, logits, sample(logits, slots, slots, slots / 17)

    with early_launches():
        step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), early_launches():
        found = step()
    for _ in range(50):
        first.normal_()
        keys.fill_(0)
        graph.replay()
        for mine, theirs in zip(found, step(), strict=True):
            assert torch.equal(mine, theirs)
