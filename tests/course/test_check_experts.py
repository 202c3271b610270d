"""The mistakes that p14 invites are caught, and the check says in a sentence what is wrong."""

from pathlib import Path

import pytest

from gradus import phases
from tests.course.conftest import exercise_of, mistakes, reference

WRONG = {
    # the file, the right text, the wrong text, what the sentence must say
    "the experts with the lowest scores are chosen": (
        "router.py",
        "ranked.topk(count, dim=-1)",
        "ranked.topk(count, dim=-1, largest=False)",
        "the two highest scores are at [1, 3] and [0, 3]; yours: [[0, 2], [2, 1]]",
    ),
    "the best experts of the batch are chosen for every token": (
        "router.py",
        "return ranked.topk(count, dim=-1).indices",
        "return ranked.sum(dim=0).topk(count).indices.expand(len(scores), -1)",
        "the two highest scores are at [1, 3] and [0, 3]; yours: [[0, 1], [0, 1]]",
    ),
    "the correction is ignored": (
        "router.py",
        "ranked = scores if correction is None else scores + correction",
        "ranked = scores",
        "expert 1 is the best; yours: [[0]]",
    ),
    "the correction is subtracted": (
        "router.py",
        "scores + correction",
        "scores - correction",
        "expert 1 is the best; yours: [[0]]",
    ),
    "weights are the largest scores of any expert": (
        "router.py",
        "weights = scores.gather(1, chosen)",
        "weights = scores.topk(chosen.shape[1], dim=-1).values",
        "3 · 0.5 / 0.75 is 2, and so on: [[2.0, 1.0], [1.0, 2.0]]; yours: [[2.0, 1.0], [2.0, 1.0]]",
    ),
    "weights are always normalized": (
        "router.py",
        "    if normalized:\n        weights = weights /",
        "    if True:\n        weights = weights /",
        "experts 1 and 2 have 0.5 and 0.25; yours: ",
    ),
    "weights are divided by the sum over all tokens": (
        "router.py",
        "weights.sum(dim=-1, keepdim=True)",
        "weights.sum()",
        "3 · 0.5 / 0.75 is 2, and so on",
    ),
    "weights are divided by the sum over all experts": (
        "router.py",
        "weights / weights.sum(dim=-1, keepdim=True)",
        "weights / scores.sum(dim=-1, keepdim=True)",
        "3 · 0.5 / 0.75 is 2, and so on",
    ),
    "the scale cancels out": (
        "router.py",
        "    weights = scores.gather(1, chosen)\n    if normalized:\n        weights = weights / "
        "weights.sum(dim=-1, keepdim=True)\n    return weights * scale",
        "    weights = scores.gather(1, chosen) * scale\n    if normalized:\n        weights = weights / "
        "weights.sum(dim=-1, keepdim=True)\n    return weights",
        "3 · 0.5 / 0.75 is 2, and so on",
    ),
    "experts at the end that no token takes are forgotten": (
        "dispatch.py",
        "experts.bincount(minlength=count)",
        "experts.bincount()",
        "4 experts have 5 starts, [0, 0, 1, 1, 1] for [[1]]; yours: [0, 0, 1]",
    ),
    "starts are sizes": (
        "dispatch.py",
        "[0, *sizes.cumsum(0).tolist()]",
        "[0, *sizes.tolist()]",
        "3, 1 and 2 pairs: starts 0, 3, 4, 6; yours: [0, 3, 1, 2]",
    ),
    "ends are taken for starts": (
        "dispatch.py",
        "[0, *sizes.cumsum(0).tolist()]",
        "sizes.cumsum(0).tolist()",
        "3, 1 and 2 pairs: starts 0, 3, 4, 6; yours: [3, 4, 6]",
    ),
    "tokens are sorted by their first expert": (
        "dispatch.py",
        "experts.argsort(stable=True)",
        "chosen[:, 0].argsort(stable=True).repeat_interleave(chosen.shape[1])",
        "pairs 1, 2 and 5 take expert 0, pair 3 takes 1, pairs 0 and 4 take 2; yours: ",
    ),
    "places are numbered in the order of places": (
        "dispatch.py",
        "experts = chosen.flatten()",
        "experts = chosen.T.flatten()",
        "pairs 1, 2 and 5 take expert 0, pair 3 takes 1, pairs 0 and 4 take 2; yours: ",
    ),
    "results are gathered where they must be scattered": (
        "dispatch.py",
        "own[pairs] = results.float()",
        "own = results.float()[pairs]",
        "token 0 has 1 · 20 + 0.5 · 40",
    ),
    "results stay sorted by expert": (
        "dispatch.py",
        "own[pairs] = results.float()",
        "own = results.float()",
        "token 0 has 1 · 20 + 0.5 · 40",
    ),
    "weights are forgotten": (
        "dispatch.py",
        " * weights[..., None])",
        ")",
        "token 0 has 1 · 20 + 0.5 · 40, token 1 has 0.25 · 10 + 2 · 30: 40 and 62.5; yours: [[60.0], [40.0]]",
    ),
    "the sum is rounded to the type of the results": (
        "dispatch.py",
        ".sum(dim=1)",
        ".sum(dim=1).to(results.dtype)",
        "256 + 1 + 1 is 258 in float32; yours is 258 in torch.bfloat16",
    ),
    "the last row of each expert is forgotten": (
        "grouped.py",
        "        if end > start:\n            out[start:end] = expert(number, rows[start:end])",
        "        if end > start:\n            out[start:end] = 0\n"
        "            out[start : end - 1] = expert(number, rows[start : end - 1])",
        "[1, 2, 300, 400, 500]; yours: [1.0, 0.0, 300.0, 400.0, 0.0]",
    ),
    "experts without rows are read": (
        "grouped.py",
        "        if end > start:\n            out[start:end] = expert(number, rows[start:end])",
        "        out[start:end] = expert(number, rows[start:end])",
        "and no other is read; yours called (expert, rows): [(0, 0), (1, 4)",
    ),
    "an expert is read once per row": (
        "grouped.py",
        "            out[start:end] = expert(number, rows[start:end])",
        "            for row in range(start, end):\n                out[row] = expert(number, rows[row : row + 1])[0]",
        "experts 1, 3 and 4 have 4, 1 and 1 rows",
    ),
    "experts are counted without those that have no rows": (
        "grouped.py",
        "for number, (start, end) in enumerate(pairwise(starts)):",
        "for number, (start, end) in enumerate(each for each in pairwise(starts) if each[0] < each[1]):",
        "expert 0 has 2 rows, 1 none, 2 has 3",
    ),
    "results are written over the rows": (
        "grouped.py",
        "out = torch.empty_like(rows)",
        "out = rows",
        "yours changed the rows to",
    ),
    "a token is taken to choose with replacement": (
        "distinct.py",
        "missed = (1 - chosen / count) ** tokens",
        "missed = (1 - 1 / count) ** (chosen * tokens)",
        "one token reads its 2 of 8 experts; yours: 1.875",
    ),
    "tokens are taken to choose different experts": (
        "distinct.py",
        "return count * (1 - missed)",
        "return min(count, chosen * tokens)",
        "on average over all",
    ),
    "the experts that are not read are counted": (
        "distinct.py",
        "return count * (1 - missed)",
        "return count * missed",
        "one token reads its 2 of 8 experts; yours: 6",
    ),
    "softmax over the chosen": (
        "router.py",
        "weights = weights / weights.sum(dim=-1, keepdim=True)",
        "weights = weights.softmax(dim=-1)",
        "3 · 0.5 / 0.75 is 2, and so on: [[2.0, 1.0], [1.0, 2.0]]; yours: [[1.68",
    ),
    "the scale belongs to normalizing": (
        "router.py",
        "        weights = weights / weights.sum(dim=-1, keepdim=True)\n    return weights * scale",
        "        weights = weights / weights.sum(dim=-1, keepdim=True) * scale\n    return weights",
        "2 · 0.25 is 0.5; yours: [[0.25]]",
    ),
    "the correction stays in the scores": (
        "router.py",
        "else scores + correction",
        "else scores.add_(correction)",
        "expert 1 is chosen, with the sigmoid of 0: 0.5; yours: [[1]], [[5.5]]",
    ),
    "tokens are sorted, not pairs": (
        "dispatch.py",
        "return experts.argsort(stable=True), [0,",
        "return experts.argsort(stable=True) // chosen.shape[1], [0,",
        "pairs 0 and 4 take 2; yours: [0, 1, 2, 1, 0, 2]",
    ),
    "weights are rounded like the results": (
        "dispatch.py",
        " * weights[..., None])",
        " * weights.to(results.dtype)[..., None])",
        "a result of 1 in bfloat16 times a weight of 0.3 in float32 is 0.3; yours",
    ),
    "experts behind an idle one are skipped": (
        "grouped.py",
        "        if end > start:\n",
        "        if end == start and number:\n            break\n        if end > start:\n",
        "expert 0 has 2 rows, 1 none, 2 has 3: [1, 2, 300, 400, 500]; yours: [1.0, 2.0",
    ),
    "tokens choose one expert each": (
        "distinct.py",
        "(1 - chosen / count) ** tokens",
        "(1 - 1 / count) ** tokens",
        "one token reads its 2 of 8 experts; yours: 1",
    ),
}


@pytest.mark.parametrize("mistake", mistakes(WRONG))
def test_a_wrong_solution_is_caught_and_explained(checked, mistake):
    name, right, wrong, says = WRONG[mistake]
    source = reference("p14", name)
    assert source.count(right) == 1
    verdict = checked("p14", source.replace(right, wrong), exercise_of(phases.find("p14"), Path(name)))
    assert not verdict.passed
    assert says in verdict.sentence, verdict.sentence
    assert verdict.test.startswith("tests/phases/test_promises_experts.py") and "\n" not in verdict.sentence
