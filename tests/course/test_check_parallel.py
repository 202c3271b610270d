"""The mistakes that p12 invites are caught, and the check says in a sentence what is wrong."""

from pathlib import Path

import pytest

from gradus import phases
from tests.course.conftest import exercise_of, mistakes, reference

WRONG = {
    # the file, the right text, the wrong text, what the sentence must say
    "the fused matrix is cut in the middle": (
        "linear.py",
        "torch.cat([each.chunk(parts)[part] for each in matrix.split(list(widths))])",
        "matrix.chunk(parts)[part]",
        "rows 2, 3 and 5 are part 1 of 2; yours: [3.0, 4.0, 5.0]",
    ),
    "the inputs of a column-parallel matrix are cut": (
        "linear.py",
        "torch.cat([each.chunk(parts)[part] for each in matrix.split(list(widths))])",
        "matrix.chunk(parts, dim=-1)[part]",
        "2 of 4 outputs and 1 of 2, [3, 3]; yours is [6, 1]",
    ),
    "the outputs of a row-parallel matrix are cut": (
        "linear.py",
        "matrix.chunk(parts, dim=1)[part]",
        "matrix.chunk(parts)[part]",
        "part 1 of 2 reads inputs 2 and 3; yours: [[5, 6, 7, 8]]",
    ),
    "the sum begins with this rank's own": (
        "linear.py",
        "total, *others = exchange.gather(x).float()",
        "*others, total = exchange.gather(x).float()",
        "is 1 in the order of the ranks; yours is 0",
    ),
    "each addition is rounded": (
        "linear.py",
        "exchange.gather(x).float()",
        "exchange.gather(x)",
        "256 + 1 + 1 in float32, rounded once, is 258; yours is 256",
    ),
    "the sum stays in float32": (
        "linear.py",
        "total.to(x.dtype)",
        "total",
        "a sum of bfloat16 is a bfloat16; yours is torch.float32",
    ),
    "a bias that is not there is added": (
        "linear.py",
        "y if self.bias is None else y + self.bias",
        "y + self.bias",
        "NoneType",
    ),
    "each rank adds the bias": (
        "linear.py",
        "F.linear(x, self.weight))\n        return y if self.bias is None else y + self.bias",
        "F.linear(x, self.weight, self.bias))\n        return y",
        "2 + 3, and a bias of 10 once, are 15; yours is 5",
    ),
    "the bias is added before the sum and after it": (
        "linear.py",
        "F.linear(x, self.weight))",
        "F.linear(x, self.weight, self.bias))",
        "is this rank's summand; yours gave the exchange [132.0]",
    ),
    "key-value heads are dealt out like query heads": (
        "heads.py",
        "range(queries.start // group, (queries.stop - 1) // group + 1)",
        "range(part * config.num_kv_heads // parts, (part + 1) * config.num_kv_heads // parts)",
        "rank 2 of 4 has [2], and they read [0]; yours: [2], []",
    ),
    "the last head is left out": (
        "heads.py",
        "(queries.stop - 1) // group + 1",
        "queries.stop // group",
        "and they read [0]; yours: [2], []",
    ),
    "heads that do not divide are rounded": (
        "heads.py",
        "if config.num_heads % parts:",
        "if config.num_heads < parts:",
        "10 heads that read 5 must be refused for 4 ranks",
    ),
    "unequal groups are let in": (
        "heads.py",
        "if each % group and group % each:",
        "if config.num_kv_heads < 1:",
        "6 heads that read 3 must be refused for 2 ranks",
    ),
    "shared key-value heads are refused": (
        "heads.py",
        "if each % group and group % each:",
        "if config.num_kv_heads % parts:",
        "key-value heads cannot be divided among",
    ),
    "values are cut like queries": (
        "heads.py",
        "(k, keys), (v, keys)",
        "(k, keys), (v, queries)",
        "of 8 heads of width 2 that read 2, rank 1 of 4 has rows [4, 5, 6, 7, 100, 101, 200, 201]; yours",
    ),
    "each rank draws from its own scores": (
        "draw.py",
        "everyone.transpose(0, 1).flatten(1, 2)",
        "offered",
        "cut in two, the largest are: [1, 3, 1] on every rank; yours: [[1, 1, 1], [3, 3, 2]]",
    ),
    "all scores are exchanged": (
        "draw.py",
        "most = scores + noise, max(1, top_k)",
        "most = scores + noise, 2",
        "3 rows with top_k 0 may give 72 bytes; yours gave 144",
    ),
    "a rank gives half of the top k": (
        "draw.py",
        "most = scores + noise, max(1, top_k)",
        "most = scores + noise, max(1, -(-top_k // 2))",
        "are tokens 0 to 2, all on rank 0, and with noise [[0.0, 0.0, 5.0, 20.0, 20.0, 20.0]] the largest of these is: "
        "[2] on every rank; yours: [[0], [0]]",
    ),
    "noise decides who is among the top k": (
        "draw.py",
        "largest(scores if top_k else sums, most)",
        "largest(sums, most)",
        "with top_k 1 no noise counts: of [[1.0, 5.0, 2.0, 3.0]] the largest is: [1] on every rank; yours",
    ),
    "the top k of every rank may be drawn": (
        "draw.py",
        "kept = largest(scores, most) if top_k else largest(sums, 1)",
        "kept = largest(sums, most)",
        "with top_k 1 no noise counts",
    ),
    "a missing candidate scores 0": (
        "draw.py",
        "[-torch.inf, -torch.inf, 0]",
        "[0, 0, 0]",
        "parts of [2, 2, 1] tokens, all scores below 0, top_k 2: [0, 4] on every rank; yours",
    ),
    "ids are the rank's own": (
        "draw.py",
        "first + mine",
        "mine",
        "cut in two, the largest are: [1, 3, 1] on every rank; yours: [[1, 1, 1], [1, 1, 1]]",
    ),
    "candidates are rounded": (
        "draw.py",
        ".double()",
        ".bfloat16()",
        "99,999 is drawn on both ranks; yours",
    ),
    "the larger score wins a tie of sums": (
        "draw.py",
        "ids.where(sums == sums.amax(dim=1, keepdim=True), torch.inf).amin(dim=1).long()",
        "ids.gather(1, sums.argmax(dim=1, keepdim=True))[:, 0].long()",
        "have the equal sums 5 at tokens 0, 2 and 3: [0] on every rank; yours",
    ),
    "candidates are in the order of their size": (
        "draw.py",
        "everyone.transpose(0, 1).flatten(1, 2)",
        "everyone.flip(0).transpose(0, 1).flatten(1, 2)",
        "of equal scores the lowest id is drawn: [1] on every rank; yours: [[2], [2]]",
    ),
    "ranks exchange twice": (
        "draw.py",
        "everyone = exchange.gather(torch.cat([offered, missing], dim=1))",
        "both = torch.cat([offered, missing], dim=1)\n"
        "    everyone = torch.cat([exchange.gather(each) for each in both.split(2, dim=2)], dim=-1)",
        "one exchange suffices; yours has 2",
    ),
    "ranks with fewer tokens give less": (
        "draw.py",
        "most - mine.shape[1], 3)",
        "0, 3)",
        "all ranks give tensors of one shape; of [2, 2, 1] tokens yours gave [[2, 2, 3], [2, 2, 3], [2, 1, 3]]",
    ),
    "groups are cut where ranks have equal readers": (
        "heads.py",
        "if each % group and group % each:",
        "if each % group and group % each and config.num_heads % (parts * config.num_kv_heads):",
        "6 heads that read 3 must be refused for 2 ranks: they are no whole groups, nor in one; yours",
    ),
    "a micro-batch waits for the round to end": (
        "schedule.py",
        "period = max(stages, micro_batches)",
        "period = stages + micro_batches - 1",
        "2 stages, 2 micro-batches, 2 rounds: ['abab.', '.abab']; yours",
    ),
    "a round begins before its tokens are there": (
        "schedule.py",
        "period = max(stages, micro_batches)",
        "period = micro_batches",
        "2 stages, 1 micro-batches, 2 rounds: ['a.a.', '.a.a']; yours",
    ),
    "a token is waited for only where there is one micro-batch": (
        "schedule.py",
        "period = max(stages, micro_batches)",
        "period = stages if micro_batches == 1 else micro_batches",
        "4 stages, 2 micro-batches, 2 rounds: ['ab..ab...', '.ab..ab..', '..ab..ab.', '...ab..ab']; yours",
    ),
    "stages do not wait for each other": (
        "schedule.py",
        "divmod(tick - stage, period)",
        "divmod(tick, period)",
        "2 stages, 1 micro-batches, 1 rounds: ['a.', '.a']; yours",
    ),
    "the bubble is that of a single round": (
        "schedule.py",
        "return ticks.count(None) / len(ticks)",
        "return (len(table) - 1) / (len({*ticks} - {None}) + len(table) - 1)",
        "0.20 of the ticks have no work; yours says 0.33",
    ),
    "the share of work is returned": (
        "schedule.py",
        "ticks.count(None) / len(ticks)",
        "1 - ticks.count(None) / len(ticks)",
        "0.33 of the ticks have no work; yours says 0.67",
    ),
    "outputs are dealt out in turn": (
        "linear.py",
        "each.chunk(parts)[part]",
        "each[part::parts]",
        "rows 2, 3 and 5 are part 1 of 2; yours: [1.0, 3.0, 5.0]",
    ),
    "the ranks' mean is taken": (
        "linear.py",
        "return total.to(x.dtype)",
        "return (total / (1 + len(others))).to(x.dtype)",
        "is 1 in the order of the ranks; yours is 0.333333",
    ),
    "query heads are dealt out in turn": (
        "heads.py",
        "range(part * each, (part + 1) * each)",
        "range(part, config.num_heads, parts)",
        "rank 1 of 2 has [4, 5, 6, 7], and they read [2, 3]; yours: [1, 3, 5, 7]",
    ),
    "the last stage is the first": (
        "schedule.py",
        "divmod(tick - stage, period)",
        "divmod(tick - (stages - 1 - stage), period)",
        "2 stages, 1 micro-batches, 1 rounds: ['a.', '.a']; yours: ['.a', 'a.']",
    ),
    "a tick of waiting at the end": (
        "schedule.py",
        "micro_batches + stages - 1\n",
        "micro_batches + stages\n",
        "2 stages, 1 micro-batches, 1 rounds: ['a.', '.a']; yours: ['a..', '.a.']",
    ),
}


@pytest.mark.parametrize("mistake", mistakes(WRONG))
def test_a_wrong_solution_is_caught_and_explained(checked, mistake):
    name, right, wrong, says = WRONG[mistake]
    source = reference("p12", name)
    assert source.count(right) == 1
    verdict = checked("p12", source.replace(right, wrong), exercise_of(phases.find("p12"), Path(name)))
    assert not verdict.passed
    assert says in verdict.sentence, verdict.sentence
    assert verdict.test.startswith("tests/phases/test_promises_parallel.py") and "\n" not in verdict.sentence
