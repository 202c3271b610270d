"""Run by test_fused_kernels.py in a process of its own, where Triton interprets the kernels beside attention.

Tiny on purpose: the interpreter takes milliseconds a program. float16 in one case, so that rounding has its turn too
(the interpreter's bfloat16 truncates, and its products of bfloat16 are wrong). New memory is poisoned with NaN.
"""

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from benchmarks.kernels import fused_kernels
from gradus.engine.plan import UNDRAFTED
from gradus.kernels.core.counters import counters_of
from gradus.kernels.linear import few_rows, streamed_gemv, streamed_rows
from gradus.kernels.linear.epilogue import Norm
from gradus.kernels.linear.gemv import gemv
from gradus.kernels.linear.launches import (
    MOST_ROWS,
    MOST_STREAMED_ROWS,
    FewRowsLaunch,
    GemvLaunch,
    SplitKLaunch,
    StreamedLaunch,
)
from gradus.kernels.linear.splitk import splitk
from gradus.kernels.quantized.reference import product_reference
from gradus.kernels.rows import activation, norm
from gradus.kernels.rows import rope_store as rope_store_module
from gradus.kernels.rows.e4m3 import largest_of, scales_of, to_e4m3
from gradus.kernels.rows.passage import Passage
from gradus.kernels.rows.reference import (
    activation_reference,
    add_layer_norm_reference,
    add_normalized_reference,
    add_rms_norm_reference,
    gated_activation_reference,
    rope_store_reference,
    turned_queries_reference,
)
from gradus.kernels.rows.rope_store import heads_together, rope_store, turned_queries
from gradus.kernels.sampling.noise import exponential
from gradus.kernels.sampling.plain import sample
from gradus.kernels.sampling.reference import sample_reference
from gradus.kernels.step import plain as step
from gradus.kernels.step.places import places
from gradus.quantization import kv
from gradus.quantization.fp8 import E4M3
from tests.kernels.interpreted_gluon import interpret
from tests.pairwise import each_once, first


@pytest.fixture(autouse=True)
def _poisoned():
    torch.manual_seed(0)
    torch.set_deterministic_debug_mode("error")  # torch.empty then gives NaN
    yield
    torch.set_deterministic_debug_mode("default")


def assert_close(out: Tensor, reference: Tensor) -> None:
    assert out.dtype == reference.dtype and out.shape == reference.shape
    error = (out.double() - reference.double()).norm() / reference.double().norm()
    assert error < (1e-6 if out.dtype == torch.float32 else 2e-3)  # NaN is not below anything


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_norm_adds_the_residual_in_place_and_normalizes_the_sum(dtype):
    x, delta = torch.randn(2, 3, 80).to(dtype)
    weight, bias = torch.randn(2, 80)
    for mine, theirs, arguments in [
        (norm.add_rms_norm, add_rms_norm_reference, (delta, weight, 1e-5)),
        (norm.add_rms_norm, add_rms_norm_reference, (None, weight, 1e-5)),
        (norm.add_layer_norm, add_layer_norm_reference, (delta, weight, bias, 1e-5)),
    ]:
        a, b = x.clone(), x.clone()
        assert_close(mine(a, *arguments), theirs(b, *arguments))
        assert_close(a, b)
    for factor in (None, torch.tensor([0.3]).to(dtype)):
        a, b = x.clone(), x.clone()
        norm.add_normalized(a, delta, weight, 1e-5, factor)
        add_normalized_reference(b, delta, weight, 1e-5, factor)
        assert_close(a, b)


def passages(head_dim: int) -> list[Passage]:
    """Passages with head norms, without, and of heads that are not even rotated."""
    norms = torch.randn(head_dim), torch.randn(head_dim)
    return [Passage(torch.randn(12, head_dim), norms, 1e-6), Passage(torch.randn(12, head_dim)), Passage()]


@pytest.mark.parametrize("heads", [(4, 2, 24), (3, 3, 16)], ids=["grouped, odd width", "one key head each"])
def test_heads_are_normalized_turned_and_stored_where_their_slot_says(heads):
    q_heads, kv_heads, head_dim = heads
    qkv = torch.randn(3, (q_heads + 2 * kv_heads) * head_dim)
    slots = torch.tensor([16, -1, 63])  # the second is padding
    positions = torch.tensor([0, 1, 9])
    for passage in passages(head_dim):
        storage = torch.randn(2, 4, 16, kv_heads, head_dim)
        expected = storage.clone()
        assert_close(
            rope_store(qkv, *storage, slots, passage, positions),
            rope_store_reference(qkv, *expected, slots, passage, positions),
        )
        assert_close(storage, expected)
        rows = (expected[1] == qkv.view(3, -1, head_dim)[2, -kv_heads:]).all(-1).all(-1).nonzero().tolist()
        assert rows == [[3, 15]]  # values as they came, in row 63: page 3, position 15


@pytest.mark.parametrize("heads", [(4, 2, 24), (3, 3, 16)], ids=["grouped, odd width", "one key head each"])
@pytest.mark.parametrize("together", [False, True])
def test_keys_and_values_in_8_bits_are_stored_with_their_scales(heads, together, monkeypatch):
    (q_heads, kv_heads, head_dim), tokens = heads, 5
    if together:  # as where tokens are many
        monkeypatch.setattr(rope_store_module, "heads_together", lambda tokens, *heads: heads_together(256, *heads))
    scale = torch.exp2(torch.randint(-20, 20, (tokens, q_heads + 2 * kv_heads, 1)).float())
    qkv = (torch.randn(tokens, q_heads + 2 * kv_heads, head_dim) * scale).flatten(1)
    qkv[1, -3], qkv[2, -head_dim:] = float("inf"), 0.0
    slots = torch.randperm(tokens + 16)[:tokens] + 16
    slots[0] = -1
    positions = torch.randint(0, 12, (tokens,))
    for passage in passages(head_dim):
        storage = torch.zeros(2, tokens // 16 + 3, 16, kv_heads, head_dim).to(E4M3)
        scales = torch.full((2, tokens // 16 + 3, kv_heads, 16), -7.0)
        expected, expected_scales = storage.clone(), scales.clone()
        found = rope_store(qkv, *storage, slots, passage, positions, scales=tuple(scales))
        right = rope_store_reference(qkv, *expected, slots, passage, positions, scales=tuple(expected_scales))
        torch.testing.assert_close(found, right, equal_nan=True)
        torch.testing.assert_close(scales, expected_scales, rtol=0, atol=0, equal_nan=True)
        steps = (storage.view(torch.uint8).int() - expected.view(torch.uint8).int()).abs()
        # rotated in another order of sums, a key may fall to the other side; a value is as it came
        assert not steps[1].any() and steps.max() <= 1 and steps.count_nonzero() <= 1
        assert (scales != -7.0).sum() == 2 * kv_heads * (tokens - 1)


@pytest.mark.parametrize("heads", [(6, 2, 24), (8, 8, 16)], ids=["grouped, odd width", "one key head each"])
@pytest.mark.parametrize("together", [False, True])
def test_one_norm_over_all_heads_grown_queries_and_normalized_values(heads, together, monkeypatch):
    """What OLMo, Ministral 3 and Gemma 4 have of their own, each alone and then all at once."""
    (q_heads, kv_heads, head_dim), tokens = heads, 5
    if together:
        monkeypatch.setattr(rope_store_module, "heads_together", lambda tokens, *heads: heads_together(256, *heads))
    qkv = torch.randn(tokens, (q_heads + 2 * kv_heads) * head_dim)
    slots, positions = torch.randperm(32)[:tokens] + 16, torch.randint(0, 12, (tokens,))
    across = {"norms": (torch.randn(q_heads * head_dim), torch.randn(kv_heads * head_dim)), "eps": 1e-3, "across": True}
    grown = {"table": torch.randn(12, head_dim), "growth": 1 + torch.rand(12)}
    for passage in (Passage(**across), Passage(**grown), Passage(value_eps=1e-3), Passage(**across, **grown)):
        storage = torch.randn(2, 4, 16, kv_heads, head_dim)
        expected = storage.clone()
        right = rope_store_reference(qkv, *expected, slots, passage, positions)
        assert_close(rope_store(qkv, *storage, slots, passage, positions), right)
        assert_close(storage, expected)
        queries = qkv[:, : q_heads * head_dim].contiguous()
        assert_close(turned_queries(queries, head_dim, passage, positions), right)
        assert_close(turned_queries_reference(queries, head_dim, passage, positions), right)


@triton.jit
def narrow_kernel(x_ptr, values_ptr, scale_ptr, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.arange(0, ROWS)
    at = row[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    x = tl.load(x_ptr + at)
    scale, inverse = scales_of(largest_of(x))
    tl.store(values_ptr + at, to_e4m3(x * inverse[:, None]))
    tl.store(scale_ptr + row, scale)


def test_a_vector_in_8_bits_is_the_same_bit_for_bit():
    """Every e4m3 number, every number between two, what is next to that, and magnitudes from one end to the other."""
    numbers = torch.arange(127, dtype=torch.uint8).view(E4M3).float()
    between = (numbers[1:] + numbers[:-1]) / 2
    near = torch.cat([torch.nextafter(between, torch.tensor(to)) for to in (0.0, 1e9)])
    signs = torch.cat([numbers, -numbers, between, -between, near, -near])
    rows = F.pad(signs, (0, 1024 - len(signs)), value=448.0).view(1, 1024)
    rows[:, 0] = 448.0  # so that the scale is 1
    wide = torch.randn(256, 64) * torch.exp2(torch.arange(-128.0, 128.0)).clamp(max=2.0**125).unsqueeze(1)
    wide[7], wide[8, 3], wide[9, 4], wide[10, 5] = 0, float("nan"), float("inf"), float("-inf")
    for x in (rows, wide):
        values, scales = torch.zeros_like(x).to(E4M3), torch.zeros(len(x))
        narrow_kernel[(1,)](x, values, scales, *x.shape)
        expected, expected_scales = kv.to_e4m3(x)
        torch.testing.assert_close(scales, expected_scales, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(values.view(torch.uint8) & 0x7F, expected.view(torch.uint8) & 0x7F)  # a NaN has either sign
        numbers = ~expected.float().isnan()
        assert torch.equal(values.view(torch.uint8)[numbers], expected.view(torch.uint8)[numbers])


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_tanh"])
def test_activations(name):
    x = 4 * torch.randn(3, 2 * 40)
    assert_close(activation.gated_activation(x, name), gated_activation_reference(x, name))
    assert_close(activation.activation(x, name), activation_reference(x, name))
    beside = torch.randn(3, 200)[:, 70:150]  # columns of a wider tensor
    assert_close(activation.activation(x, name, beside), activation_reference(x, name, beside))


@pytest.mark.parametrize(("rows", "name"), each_once([1, 3, 4], [None, "gelu_tanh", "silu"]))
def test_a_few_rows_through_a_matrix_with_everything_around_it_are_each_as_if_alone(rows, name):
    n, k, gated = 11, 100, name == "silu"
    x, weight, bias = torch.randn(rows, k), torch.randn(n * (1 + gated), k), torch.randn(n * (1 + gated))
    for around in (None, Norm(torch.randn(k), None, 1e-5), Norm(torch.randn(k), torch.randn(k), 1e-5)):
        options = {"bias": bias, "norm": around, "activation": name, "gated": gated}
        stream = torch.randn(rows, n)
        expected = product_reference(x, weight, residual=stream.clone(), **options)
        assert gemv(x, weight, GemvLaunch(4, 64, 4), residual=stream, **options) is stream
        assert_close(stream, expected)
        together = gemv(x, weight, GemvLaunch(2, 128, 4), **options)
        assert_close(together, product_reference(x, weight, **options))
        alone = [gemv(row, weight, GemvLaunch(2, 128, 4), **options) for row in x.split(1)]
        assert torch.equal(together, torch.cat(alone))


@pytest.mark.parametrize(("rows", "name"), each_once([1, 3, MOST_ROWS], [None, "silu", "gelu_tanh"]))
def test_a_few_rows_on_the_matrix_units_are_each_as_if_alone(rows, name, monkeypatch):
    """Of 140 columns: all tiles at once (4 warps), or in rounds of 4 (one warp). 19 outputs: the last program has 3."""
    interpret(few_rows, monkeypatch)
    n, k, gated = 19, 140, name == "silu"
    x, weight = torch.randn(rows, k).half(), (torch.randn(n * (1 + gated), k) * k**-0.5).half()
    bias = torch.randn(n * (1 + gated)).half()
    for around in (None, Norm(torch.randn(k).half(), None, 1e-5)):
        options = {"bias": bias, "norm": around, "activation": name, "gated": gated}
        stream = torch.randn(rows + 1, n).half()
        expected, behind = product_reference(x, weight, residual=stream[:rows].clone(), **options), stream[rows].clone()
        out = few_rows.few_rows(x, weight, FewRowsLaunch(16, 4, 3, 2), residual=stream[:rows], **options)
        assert out.data_ptr() == stream.data_ptr() and torch.equal(stream[rows], behind)
        assert_close(out, expected)
        together = few_rows.few_rows(x, weight, FewRowsLaunch(32, 1, 4, 1), **options)
        assert_close(together, product_reference(x, weight, **options))
        alone = [few_rows.few_rows(row, weight, FewRowsLaunch(32, 1, 4, 1), **options) for row in x.split(1)]
        assert torch.equal(together, torch.cat(alone))


# Rings of one tile, of three or six, and all at once; one warp, warps that share rows, columns, and both; and fewer
# outputs than a group has.
STREAMED = [
    (19, 136, (4, 128, 1, 2, 0, 1)),
    (10, 200, (4, 128, 1, 1, 6, 1)),
    (19, 136, (8, 192, 2, 1, 100, 2)),
    (2, 8, (16, 128, 2, 2, 14, 1)),
    (11, 264, (4, 64, 1, 1, 3, 1)),
]


@pytest.mark.parametrize(("n", "k", "launch", "name"), each_once(STREAMED, [None, "silu"]))
def test_a_streamed_row_through_a_matrix_with_everything_around_it(n, k, launch, name, monkeypatch):
    """On two programs or more: slices of unequal length, some of which end within a group."""
    interpret(streamed_gemv, monkeypatch)
    gated, launch = name == "silu", StreamedLaunch(*launch)
    x, weight = torch.randn(1, k).half(), (torch.randn(n * (1 + gated), k) * k**-0.5).half()
    bias = torch.randn(n * (1 + gated)).half()
    for around in (None, Norm(torch.randn(k).half(), None, 1e-5)):
        options = {"bias": bias, "norm": around, "activation": name, "gated": gated}
        stream = torch.randn(2, n).half()
        expected, behind = product_reference(x, weight, residual=stream[:1].clone(), **options), stream[1].clone()
        out = streamed_gemv.streamed_gemv(x, weight, launch, residual=stream[:1], **options)
        assert out.data_ptr() == stream.data_ptr() and torch.equal(stream[1], behind)
        assert_close(out, expected)
        assert streamed_gemv.async_copy.copied == weight.numel(), "each weight once, and nothing beyond"
        streamed_gemv.async_copy.copied = 0
        alone = {"norm": around, "activation": name, "gated": gated}
        assert_close(streamed_gemv.streamed_gemv(x, weight, launch, **alone), product_reference(x, weight, **alone))
        streamed_gemv.async_copy.copied = 0


# Rings of one tile and of three, and all at once; one warp and several; groups of 16 outputs and of 32, the last of
# which is cut; and a program per tile.
STREAMED_ROWS = [
    (19, 136, (16, 64, 1, 1, 0, 1)),
    (70, 200, (16, 128, 1, 2, 12, 1)),
    (40, 264, (32, 256, 1, 4, 100, 1)),
    (11, 72, (16, 256, 1, 2, 100, 2)),
    (40, 136, (16, 64, 1, 1, 100, 0)),
]


@pytest.mark.parametrize(
    ("n", "k", "launch", "rows", "name"), each_once(STREAMED_ROWS, [2, 7, 16, MOST_STREAMED_ROWS], [None, "silu"])
)
def test_streamed_rows_do_not_depend_on_each_other(n, k, launch, rows, name, monkeypatch):
    interpret(streamed_rows, monkeypatch)
    gated, launch, product = name == "silu", StreamedLaunch(*launch), streamed_rows.streamed_rows
    x, weight = torch.randn(rows, k).half(), (torch.randn(n * (1 + gated), k) * k**-0.5).half()
    bias = torch.randn(n * (1 + gated)).half()
    for around in (None, Norm(torch.randn(k).half(), None, 1e-5)):
        options = {"bias": bias, "norm": around, "activation": name, "gated": gated}
        stream = torch.randn(rows + 1, n).half()
        expected, behind = product_reference(x, weight, residual=stream[:rows].clone(), **options), stream[rows].clone()
        out = product(x, weight, launch, residual=stream[:rows], **options)
        assert out.data_ptr() == stream.data_ptr() and torch.equal(stream[rows], behind)
        assert_close(out, expected)
        beside = streamed_rows.async_copy.copied - weight.numel()
        assert beside == 0 if around else beside % x.numel() == 0, "each weight once, and whole rows"
        others = torch.cat([x[:1], torch.randn(rows - 1, k).half()])
        first, beside_others = (product(some, weight, launch, **options)[0] for some in (x, others))
        assert torch.equal(first, beside_others)
        streamed_rows.async_copy.copied = 0


@pytest.mark.parametrize("splits", [1, 3])
def test_a_few_rows_through_a_matrix_however_the_sum_is_split(splits):
    x, weight, bias, stream = torch.randn(17, 100), torch.randn(37, 100), torch.randn(37), torch.randn(17, 37)
    launch = SplitKLaunch(16, 32, splits, 2, 4)
    assert_close(splitk(x, weight, launch, bias=bias), product_reference(x, weight, bias=bias))
    expected = product_reference(x[:3], weight, residual=stream[:3].clone())
    assert_close(splitk(x[:3], weight, launch, residual=stream[:3]), expected)
    assert not counters_of(x.device, 1).any()  # ready for the next launch


def test_tokens_are_those_of_the_torch_sampler_at_any_temperature_and_stride():
    logits = 3 * torch.randn(5, 3001)
    seeds, positions = torch.tensor([1, -5, 2**40 + 3, 7, 9]), torch.tensor([0, 5, 9, 2**31 - 1, 3])
    temperatures = torch.tensor([0.0, 1.0, 0.5, 1e-3, 100.0])
    padded = torch.full((5, 3008), float("nan"))
    padded[:, :3001] = logits
    for given in (logits, padded[:, :3001]):
        expected = sample_reference(logits, seeds, positions, temperatures)
        assert torch.equal(sample(given, seeds, positions, temperatures), expected)
        drafts = torch.full((5, 3), -7)
        out = drafts[:, 1]
        assert sample(given, seeds, positions, temperatures, out=out) is out
        assert torch.equal(out, expected) and (drafts[:, ::2] == -7).all()


@pytest.mark.parametrize("width", [1, 16])
def test_with_slots_seeds_are_looked_up_and_tokens_written_back(width):
    """Tokens go to their positions, or in place of the newest. Padding, at position 0, has none among all tokens."""
    logits, positions = 3 * torch.randn(3, 1100), torch.tensor([4, 0, 9], dtype=torch.int32)
    logits[1, 7] = float("nan")
    seeds, temperatures = torch.tensor([11, 22, 33, 44, 55]), torch.tensor([0.0, 1.0, 0.5, 0.0, 2.0])
    slots, history = torch.tensor([4, 0, 2], dtype=torch.int32), torch.full((5, width), 99)
    tokens = sample(logits, seeds, positions, temperatures, slots=slots, history=history)
    where = slots.long()
    expected = sample_reference(logits, seeds[where], positions.long(), temperatures[where])
    places = positions.long().clamp(max=width - 1)
    assert tokens[[0, 2]].tolist() == expected[[0, 2]].tolist() == history[where, places][[0, 2]].tolist()
    assert tokens[1] == (-1 if width == 1 else UNDRAFTED) and expected[1] == -1
    assert 0 <= history[0, 0] < 1100 if width == 1 else history[0, 0] == 99  # what is kept can be looked up
    assert int((history != 99).sum()) == (3 if width == 1 else 2)


@pytest.mark.parametrize("rows", [1, 130])
def test_rows_are_stored_where_block_tables_say(rows):
    slots = torch.randperm(200)[:rows].to(torch.int32)
    lengths = torch.randint(1, 160, (rows,), dtype=torch.int32)
    slots[-1], lengths[-1] = 200, 0  # padding
    tables = torch.randint(1, 2**31, (2, 201, 10))
    tables[:, 200] = 0
    newest = (lengths.long() - 1).clamp(min=0)
    assert torch.equal(places(slots, lengths, tables, 16), step.places(slots, newest, tables, 16))
    assert places(slots, lengths, tables, 16)[:, -1].tolist() == [0, 0]


def test_noise_is_the_engines():
    """Flat logits: the winner is the token with the least noise, so all of the noise decides."""
    seeds, positions = torch.arange(9) * 2**40 - 7, torch.arange(9)
    tokens = sample(torch.zeros(9, 1100), seeds, positions, torch.ones(9))
    assert torch.equal(tokens, exponential(seeds, positions, 1100).argmin(-1))


def test_a_row_that_is_not_finite_shows_and_leaves_its_neighbors_alone():
    logits = torch.randn(4, 1100)
    logits[1, 1099] = float("nan")
    logits[2, :] = float("-inf")
    logits[3, :1090] = float("-inf")  # a whole block that may not be chosen, as top-k leaves it
    tokens = sample(logits, torch.arange(4), torch.arange(4), torch.tensor([0.0, 1.0, 1.0, 1.0]))
    assert tokens[:3].tolist() == [int(logits[0].argmax()), -1, -1] and 1090 <= tokens[3] < 1100


@pytest.mark.parametrize(("model", "rows"), first([("layer", 2), ("rms", 1), ("rms", 2)], count=2))
def test_the_race_of_a_layers_products_checks_each_kernel_and_times_those_that_are_right(model, rows, monkeypatch):
    for module in (few_rows, streamed_gemv, streamed_rows):
        interpret(module, monkeypatch)
    for name, value in {
        "DEVICE": torch.device("cpu"),
        "DTYPE": torch.float16,
        "MODELS": {"rms": (9, 32, 2, 1, 16, 24, 2, True), "layer": (9, 32, 2, 2, 16, 24, 2, False)},
        "SHARES": ((1, 2, 1),),
        "graph_microseconds": lambda launches: 8.0,
    }.items():
        monkeypatch.setattr(fused_kernels, name, value)
    *layer, _ = fused_kernels.uses(model)
    gemvs, few = [GemvLaunch(16, 32, 4), GemvLaunch(8, 32, 4)], [FewRowsLaunch(16, 2, 2, 1)]
    times = {}
    for use in layer:
        launches = gemvs + (few if rows > 1 and use.norm != "layer" else [])
        times[use] = {fused_kernels.name_of(launch): 1.0 + at for at, launch in enumerate(launches)} | {"apart": 0.5}
    alone = [[fused_kernels.stored_form(SplitKLaunch(16, 32, 1, 2, 4)), 1.0]]
    measured = (
        [{"m": rows, **use._asdict(), "times": times[use]} for use in layer],
        [{"m": 8, "n": use.n, "k": use.k, "launches": alone} for use in layer],
    )
    (entry,) = fused_kernels.measure_chains([model], [rows], *measured)
    kinds = {"gemv", "apart", "fastest", "splitk", "cublas", "streamed"}
    kinds |= {"few rows"} if rows > 1 and model == "rms" else set()
    kinds |= {"mixed"} if rows > 1 else set()
    assert entry["layer"] == dict.fromkeys(kinds, 4.0)
    kind = GemvLaunch if rows == 1 else FewRowsLaunch | StreamedLaunch
    assert all(isinstance(fused_kernels.launch_of(stored), kind) for stored in entry["launches"])
    monkeypatch.setattr(fused_kernels, "product_reference", lambda *_, **__: torch.zeros(1))
    (entry,) = fused_kernels.measure_chains([model], [rows], *measured)
    assert not entry["layer"], "nothing that is wrong is timed"
