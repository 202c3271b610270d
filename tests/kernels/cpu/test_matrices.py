"""Every kind of matrix: its product by the kernels is that of its class, and a model of it the torch model.

A product is looked at where a step leaves both sides of it: what the last layer's `down` reads is in `features`, and
of Gemma's, which is normalized before it is added, the result is in `added`.
"""

from functools import partial

import pytest
import torch

from gradus.kernels.cpu import model as kernel_model
from gradus.kernels.cpu.activations import make_rows
from gradus.kernels.cpu.int4 import panel
from gradus.kernels.cpu.machine import LINE
from gradus.kernels.cpu.matrix import Unsupported
from gradus.kernels.cpu.vectors import BY_PAIRS, HAS_BF16
from gradus.models import Linear
from gradus.models.precision import NarrowLinear
from gradus.quantization.fp8 import Fp8Linear
from gradus.quantization.int4 import Int4Linear
from gradus.quantization.int8 import Int8Linear, integer_product, to_int8
from gradus.quantization.linear import rounded_planes
from gradus.quantization.parts import SideBySide
from tests.kernels.cpu.steps import SOME, Pages, Step, close, dense, generator, made, only, poison, widened
from tests.pairwise import each_once, pairwise
from tests.phases.conftest import FAMILIES

CONTEXTS = [5, 31, 0, 16, 63, 1, 32, 200]
NARROW = partial(NarrowLinear, widen_from=1 << 30)
FLOATS = {
    "float32": Linear,
    "bfloat16": NARROW,
    "int4": Int4Linear,
    "int4-g32": partial(Int4Linear, group=32),
    "int4-g64": partial(Int4Linear, group=64),
    "int4-ordered": partial(Int4Linear, ordered=True),
}
"""Kinds whose product is that of a float matrix: activations stay as they are."""

FOR_INT4 = 3e-5 if BY_PAIRS else 2e-6  # a value may round to the other neighbor, 1 / 32767 of the largest away

WIDTHS = (32, 96, 128, 160, 192, 384, 640)


def model_of(shape, linear, **numbers):
    model = made(shape, linear, **numbers)
    for part in model.modules():
        if isinstance(part, Int4Linear) and part.ordered:
            part.order.copy_(torch.randperm(part.in_features, generator=generator(4)))
    return model


def side_by_side(*makers):
    """q in one way, k in another, v in a third; and gate and up in two."""

    def make(place, width, out, bias, dtype, device):
        if len(out) == 1:
            return Linear(place, width, out, bias, dtype, device)
        return SideBySide(place, width, out, bias, dtype, device, makers=makers[: len(out)])

    return make


# -- whole models ------------------------------------------------------------------------------------------------------


# int4-g32: the only group size that divides all widths of these shapes
@pytest.mark.parametrize("shape, kind, rows", pairwise(FAMILIES, ["bfloat16", "int4-g32"], [1, 2, 4, 7]))
def test_a_model_of_it_is_the_model_of_its_floats(shape, kind, rows):
    """The head, which is the table of embeddings, is included."""
    model = model_of(shape, FLOATS[kind])
    step = Step(model, CONTEXTS[:rows])
    tolerance = 1e-3 if BY_PAIRS and kind.startswith("int4") else 1e-4  # activations are rounded to int16
    close(step.compiled(Pages(model).decode_model(model)), step.in_torch(widened(model), Pages(model)), tolerance)


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("shape", FAMILIES)
def test_a_model_in_int8_is_the_model_in_int8(shape, rows):
    """Not closer: sums that differ in their last bit may round an activation to the other neighbor."""
    model = model_of(shape, Int8Linear)
    step = Step(model, CONTEXTS[:rows])
    close(step.compiled(Pages(model).decode_model(model)), step.in_torch(model, Pages(model)), 3e-2)


TOGETHER = {
    "floats first": (Linear, NARROW, partial(Int4Linear, group=32)),
    "int4 twice": (partial(Int4Linear, group=32), partial(Int4Linear, group=32, ordered=True), Linear),
    "narrow twice": (NARROW, Linear, NARROW),
}


@pytest.mark.parametrize(
    "shape, together, rows", pairwise(["tiny-gpt2", "tiny-qwen2", "tiny-gemma3"], list(TOGETHER), [1, 3, 8])
)
def test_matrices_side_by_side(shape, together, rows, monkeypatch):
    """Each wants its activations in its own way. Chunks are short, so that they end within parts and between them."""
    monkeypatch.setattr(kernel_model, "CHUNK_BYTES", 1)
    model = model_of(shape, side_by_side(*TOGETHER[together]))
    step = Step(model, CONTEXTS[:rows])
    decode = Pages(model).decode_model(model)
    poison(decode)
    close(step.compiled(decode), step.in_torch(widened(model), Pages(model)), 1e-3 if BY_PAIRS else 1e-4)


def test_int8_side_by_side_with_floats():
    model = model_of("tiny-qwen2", side_by_side(Int8Linear, Linear, Int8Linear))
    step = Step(model, CONTEXTS)
    close(step.compiled(Pages(model).decode_model(model)), step.in_torch(model, Pages(model)), 3e-2)


@pytest.mark.parametrize("kind", [*FLOATS, "int8"])
def test_a_quantized_head_and_a_table_of_its_own(kind):
    linear = Int8Linear if kind == "int8" else FLOATS[kind]
    model = model_of("tiny-gemma3", only("head", linear), hidden_size=128)
    step = Step(model, CONTEXTS)
    expected = step.in_torch(model if kind == "int8" else widened(model), Pages(model))
    close(step.compiled(Pages(model).decode_model(model)), expected, 3e-2 if kind == "int8" else 1e-4)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kind", ["bfloat16", "int8", "int4-g32"])
def test_a_row_that_is_not_finite_stays_alone_and_can_be_seen(kind, bad):
    """Rounded to integers, NaN and infinity would be numbers like others."""
    model = model_of("tiny-qwen3", Int8Linear if kind == "int8" else FLOATS[kind])
    step = Step(model, CONTEXTS[1:5])
    expected = step.compiled(Pages(model).decode_model(model))
    pages = Pages(model)
    page = pages.attention.tables[0, step.slots[2], 0]
    pages.storage.values[0, page, 3] = bad  # position 3 of 16, in the first layer
    found = step.compiled(pages.decode_model(model))
    assert not found[2].isfinite().any()
    assert torch.equal(found[[0, 1, 3]], expected[[0, 1, 3]])


def test_a_kind_without_a_kernel_is_named():
    model = made("tiny-llama", Fp8Linear)
    with pytest.raises(Unsupported, match="Fp8Linear with"):
        Pages(model).decode_model(model)
    model = made("tiny-llama", dtype=torch.float16)
    with pytest.raises(Unsupported, match=r"Linear with torch\.float16 weights"):
        Pages(model).decode_model(model)
    with pytest.raises(Unsupported, match=r"a cache in torch\.float16"):
        model = made("tiny-llama")
        Pages(model, dtype=torch.float16).decode_model(model)


# -- single products ---------------------------------------------------------------------------------------------------


def product(linear, width, rows, hidden, scale=1.0, dtype=torch.float32):
    """Return a matrix [hidden, width], the input that a step multiplied it by, and the result."""
    numbers = {"intermediate_size": width, "hidden_size": hidden}
    model = model_of("tiny-gemma3", only("down", linear), dtype=dtype, **numbers)
    for layer in model.layers:
        layer.gate_up.weight.mul_(scale)
    decode = Pages(model, slots=SOME).decode_model(model)
    poison(decode)
    Step(model, (CONTEXTS * 4)[:rows]).compiled(decode)
    features, added = (torch.from_numpy(array[:rows]) for array in (decode.step.features, decode.step.added))
    return model.layers[-1].down, features, added


@pytest.mark.parametrize(
    ("kind", "width", "rows"),
    pairwise(
        list(FLOATS),
        WIDTHS,
        [1, 2, 3, 5, 8, 9, 10, 20],
        valid=lambda kind, width, rows: kind != "int4-g64" or width % 64 == 0,
    ),
)
def test_a_product_is_that_of_the_stored_floats(kind, width, rows, monkeypatch):
    monkeypatch.setattr(kernel_model, "CHUNK_BYTES", 1)  # 16 columns each; the last chunk has 4
    down, features, added = product(FLOATS[kind], width, rows, hidden=52)
    # codes times x, less zeros times the sum of x: each may be larger than what is left
    is_product(down, features, added, FOR_INT4 if kind.startswith("int4") else 1e-6)


@pytest.mark.parametrize("kind, rows", each_once(["float32", "bfloat16"], [*range(1, 13), 17, 32]))
def test_chunks_of_more_weight_rows_than_a_turn_takes(kind, rows):
    """140 rows in chunks of 48 and a last one of 44, which neither 3 nor 33 divides."""
    down, features, added = product(FLOATS[kind], 96, rows, hidden=140)
    is_product(down, features, added)


@pytest.mark.parametrize("width", [24, 576, 1000, 1536])
def test_every_row_of_activations_begins_at_a_line_of_memory(width):
    """Else each vector of it lies in two lines, and reading it takes twice as long."""
    rows = make_rows(width)
    for each in (rows.x, rows.rounded, rows.ordered, rows.narrow):
        assert each.ctypes.data % LINE == 0 and each.strides[0] % LINE == 0


@pytest.mark.parametrize(
    "kind, width, rows",
    pairwise(["int4", "int4-g32", "int4-g64", "int4-ordered"], [192, 256], [1, 2, 3, 8, 9, 10, 20]),
)
def test_int4_multiplies_bfloat16_where_activations_are(kind, width, rows, monkeypatch):
    """Rounded as torch rounds them, where the processor multiplies them. Weights are not: that would be 1,000 times as
    far."""
    monkeypatch.setattr(kernel_model, "CHUNK_BYTES", 1)
    down, features, added = product(FLOATS[kind], width, rows, hidden=52, dtype=torch.bfloat16)
    assert down.kind == torch.bfloat16
    is_product(down, features.bfloat16().float() if HAS_BF16 else features, added, max(5e-6, FOR_INT4))


def in_shorts(x, order):
    """Round activations as AVX2's int4 does: each 32 in the matrix's order to int16, with a scale."""
    order = torch.arange(x.shape[1]) if order is None else order
    planes = x[:, order].unflatten(1, (-1, 32))
    scales = planes.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 32767
    return torch.empty_like(x).index_copy_(1, order, ((planes / scales).round() * scales).flatten(1))


def rounding(*arguments, **settings):
    """Make a matrix that rounds activations to int8."""
    linear = Int4Linear(*arguments, **settings)
    linear.rounds = True
    return linear


ROUNDING = {
    "int4": rounding,
    "int4-g32": partial(rounding, group=32),
    "int4-g64": partial(rounding, group=64),
    "int4-ordered": partial(rounding, ordered=True),
}


@pytest.mark.parametrize(
    ("kind", "width", "rows", "dtype"),
    pairwise(
        list(ROUNDING),
        WIDTHS,
        [1, 2, 3, 5, 8, 9, 10, 20],
        [torch.float32, torch.bfloat16],
        valid=lambda kind, width, rows, dtype: kind != "int4-g64" or width % 64 == 0,
    ),
)
def test_int4_multiplies_int8_where_activations_are_rounded(kind, width, rows, dtype, monkeypatch):
    """Integers are exact: a product differs by the rounding of its scales. Torch rounds alike."""
    monkeypatch.setattr(kernel_model, "CHUNK_BYTES", 1)
    down, features, added = product(ROUNDING[kind], width, rows, hidden=52, dtype=dtype)
    order = torch.arange(width) if down.order is None else down.order
    rounded = torch.empty_like(features).index_copy_(1, order, rounded_planes(features[:, order]))
    expected = rounded.double() @ dense(down).double().t()
    scale = rounded.double().abs() @ dense(down).double().abs().t()
    assert ((added - expected).abs() <= 2e-6 * scale).all(), ((added - expected).abs() / scale).max()
    assert not torch.equal(rounded, features)
    down.panels = None
    in_torch = down.forward(features)
    assert ((in_torch - expected).abs() <= 2e-6 * scale).all()


@pytest.mark.parametrize("largest", [1, 1000])
def test_int16_activations_are_nearly_the_floats(largest):
    """A product of AVX2's int4 differs by less than 1e-4 of its length, bfloat16 activations' by more than 1e-3. One
    activation in a hundred is larger than its neighbors by `largest`."""
    draw = generator(largest)
    x, weight = torch.randn(64, 576, generator=draw), torch.randn(1536, 576, generator=draw).double()
    x *= torch.where(torch.rand(x.shape, generator=draw) < 0.01, float(largest), 1.0)
    exact = x.double() @ weight.t()

    def error(rounded):
        return ((rounded.double() @ weight.t() - exact).norm(dim=1) / exact.norm(dim=1)).max()

    assert error(in_shorts(x, None)) < 1e-4
    assert error(x.bfloat16()) > 1e-3


def is_product(down, features, added, tolerance=1e-6):
    if BY_PAIRS and isinstance(down, Int4Linear):
        features = in_shorts(features, down.order)
    expected = features.double() @ dense(down).double().t()
    scale = features.double().abs() @ dense(down).double().abs().t()
    assert ((added - expected).abs() <= tolerance * scale).all(), ((added - expected).abs() / scale).max()


@pytest.mark.parametrize("together", [1, 3, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["int4", "int4-g32", "int4-g64", "int4-ordered"])
def test_int4_made_wide_for_torch_is_the_same_matrix(kind, dtype, together, monkeypatch):
    """The bits are the same: a weight is rounded once. `together` blocks of 16 rows per panel; the last of 52 rows are
    4."""
    monkeypatch.setattr(panel, "PIECE", together * 192 * 16)
    monkeypatch.setattr(kernel_model, "widens_prompts", lambda config: False)
    model = model_of("tiny-gemma3", only("down", FLOATS[kind]), dtype=dtype, intermediate_size=192, hidden_size=52)
    down = model.layers[0].down
    expected = (dense(down)[:, down.order] if down.ordered else dense(down)).to(dtype)
    Pages(model).decode_model(model)
    panels = [each.clone() for each in down.panels]
    assert len(panels) == -(-4 // together)
    assert torch.equal(torch.cat(panels, 1)[:, :52].t(), expected)
    x = torch.randn(40, 192, generator=generator(1)).to(dtype)
    product = down.forward(x)
    down.panels = None
    torch.testing.assert_close(product, down.forward(x))


# widths that are multiples of 64 are VNNI's
@pytest.mark.parametrize("width, rows", each_once([24, 64, 100, 128, 160, 192, 640], [1, 2, 3, 5, 8, 9, 10, 20]))
def test_int8_sums_are_those_of_integers(width, rows, monkeypatch):
    monkeypatch.setattr(kernel_model, "CHUNK_BYTES", 1)
    down, features, added = product(Int8Linear, width, rows, hidden=51)
    same_integers(down, features, added)


@pytest.mark.parametrize("rows", [1, 4, 8])
@pytest.mark.parametrize("width", [100, 192])
def test_int8_sums_have_room_for_the_largest(width, rows):
    """Weights of ±127 and -128, which a symmetric scheme has not but a checkpoint may."""
    model = made("tiny-gemma3", only("down", Int8Linear), intermediate_size=width)
    down = model.layers[-1].down
    down.values.copy_(torch.tensor([127, -128, -127])[torch.randint(3, down.values.shape, generator=generator(1))])
    down.values[0], down.values[1] = 127, -128
    decode = Pages(model).decode_model(model)
    Step(model, CONTEXTS[:rows]).compiled(decode)
    same_integers(down, *(torch.from_numpy(array[:rows]) for array in (decode.step.features, decode.step.added)))


def same_integers(down, features, added):
    """The sums are exact, including the rounding of activations; only the scales' product may be rounded twice."""
    x, scales = to_int8(features)
    sums = integer_product(x, down.values)
    assert torch.equal((added.double() / scales / down.scales).round().long(), sums.long())
    torch.testing.assert_close(added, down.forward(features), rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", [*FLOATS, "int8"])
def test_rows_of_zeros_give_zeros(kind):
    linear = Int8Linear if kind == "int8" else FLOATS[kind]
    _, features, added = product(linear, 128, 3, hidden=64, scale=0.0)
    assert not features.any()
    torch.testing.assert_close(added, torch.zeros_like(added), rtol=0, atol=0)
