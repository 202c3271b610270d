"""`pytest -m "gpu and quick"`: one or two small cases of each file in tests/gpu, chosen here without a GPU."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="without Triton, files of kernels are not collected")

ROOT = Path(__file__).parents[2]
FILES = sorted(path.name for path in (ROOT / "tests" / "gpu").glob("test_*.py"))


def chosen(folder: Path | str) -> list[str]:
    """The ids of the tests that are chosen."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "gpu and quick", str(folder)]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    return [line for line in listed.stdout.splitlines() if "::" in line]


def test_each_file_has_one_or_two_quick_cases():
    counts = Counter(line.split("::")[0].rsplit("/", 1)[1] for line in chosen("tests/gpu"))
    assert sorted(counts) == FILES and max(counts.values()) <= 2


QUICK = """
import pytest

pytestmark = pytest.mark.gpu

@pytest.mark.quick
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("kind", ["a", "b"])
def test_cases(size, kind):
    pass

def test_other():
    pass
"""


def test_of_a_parametrized_test_the_first_case_is_quick(tmp_path):
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "test_quick.py").write_text(QUICK)
    assert [line.split("::")[1] for line in chosen(tmp_path)] == ["test_cases[a-1]"]
