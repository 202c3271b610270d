"""A log read back: everything is recomputed that can be, from its own numbers, the workload and the model."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gradus.bench.speedrun import workload
from gradus.bench.speedrun.log import Log
from gradus.bench.speedrun.oracle import Verdict
from gradus.bench.speedrun.rules import SEED
from gradus.bench.speedrun.run import encoding, judged, model_hash
from gradus.loading import Checkpoint

ORDER = 0.01  # of a logit: far more than the order of float32 sums changes
FEW_TIES = 0.01


def verify(file: Path, checkpoint: Checkpoint) -> tuple[Log, list[str]]:
    """Read and check a log. Returns it, and why it is no row of the table, a sentence each; [] if it is one.

    Raises ConfigError for a file that is no log, or that was edited.
    """
    log = Log.read(file)
    faults = list(log.faults())
    return log, faults or list(against_the_model(log, checkpoint))


def against_the_model(log: Log, checkpoint: Checkpoint) -> Iterator[str]:
    """Why the log does not fit the workload and the model. The log has no faults of its own."""
    if (model := model_hash(checkpoint)) != log.model:
        yield f"its model has the SHA-256 {log.model[:16]} …, and {checkpoint.name} here has {model[:16]} …"
        return
    asks = workload.asks(encoding(checkpoint), SEED)
    if (digest := workload.digest(asks)) != log.workload:
        yield f"its workload has the hash {log.workload[:16]}, and the rules' workload {digest[:16]}"
        return
    counts = [(len(run["hashes"]), "a repetition", len(asks)) for run in log.runs]
    counts.append((len(log.warm_up["hashes"]), "the warm-up", workload.WARM_UPS))
    for found, what, wanted in counts:
        if found != wanted:
            yield f"{what} has {found} answers, and {wanted} requests"
            return
    runs = [log.answered(run["hashes"]) for run in log.runs]
    verdict = judged(checkpoint, log.warm_up["seed"], log.answered(log.warm_up["hashes"]), runs)
    if verdict.wrong:
        yield f"a token is wrong: {verdict.wrong}"
    elif not agree(verdict, log.verdict):
        yield (
            f"its verdict is {log.verdict['likeliest']} of {log.verdict['tokens']} tokens the likeliest, and none more "
            f"than {log.verdict['widest']} below it; here it is {verdict.likeliest} of {verdict.tokens}, and "
            f"{verdict.widest}"
        )


def agree(found: Verdict, written: Mapping[str, Any]) -> bool:
    """Whether two machines' verdicts agree. Their float32 sums differ in order, so a tie may fall either way."""
    few = found.tokens * FEW_TIES
    return (
        found.tokens == written["tokens"]
        and abs(found.likeliest - written["likeliest"]) <= few
        and abs(found.widest - written["widest"]) <= ORDER
    )
