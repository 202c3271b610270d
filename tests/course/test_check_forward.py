"""The mistakes that a first forward pass invites are caught, and the check says in a sentence what is wrong."""

from pathlib import Path

import pytest

from gradus import phases
from gradus.course.student.check import check_all
from gradus.exercises.declaration import exercises_of
from gradus.exercises.solution import look
from phases.p00_baseline.exercise import FORWARD
from tests.course.conftest import exercise_of, mistakes, reference

ROOT_OF_MEAN = "x / (mean_square + eps).sqrt() * weight"
SPEEDS = "speeds = 1 / theta ** (2 * pairs / head_dim)"
TURNED = "torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)"
SCORES = "q @ k.T / q.shape[-1] ** 0.5"
MASKED = "    scores = scores.masked_fill(~causal_mask(len(q)), -torch.inf)"
SHARED = "attend(q[:, h], k[:, h // group], v[:, h // group])"
CUT = "logits.masked_fill(logits < smallest, -torch.inf)"
SHARPENED = "logits = keep_top(logits, top_k).double() / temperature"

WRONG = {
    # file, the right text, the wrong text, what the sentence must say
    "the first rows of the table, whatever the tokens": (
        "embedding.py",
        "table[token_ids]",
        "table[: len(token_ids)]",
        "what tokens 3, 0, 3 become is [[3.0, 3.5], [0.0, 0.5], [3.0, 3.5]]; yours is",
    ),
    "LayerNorm": (
        "embedding.py",
        "mean_square = x",
        "x = x - x.mean(dim=-1, keepdim=True)\n    mean_square = x",
        "the row [1, 7] divided by √((1 + 49) / 2) = 5 is [[0.2, 1.4]]",
    ),
    "the sum instead of the mean": (
        "embedding.py",
        ".mean(dim=-1",
        ".sum(dim=-1",
        "the row [1, 7] divided by √((1 + 49) / 2) = 5",
    ),
    "no root": ("embedding.py", ".sqrt()", "", "the row [1, 7] divided by √((1 + 49) / 2) = 5"),
    "one mean for all rows": (
        "embedding.py",
        ".mean(dim=-1, keepdim=True)",
        ".mean()",
        "rows divided by 5, 50 and 3 is",
    ),
    "the mean of a column": ("embedding.py", ".mean(dim=-1,", ".mean(dim=0,", "the row [1, 7]"),
    "no weight": ("embedding.py", ROOT_OF_MEAN, ROOT_OF_MEAN[:-9], "the row [0.2, 1.4] times the weight [10, -1]"),
    "eps outside the root": (
        "embedding.py",
        "(mean_square + eps).sqrt()",
        "(mean_square.sqrt() + eps)",
        "with eps 3, the row [1, 1] divided by √(1 + 3)",
    ),
    "no eps": ("embedding.py", "(mean_square + eps)", "mean_square", "with eps 3, the row [1, 1]"),
    "the mean loses its dimension": (
        "embedding.py",
        ".mean(dim=-1, keepdim=True)",
        ".mean(dim=-1)",
        "rms_norm (embedding.py, line 14) raised RuntimeError: The size of tensor a (2) must match",
    ),
    "rows are divided in place": (
        "embedding.py",
        "return x / (mean_square + eps).sqrt() * weight",
        "x /= (mean_square + eps).sqrt()\n    return x * weight",
        "what rms_norm was given, and what is added to later, is [[1.0, 7.0]]",
    ),
    "nothing is returned": (
        "attention.py",
        "return softmax(scores) @ v",
        "softmax(scores) @ v",
        "with queries of 0, the mean of the values so far is [[3, 0], [4.5, 4.5], [3, 3]]; yours is None",
    ),
    "the sum loses its dimension": (
        "attention.py",
        "powers.sum(dim=-1, keepdim=True)",
        "powers.sum(dim=-1)",
        "softmax of [0, log 3] and [5, 5] is",
    ),
    "a token does not see itself": (
        "attention.py",
        "] <= places",
        "] < places",
        "the mask of 3 tokens is [[True, False",
    ),
    "a token sees what comes later": ("attention.py", "] <= places", "] >= places", "the mask of 3 tokens is [[True,"),
    "softmax over columns": (
        "attention.py",
        "powers.sum(dim=-1, keepdim=True)",
        "powers.sum(dim=0, keepdim=True)",
        "softmax of [0, log 3] and [5, 5] is [[0.25, 0.75], [0.5, 0.5]]",
    ),
    "softmax over everything": (
        "attention.py",
        "powers.sum(dim=-1, keepdim=True)",
        "powers.sum()",
        "softmax of [0, log 3] and [5, 5] is",
    ),
    "softmax that overflows": ("attention.py", "(scores - largest)", "scores", "softmax of [1000, 1000]"),
    "one largest score for all rows": (
        "attention.py",
        "scores.amax(dim=-1, keepdim=True)",
        "scores.max()",
        "softmax of [1000, 1000], [-1000, -1000]",
    ),
    "softmax without exp": ("attention.py", "(scores - largest).exp()", "scores", "softmax of [0, log 3]"),
    "no scale": ("attention.py", SCORES, "q @ k.T", "divided by √4, the mean of the values 4 and 0 is [3.0"),
    "the scale without its root": ("attention.py", "** 0.5", "", "divided by √4, the mean of the values 4 and 0"),
    "the root of the number of tokens": ("attention.py", "q.shape[-1]", "q.shape[0]", "divided by √4"),
    "multiplied by the root": ("attention.py", "k.T / q.shape", "k.T * q.shape", "divided by √4"),
    "no mask": ("attention.py", MASKED, "", "with queries of 0, the mean of the values so far is [[3, 0]"),
    "the mask the other way round": ("attention.py", "~causal_mask", "causal_mask", "with queries of 0, the mean"),
    "a later score becomes 0, not minus infinity": (
        "attention.py",
        "-torch.inf",
        "0.0",
        "with queries of 0, the mean of the values so far is",
    ),
    "the mask after softmax": (
        "attention.py",
        f"{MASKED}  # [T, T]: exp(-inf) is 0, so a later token counts 0\n    return softmax(scores) @ v",
        "    return softmax(scores).masked_fill(~causal_mask(len(q)), 0.0) @ v",
        "with queries of 0, the mean of the values so far is",
    ),
    "keys ask, and queries answer": (
        "attention.py",
        "q @ k.T",
        "k @ q.T",
        "token 1 asks for nothing, and token 2 for the key of token 1: the result is",
    ),
    "positions begin at 1": (
        "rope.py",
        "torch.arange(length)",
        "torch.arange(1, length + 1)",
        "the speeds are 1 and 0.1, so the table of angles is [[0.0, 0.0], [1.0, 0.1], [2.0, 0.2]]",
    ),
    "the exponent without its 2": ("rope.py", "2 * pairs", "pairs", "the speeds are 1 and 0.1"),
    "the later pairs are the faster ones": ("rope.py", "1 / theta", "theta", "the speeds are 1 and 0.1"),
    "every pair at the same speed": (
        "rope.py",
        SPEEDS,
        "speeds = 1 / theta**pairs.clamp(0, 0)",
        "the speeds are 1 and",
    ),
    "neighbors are taken for pairs": (
        "rope.py",
        "a, b = x.chunk(2, dim=-1)",
        "a, b = x[..., 0::2], x[..., 1::2]",
        "pair 0 (numbers 0 and 2) turned by 90°, pair 1 not at all",
    ),
    "turned the other way": (
        "rope.py",
        TURNED,
        "torch.cat((a * cos + b * sin, b * cos - a * sin), dim=-1)",
        "pair 0 (numbers 0 and 2) turned by 90°",
    ),
    "both signs are plus": (
        "rope.py",
        "a * cos - b * sin",
        "a * cos + b * sin",
        "[0, 0, 3, 4] turned by 90° is [[[-3.0, -4.0, 0.0, 0.0]]]",
    ),
    "only the first half is turned": ("rope.py", "b * cos + a * sin", "b", "pair 0 (numbers 0 and 2) turned by 90°"),
    "halves in the wrong order": (
        "rope.py",
        TURNED,
        "torch.cat((b * cos + a * sin, a * cos - b * sin), dim=-1)",
        "pair 0 (numbers 0 and 2)",
    ),
    "heads turn instead of tokens": (
        "rope.py",
        "cos, sin = turns.cos()[:, None, :], turns.sin()[:, None, :]",
        "cos, sin = turns.cos()[None], turns.sin()[None]",
        "every head of a token turns alike and every token by its own angle",
    ),
    "heads are cut across": (
        "heads.py",
        "x.reshape(len(x), -1, head_dim)",
        "x.reshape(len(x), head_dim, -1).transpose(1, 2)",
        "two rows of six cut into heads of two is [[[1, 2], [3, 4], [5, 6]]",
    ),
    "tokens and heads change places": (
        "heads.py",
        "x.reshape(len(x), -1, head_dim)",
        "x.reshape(-1, len(x), head_dim)",
        "two rows of six cut into heads of two is",
    ),
    "query heads take turns with the key heads": (
        "heads.py",
        SHARED,
        "attend(q[:, h], k[:, h % k.shape[1]], v[:, h % k.shape[1]])",
        "query heads 0 and 1 read value head 0, 2 and 3 head 1: [1, 1, 5, 5]; yours: [1.0, 5.0, 1.0, 5.0]",
    ),
    "all read the first head": (
        "heads.py",
        SHARED,
        "attend(q[:, h], k[:, 0], v[:, 0])",
        "query heads 0 and 1 read value head 0, 2 and 3 head 1",
    ),
    "values of one head, keys of another": (
        "heads.py",
        "k[:, h // group]",
        "k[:, 0]",
        "query head 3 of 6 is attention with key and value head 1",
    ),
    "heads before tokens": (
        "heads.py",
        "torch.stack(heads, dim=1)",
        "torch.stack(heads)",
        "the result for 1 token and 4 query heads of 2 has the shape [1, 4, 2]; yours has [4, 1, 2]",
    ),
    "heads run together": (
        "heads.py",
        "torch.stack(heads, dim=1)",
        "torch.cat(heads, dim=1)",
        "has the shape [1, 4, 2]; yours has [1, 8]",
    ),
    "one head too few stays": (
        "sampling.py",
        "logits < smallest",
        "logits <= smallest",
        "of [1, 4, -2, 3] the top 2 is",
    ),
    "the smallest stay": ("sampling.py", "logits < smallest", "logits > smallest", "of [1, 4, -2, 3] the top 2 is"),
    "what is cut becomes a logit of 0": ("sampling.py", "-torch.inf", "0.0", "of [1, 4, -2, 3] the top 2 is [-inf, 4"),
    "only the largest come back": ("sampling.py", CUT, "logits.topk(count).values", "of [1, 4, -2, 3] the top 2 is"),
    "the caller's logits are overwritten": (
        "sampling.py",
        "logits.masked_fill(",
        "logits.masked_fill_(",
        "of [1, 4, -2, 3] the top 4 is",
    ),
    "the temperature multiplies": (
        "sampling.py",
        ".double() / temperature",
        ".double() * temperature",
        "at temperature 0.5 logits 0 and log 3 give token 0 a share of 0.1",
    ),
    "no temperature": ("sampling.py", ".double() / temperature", ".double()", "at temperature 0.5 logits 0 and log 3"),
    "the temperature comes after softmax": (
        "sampling.py",
        f"{SHARPENED}  # [V]: float64, since many small numbers are added below\n    probabilities = softmax(logits)",
        "probabilities = softmax(keep_top(logits, top_k).double()) / temperature",
        "at temperature 0.5 logits 0 and log 3",
    ),
    "always the likeliest": (
        "sampling.py",
        "return int((ends <= draw * ends[-1]).sum())",
        "return int(probabilities.argmax())",
        "pieces end at 0.2, 0.7 and 1, so draws",
    ),
    "the piece before": (
        "sampling.py",
        "int((ends <= draw * ends[-1]).sum())",
        "max(0, int((ends <= draw * ends[-1]).sum()) - 1)",
        "pieces end at 0.2, 0.7 and 1, so draws",
    ),
    "a draw of 0 takes a token that was cut": (
        "sampling.py",
        "ends <= draw",
        "ends < draw",
        "one just below 1 (in float32: 1) take [1, 1, 3, 3]; yours takes",
    ),
    "the top k are forgotten": ("sampling.py", "keep_top(logits, top_k)", "logits", "of the top two, tokens 1 and 3"),
    "sums in float32": ("sampling.py", ".double()", "", "yours takes [1, 1, 3, 5]"),
    "a later score becomes very low, not minus infinity": (
        "attention.py",
        "-torch.inf",
        "-1e4",
        "must not see token 1: of the values 1 and 9, its is [1.0]; yours is [9.0]",
    ),
    "positions are counted in bfloat16": (
        "rope.py",
        "positions = torch.arange(length)",
        "positions = torch.arange(length, dtype=torch.bfloat16)",
        "at speed 1, what positions 4097 to 4099 turn by is [4097.0, 4098.0, 4099.0]; yours is",
    ),
    "softmax for matrices alone": (
        "attention.py",
        "scores.amax(dim=-1, keepdim=True)",
        "scores.amax(dim=1, keepdim=True)",
        "raised IndexError: Dimension out of range",
    ),
    "the deviation from the mean": (
        "embedding.py",
        ".square().mean(dim=-1, keepdim=True)",
        ".var(dim=-1, keepdim=True)",
        "the row [1, 7] divided by √((1 + 49) / 2) = 5 is [[0.2, 1.4]]; yours is",
    ),
    "speeds by the number of pairs": (
        "rope.py",
        "2 * pairs / head_dim",
        "2 * pairs / (head_dim // 2)",
        "the speeds are 1 and 0.1",
    ),
}


@pytest.mark.parametrize("mistake", mistakes(WRONG))
def test_a_wrong_solution_is_caught_and_explained(checked, mistake):
    name, right, wrong, says = WRONG[mistake]
    source = reference("p00", name)
    assert source.count(right) == 1
    verdict = checked("p00", source.replace(right, wrong), exercise_of(phases.find("p00"), Path(name)))
    assert not verdict.passed
    assert says in verdict.sentence, verdict.sentence
    assert verdict.test.startswith("tests/phases/test_promises_forward.py") and "\n" not in verdict.sentence


def test_each_of_the_five_files_has_wrong_solutions():
    files = {exercise.file_name for exercise in exercises_of(phases.find("p00")) if exercise.alone}
    assert files == {name for name, *_ in WRONG.values()} and len(files) == 5


def test_of_several_files_the_wrong_one_alone_is_blamed(checked, tmp_path):
    right = {one.file_name: reference("p00", one.file_name) for one in FORWARD}
    wrong = right | {"rope.py": right["rope.py"].replace(TURNED, TURNED.replace("b * cos +", "b * cos -"))}
    for sources, passing in ((right, set(right)), (wrong, set(right) - {"rope.py"})):
        for name, source in sources.items():
            (tmp_path / name).write_text(source, encoding="utf-8")
        info = phases.find("p00")
        found = [look(one, tmp_path / one.file_name, sources[one.file_name]) for one in FORWARD]
        verdicts = {one.file.name: verdict for files, verdict in check_all(info, found) for one in files}
        assert {name for name, verdict in verdicts.items() if verdict.passed} == passing
    assert "a quarter turn brings the first half into the second" in verdicts["rope.py"].sentence
