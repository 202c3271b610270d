"""The verdict on a program: phase by phase, the promises that it keeps, and a case that shows the first it breaks.

Each phase has a process of its own, so that one that dies in p03 is still judged in p04.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from gradus.course.foreign.claims.batches import P02, P03
from gradus.course.foreign.claims.bits import P07
from gradus.course.foreign.claims.chunks import P06
from gradus.course.foreign.claims.first import P00, P01
from gradus.course.foreign.claims.guesses import P08
from gradus.course.foreign.claims.paging import P04
from gradus.course.foreign.claims.prefixes import P05
from gradus.course.foreign.claims.streams import P13
from gradus.course.foreign.drive import Bench, Broken
from gradus.course.foreign.program import Fault, Program
from gradus.course.foreign.report import Garbage
from gradus.course.foreign.weights import Models
from gradus.course.student.check import Verdict
from gradus.errors import ConfigError

Claim = Callable[[Bench], None]

CLAIMS: dict[str, tuple[Claim, ...]] = {
    "p00": P00,
    "p01": P01,
    "p02": P02,
    "p03": P03,
    "p04": P04,
    "p05": P05,
    "p06": P06,
    "p07": P07,
    "p08": P08,
    "p13": P13,
}
"""Claims by phase. Other phases are about kernels, graphs, masks and devices, which no report shows."""

SECONDS = 20.0
"""The limit of each answer."""


def judge_all(names: Iterable[str], command: str, seconds: float = SECONDS) -> Iterator[Verdict]:
    """Judge phases in turn. seconds: the limit of each answer.

    Raises ConfigError for a phase that no black box shows, or a command that cannot run.
    """
    names = list(names)
    if unknown := [name for name in names if name not in CLAIMS]:
        raise ConfigError(
            f"--command judges {', '.join(CLAIMS)}; what {unknown[0]} teaches cannot be seen from outside"
        )
    with tempfile.TemporaryDirectory() as folder:
        models = Models(Path(folder))
        for name in names:
            yield judge(name, command, models, seconds)


def judge(name: str, command: str, models: Models, seconds: float = SECONDS) -> Verdict:
    """Judge one phase, up to the first promise that does not hold. seconds: the limit of each answer."""
    kept: list[str] = []
    with Program(command, seconds) as program:
        try:
            program.wait_until_listening()
        except Fault as fault:
            return Verdict(False, str(fault))
        bench = Bench(program, models)
        for claim in CLAIMS[name]:
            try:
                claim(bench)
            except Broken as broken:
                return Verdict(False, f"{broken} ({words(claim)})", tests=len(kept), kept=tuple(kept))
            except (Fault, Garbage) as error:
                shown = error if isinstance(error, Fault) else program.fault(str(error))
                sentence = f"{shown}, when checking that {words(claim)}"
                return Verdict(False, sentence, tests=len(kept), kept=tuple(kept))
            kept.append(words(claim))
    return Verdict(True, f"keeps all {len(kept)} promises", tests=len(kept), kept=tuple(kept))


def words(claim: Claim) -> str:
    """A claim's name as words: what must hold."""
    return claim.__name__.replace("_", " ").replace("oracles", "oracle's").replace("a places", "a place's")
