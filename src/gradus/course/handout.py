"""A copy of the course for a class, without our functions from one phase on: what a teacher gives out.

    python -m gradus.course.handout ../handout --from p03    # p00 to p02 whole, p03 and later to be written

Students check their files in the copy as in the repository. Engines of earlier phases are there, and their checks need
them. What a phase's students have not written is nowhere, so its files are checked together, once all are written. The
copy has no history, and so no solution that is not due.
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from gradus import phases
from gradus.errors import ConfigError, GradusError
from gradus.exercises.declaration import Exercise, exercises_of, reference_of, repository
from gradus.exercises.skeleton import cut
from gradus.phases import PhaseInfo

AROUND = ("p12", "p13")
"""Programs around the engines of other phases, whose checks run them: whole, unless the copy begins with them."""


def hidden(first: PhaseInfo) -> Iterator[tuple[PhaseInfo, Exercise]]:
    """Yield the exercises of a phase and of all later ones, but those of programs that their checks run."""
    for info in phases.available():
        needed = info.name in AROUND and info.name != first.name
        if info.number >= first.number and info.has("exercise") and not needed:
            yield from ((info, one) for one in exercises_of(info))


def hand_out(to: Path, first: PhaseInfo) -> list[str]:
    """Write the copy. Returns the files that were cut. Raises ConfigError if `to` exists or this is no git checkout."""
    root = repository(first)
    if to.exists():
        raise ConfigError(f"{to} is there already: name a new folder")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True)
    if listed.returncode != 0:
        raise ConfigError(f"{root} is no git checkout, which says what belongs to the course: clone the repository")
    for name in filter(None, listed.stdout.split("\0")):
        if (root / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, to / name)
    done = []
    for info, exercise in hidden(first):
        (to / exercise.file).write_text(
            cut(reference_of(info, exercise), exercise.functions, info.name), encoding="utf-8"
        )
        done.append(exercise.file)
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description="Copy the course without our functions from one phase on.")
    parser.add_argument("to", type=Path, help="the new folder")
    parser.add_argument(
        "--from", dest="first", default="p00", help="the first phase to hide, as in p03; p00 by default"
    )
    asked = parser.parse_args()
    try:
        done = hand_out(asked.to, phases.find(asked.first))
    except GradusError as error:
        sys.exit(f"handout: {error}")
    print(f"{asked.to}: the course, with {len(done)} files to be written, from {done[0]} on")
    return 0


if __name__ == "__main__":
    sys.exit(main())
