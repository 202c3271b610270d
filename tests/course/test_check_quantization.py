"""The mistakes that p07 invites are caught, and the check says in a sentence what is wrong; of seven files, which."""

from pathlib import Path

import pytest

from gradus import phases
from tests.course.conftest import exercise_of, mistakes, reference

STEP = "    w[:, column + 1 :] -= (error / u[column, column])[:, None] * u[column, column + 1 :]\n"
FACTORS = "factors = (x_size**ratio / (w_size ** (1 - ratio) + SMALLEST)).clamp(min=SMALLEST)"

WRONG = {
    # file, the right text, the wrong text, what the sentence must say
    "sixteen points are taken for sixteen steps": (
        "rounding.py",
        "(weights.amax(dim=-1) - offset) / (2**bits - 1)",
        "(weights.amax(dim=-1) - offset) / 2**bits",
        "15 steps from -0.5 to 1 and from 3 to 18: scales [0.1, 1.0]",
    ),
    "all groups share a grid": (
        "rounding.py",
        "    offset = weights.amin(dim=-1)\n",
        "    if weights.dim() > 1:\n"
        "        weights = weights.flatten(-2).unsqueeze(-2).expand(*weights.shape[:-1], -1)\n"
        "    offset = weights.amin(dim=-1)\n",
        "the offsets are [-0.5, 3.0]; yours are [-0.5, -0.5]",
    ),
    "a scale of 0 is divided by": (
        "rounding.py",
        "return scale.clamp(min=TINY), offset",
        "return scale, offset",
        "the scale of 64 equal weights is divided by",
    ),
    "codes are cut off instead of rounded": (
        "rounding.py",
        "((weights - offset) / scale).round()",
        "((weights - offset) / scale).floor()",
        "on the grid -0.5, -0.4 … 1.0 the codes are",
    ),
    "weights beyond the grid get numbers that four bits do not have": (
        "rounding.py",
        ".round().clamp(0, 2**bits - 1)",
        ".round()",
        "four bits end at 0 and 15, also for weights beyond",
    ),
    "the offset is forgotten on the way back": (
        "rounding.py",
        "(groups * scale[..., None] + offset[..., None])",
        "(groups * scale[..., None])",
        "two groups of two: [-0.5, 1.0, 9.0, 11.0]",
    ),
    "the first code goes into the high half": (
        "packing.py",
        "codes[:, 0::2] | (codes[:, 1::2] << 4)",
        "(codes[:, 0::2] << 4) | codes[:, 1::2]",
        "codes 1, 2, 15, 0 are the bytes 0x21 and 0x0f; yours are",
    ),
    "the halves of a row share bytes, not neighbors": (
        "packing.py",
        "codes[:, 0::2] | (codes[:, 1::2] << 4)",
        "codes[:, : codes.shape[1] // 2] | (codes[:, codes.shape[1] // 2 :] << 4)",
        "codes 1, 2, 15, 0 are the bytes 0x21 and 0x0f; yours are",
    ),
    "the high half is not masked away": (
        "packing.py",
        "torch.stack((packed & 15, packed >> 4), dim=-1)",
        "torch.stack((packed, packed >> 4), dim=-1)",
        "the bytes 0x21 and 0x0f are the codes 1, 2, 15, 0; yours are",
    ),
    "low halves first, then all high ones": (
        "packing.py",
        "torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1)",
        "torch.cat((packed & 15, packed >> 4), dim=1)",
        "the bytes 0x21 and 0x0f are the codes 1, 2, 15, 0; yours are [[1, 15, 2, 0]]",
    ),
    "what was widened is not narrowed": (
        "awq.py",
        "dequantize_groups(*quantize_groups(w * factors, group, bits)) / factors",
        "dequantize_groups(*quantize_groups(w * factors, group, bits))",
        "the matrix is nearly what it was",
    ),
    "both sizes have the same exponent": (
        "awq.py",
        "w_size ** (1 - ratio)",
        "w_size**ratio",
        "the first is 8 times the second",
    ),
    "large weights ask for large factors": (
        "awq.py",
        FACTORS,
        "factors = (x_size**ratio * (w_size ** (1 - ratio) + SMALLEST)).clamp(min=SMALLEST)",
        "the first is 8 times the second",
    ),
    "factors are not balanced": (
        "awq.py",
        "return factors / (factors.max() * factors.min()).sqrt()",
        "return factors",
        "inputs of 4 and 1, equal weights",
    ),
    "a silent channel's factor is 0": (
        "awq.py",
        ".clamp(min=SMALLEST)\n    return factors",
        "\n    return factors",
        "factors are above 0",
    ),
    "the error of the weights is searched, not of the output": (
        "awq.py",
        "        error = output_error(x, w, rounded(w, factors, group, bits))\n",
        "        error = float((rounded(w, factors, group, bits) - w).square().mean())\n",
        "the least error is",
    ),
    "weights' errors are weighed by their inputs, one by one": (
        "awq.py",
        "        error = output_error(x, w, rounded(w, factors, group, bits))\n",
        "        error = float(((rounded(w, factors, group, bits) - w) * x_size).square().mean())\n",
        "channels move together: an output's least error is",
    ),
    "the largest error is kept": ("awq.py", "if error < least:", "if error > least:", "the least error is"),
    "plain rounding is not among what is tried": (
        "awq.py",
        "    least = output_error(x, w, rounded(w, best, group, bits))\n",
        "    least = float('inf')\n",
        "factors of 1 lose nothing here",
    ),
    "the error is added instead of taken away": (
        "gptq.py",
        "-= (error / u[column, column])",
        "+= (error / u[column, column])",
        "the error 0.04 is taken from 1 half, and -2 times: [0.98, 1.08]",
    ),
    "the diagonal is forgotten": (
        "gptq.py",
        "(error / u[column, column])",
        "error",
        "the error 0.04 is taken from 1 half, and -2 times: [0.98, 1.08]",
    ),
    "columns that were rounded are changed again": (
        "gptq.py",
        STEP,
        "    w -= (error / u[column, column])[:, None] * (u[column] + u[:, column])\n",
        "columns 0 to 2 are rounded already",
    ),
    "nothing is handed on": (
        "gptq.py",
        STEP,
        "",
        "the error 0.04 is taken from 1 half, and -2 times: [0.98, 1.08]",
    ),
    "what lies beyond the grid is lost": (
        "gptq.py",
        "    error = w[:, column] - (codes * scale + offset)\n",
        "    error = (w[:, column] - (codes * scale + offset)).clamp(-scale / 2, scale / 2)\n",
        "2.5 is 1.0 above 1.5: the next becomes -1.0",
    ),
    "halves of x instead of every second column": (
        "fused.py",
        "return x[:, 0::2].copy(), x[:, 1::2].copy(), sums",
        "return x[:, : x.shape[1] // 2].copy(), x[:, x.shape[1] // 2 :].copy(), sums",
        "a row of 64, 65, 66 …: even and odd columns begin",
    ),
    "one sum for the whole row": (
        "fused.py",
        "x[m, group * GROUP : (group + 1) * GROUP].sum()",
        "x[m].sum()",
        "two rows of three groups, of ones and of twos",
    ),
    "the low half meets the odd column": (
        "fused.py",
        "pairs, low, high = codes[here], even[here], odd[here]",
        "pairs, low, high = codes[here], odd[here], even[here]",
        "32 bytes 0x72, even columns 1, odd ones 10",
    ),
    "the offset is added without x": (
        "fused.py",
        "to_float(offset[group]) * sums[group]",
        "to_float(offset[group])",
        "scale 0.5, offset -1, Σ code · x = 2304, Σ x = 352",
    ),
    "the scale of the first group is everyone's": (
        "fused.py",
        "to_float(scale[group]) * part",
        "to_float(scale[0]) * part",
        "codes of 1, x of 1: 64 from the first group",
    ),
    "the loop takes one code at a time": (
        "fused.py",
        """        pairs, low, high = codes[here], even[here], odd[here]
        part = np.float32(0)
        for i in range(BYTES):
""",
        """        pairs, low, high = codes, even, odd
        part = np.float32(0)
        for i in range(here.start, here.stop):
""",
        "the compiler made no vectors",
    ),
    "subnormal values have a leading one": (
        "formats.py",
        "torch.ldexp(fraction, torch.tensor(1 - form.bias))",
        "torch.ldexp(1 + fraction, torch.tensor(-form.bias))",
        "E2M1's codes 0 to 7 are",
    ),
    "codes of infinity are points too": (
        "formats.py",
        "return values[values <= form.largest]",
        "return values",
        "ends at",
    ),
    "a tie gets the lower code": (
        "formats.py",
        "codes = below + (tie & (below % 2 == 1))",
        "codes = below",
        "ties, with codes",
    ),
    "the sign is lost": (
        "formats.py",
        "(codes | (x.signbit().long() << (form.exponent + form.mantissa)))",
        "codes",
        "-0.5, -6, 6 are codes 8 + 1, 8 + 7 and 7",
    ),
    "the largest point is not taken into account": (
        "formats.py",
        "log2().floor() - highest)",
        "log2().floor())",
        "largest weights 4, 6, 7.9, 8, 0.3: scales",
    ),
    "every form ends at E2M1's exponent": (
        "formats.py",
        "highest = torch.tensor(form.largest).log2().floor()",
        "highest = 2",
        "448 is E4M3's own largest point",
    ),
    "the block's scale is not rounded to E4M3": (
        "formats.py",
        "decode(encode(largest / E2M1.largest / tensor, E4M3), E4M3)",
        "(largest / E2M1.largest / tensor)",
        "the largest block's E4M3 is 448",
    ),
    "all vectors of a token share a scale": (
        "kv.py",
        "scale = x.float().abs().amax(dim=-1).clamp(min=TINY) / 127",
        "scale = x.float().abs().amax(dim=(1, 2)).clamp(min=TINY)[:, None].expand(x.shape[:2]) / 127",
        "divided by 127: 1 and 0.00394; of (254, 2): 2; yours",
    ),
    "the scale is the whole cache's": (
        "kv.py",
        "scale = x.float().abs().amax(dim=-1).clamp(min=TINY) / 127",
        "scale = x.float().abs().amax().clamp(min=TINY).expand(x.shape[:2]) / 127",
        "divided by 127: 1 and 0.00394; of (254, 2): 2; yours",
    ),
    "a key's scale is forgotten": (
        "kv.py",
        "(codes.to(q.dtype) @ q) * scale",
        "codes.to(q.dtype) @ q",
        "codes · q = 12 and 26, times 0.5 and 2",
    ),
    "codes are cut off instead of rounded in the cache": (
        "kv.py",
        ".round().to(torch.int8), scale",
        ".to(torch.int8), scale",
        "yours: [[1, -127], [127, 63]]",
    ),
    "the grid is symmetric": (
        "rounding.py",
        "    offset = weights.amin(dim=-1)\n    scale = (weights.amax(dim=-1) - offset) / (2**bits - 1)",
        "    offset = -weights.abs().amax(dim=-1)\n    scale = -2 * offset / (2**bits - 1)",
        "the offsets are [-0.5, 3.0]; yours are [-1.0, -18.0]",
    ),
    "scales are tiled, not repeated": (
        "rounding.py",
        "    groups = codes.to(scale.dtype).unflatten(1, (scale.shape[1], -1))\n"
        "    return (groups * scale[..., None] + offset[..., None]).flatten(1)",
        "    times = codes.shape[1] // scale.shape[1]\n"
        "    return codes.to(scale.dtype) * scale.repeat(1, times) + offset.repeat(1, times)",
        "two groups of two: [-0.5, 1.0, 9.0, 11.0]; yours: [-0.5, 37.0",
    ),
    "codes wrap before they are cut off": (
        "rounding.py",
        "/ scale).round().clamp(",
        "/ scale).round().to(torch.uint8).to(weights.dtype).clamp(",
        "four bits end at 0 and 15, also for weights beyond: [0, 15]; yours are [15.0, 15.0]",
    ),
    "a loud channel is known by its peak": (
        "awq.py",
        "x_size, w_size = x.abs().mean(dim=0)",
        "x_size, w_size = x.abs().amax(dim=0)",
        "the search returns what factors_at proposes for each channel's mean |x| and size_in_group(w)",
    ),
    "the search ends at the first exponent that is worse": (
        "awq.py",
        "        if error < least:\n            best, least = factors, error\n",
        "        if error > least:\n            break\n        best, least = factors, error\n",
        "plain rounding and the exponents in turn are off by 0.0319, 0.0584",
    ),
    "the column of u, not its row": (
        "gptq.py",
        "[:, None] * u[column, column + 1 :]",
        "[:, None] * u[column + 1 :, column]",
        "",
    ),
    "a part goes on from group to group": (
        "fused.py",
        "    total = np.float32(0)\n    for group in range(len(scale)):\n"
        "        here = slice(group * BYTES, (group + 1) * BYTES)\n"
        "        pairs, low, high = codes[here], even[here], odd[here]\n        part = np.float32(0)\n",
        "    total = part = np.float32(0)\n    for group in range(len(scale)):\n"
        "        here = slice(group * BYTES, (group + 1) * BYTES)\n"
        "        pairs, low, high = codes[here], even[here], odd[here]\n",
        "64 from the first group, 64 · 2 + 64 · 3 from the second; yours 512",
    ),
    "MX rounds the exponent up": (
        "formats.py",
        "largest.clamp(min=TINY).log2().floor()",
        "largest.clamp(min=TINY).log2().ceil()",
        "largest weights 4, 6, 7.9, 8, 0.3: scales [1.0, 1.0, 1.0, 2.0, 0.0625]; yours [1.0, 2.0",
    ),
    "a block's scale may be zero": (
        "formats.py",
        "blocks.clamp(min=2.0**-9) * tensor",
        "blocks * tensor",
        "the last two need less than E4M3's smallest point, and have that point",
    ),
    "the scale has the type of the keys": (
        "kv.py",
        "scale = x.float().abs()",
        "scale = x.abs()",
        "the scale is 1 / 127 = 0.007874 in float32; yours: (torch.bfloat16",
    ),
    "a value's scale goes to the output": (
        "kv.py",
        "return (weights * scale) @ codes.to(weights.dtype)",
        "return (weights @ codes.to(weights.dtype)) * (weights @ scale)",
        "0.1 (1, 2) + 1.6 (3, -4) = [4.9, -6.2]; yours [4.42",
    ),
}


@pytest.mark.parametrize("mistake", mistakes(WRONG))
def test_a_wrong_solution_is_caught_and_explained(checked, mistake):
    name, right, wrong, says = WRONG[mistake]
    source = reference("p07", name)
    assert source.count(right) == 1
    verdict = checked("p07", source.replace(right, wrong), exercise_of(phases.find("p07"), Path(name)))
    assert not verdict.passed
    assert says in verdict.sentence, verdict.sentence
    assert verdict.test.startswith("tests/phases/test_promises_") and "\n" not in verdict.sentence
