"""Compiled code that is kept is used again, and never trusted: not of other sources, not damaged, not required."""

import logging
import os
import shutil
import subprocess
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np
import pytest
from numba.core.caching import IndexDataCacheFile
from numba.core.dispatcher import Dispatcher
from numba.core.registry import cpu_target

from gradus.kernels.cpu import decode_step, elementary, machine
from gradus.kernels.cpu.gguf import product
from gradus.kernels.cpu.int4 import panel
from gradus.kernels.cpu.kept import code as kept
from gradus.kernels.cpu.kept import folder as safety
from gradus.kernels.cpu.kept.shown import FUNCTIONS
from gradus.kernels.cpu.kept.watch import watched

HERE = Path(decode_step.__file__).parent
SOURCE = """
def made(number):
    def plus(x):
        return x + number

    return plus
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A place for code."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "kept"))
    (tmp_path / "small.py").write_text(SOURCE)
    return tmp_path


def compiled(folder, number=1):
    """A small kernel, as a new process has it."""
    spec = spec_from_file_location("small", folder / "small.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    kernel = kept.kept(module.made(number))
    return kernel, kernel(41)


def hits(kernel) -> int:
    return sum(kernel.stats.cache_hits.values())


def files(folder, kind):
    return sorted((folder / "kept").rglob(f"*.{kind}"))


def test_code_is_kept_and_used_again(folder):
    first, _ = compiled(folder)
    second, result = compiled(folder)
    assert (hits(first), hits(second), result) == (0, 1, 42)
    assert kept.place_of(first) == str(files(folder, "nbi")[0].parent)


@pytest.fixture
def apart(folder, tmp_path_factory, monkeypatch):
    """A place for code that is not next to the sources, with the folder above it."""
    above = tmp_path_factory.mktemp("above")
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(above / "code"))
    return above


def in_place(above) -> Path:
    return next((above / "code").iterdir())


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o1777])
def test_a_folder_that_others_may_write_to_holds_no_code(folder, apart, mode, caplog):
    first, _ = compiled(folder)
    assert kept.place_of(first) == str(in_place(apart)) and kept.danger_to(first) is None
    in_place(apart).chmod(mode)
    kept._noted_danger.cache_clear(), kept._note.cache_clear()
    second, result = compiled(folder)
    compiled(folder)
    assert (hits(second), result, kept.place_of(second)) == (0, 42, None)
    assert kept.danger_to(second) == f"other users may write to {in_place(apart)}"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "every start compiles" in caplog.text


def dangers(path: Path, mode: int, folder: Path) -> str | None:
    before = path.stat().st_mode
    path.chmod(mode)
    try:
        return safety.danger_of(folder)
    finally:
        path.chmod(before)


def test_what_lets_others_replace_code_is_a_danger(folder, apart, tmp_path, monkeypatch):
    compiled(folder)
    place = in_place(apart)
    code = next(place.glob("*.nbc"))
    assert safety.danger_of(place) is None
    assert dangers(code, 0o646, place) == f"other users may write to {code}"
    assert dangers(apart, 0o777, place) == f"other users may write to {apart}"
    assert dangers(apart, 0o1777, place) is None  # as /tmp
    link = apart / "link"
    link.symlink_to(place)
    assert safety.danger_of(link) is None
    assert dangers(place, 0o757, link) is not None
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    if user:  # what belongs to root is trusted
        assert "belongs to another user" in safety.danger_of(place)


def test_the_group_of_one_user_is_no_other_user(folder, apart, monkeypatch):
    compiled(folder)
    place = in_place(apart)
    for private in (True, False):
        monkeypatch.setattr(safety, "_is_private", lambda group, private=private: private)
        assert (dangers(place, 0o775, place) is None) == private
        assert dangers(place, 0o777, place) is not None


def test_code_of_other_sources_is_not_used(folder):
    compiled(folder, 1)
    other, result = compiled(folder, 2)  # the number encodes the sources
    assert (hits(other), result) == (0, 43)


def test_the_step_is_compiled_with_a_number_of_every_source(tmp_path, monkeypatch):
    keys = [
        decode_step._compiled(number)._cache._index_key("signature", cpu_target.target_context.codegen())
        for number in (5, 5, 6)
    ]
    assert keys[0] == keys[1] != keys[2]
    shutil.copytree(HERE, tmp_path / "cpu", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(kept, "__file__", str(tmp_path / "cpu" / "kept" / "code.py"))
    number = kept.sources()
    for path in sorted((tmp_path / "cpu").glob("*.py")):
        text = path.read_text()
        path.write_text(text + "# another\n")
        assert kept.sources() != number, path.name
        path.write_text(text)
    assert kept.sources() == number


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
@pytest.mark.parametrize("damage", [lambda old: b"", lambda old: old[: len(old) // 2], lambda old: b"no code" * 100])
def test_what_is_damaged_is_made_anew_and_then_used(folder, kind, damage):
    compiled(folder)
    for path in files(folder, kind):
        path.write_bytes(damage(path.read_bytes()))
    mended, result = compiled(folder)
    assert (hits(mended), result) == (0, 42)
    again, result = compiled(folder)
    assert (hits(again), result) == (1, 42)


def test_a_full_disk_costs_the_next_start_its_time_and_no_more(folder, monkeypatch):
    """numba writes the index first: left as it is, it would name the code of the sources before."""
    compiled(folder, 1)
    (folder / "small.py").write_text(SOURCE + "# changed")

    def full(self, name, data):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(IndexDataCacheFile, "_save_data", full)
        assert compiled(folder, 2)[1] == 43
    after, result = compiled(folder, 2)
    assert (hits(after), result) == (0, 43)


def test_what_is_compiled_is_said_and_what_is_read_is_not(folder, caplog):
    caplog.set_level(logging.INFO)
    said: list[str] = []
    with watched(0.0, lambda now: said.append("compiling"), every_s=60.0):
        compiled(folder, 1)
        compiled(folder, 2)
    assert said == ["compiling"] * 2
    for _ in range(3):  # a disk may fail to keep code, which the log then says
        said.clear()
        with watched(0.0, lambda now: said.append("reading")):
            again, _ = compiled(folder, 2)
        if hits(again):
            break
    assert (hits(again), said) == (1, []), caplog.text


def test_what_compiles_quickly_is_not_said(folder):
    said: list[str] = []
    with watched(60.0, lambda now: said.append("compiling")):
        compiled(folder)
    assert not said


def test_without_a_place_nothing_is_kept(folder, monkeypatch):
    """Simulate read-only folders by leaving numba no folder at all, since root may write everywhere."""
    monkeypatch.setattr(kept.KeptCode._impl_class, "_locator_classes", [])
    kernel, result = compiled(folder)
    assert result == 42 and kept.place_of(kernel) is None and not files(folder, "nbi")


def test_a_place_that_cannot_be_written_is_passed_over(folder, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(folder / "small.py" / "kept"))  # below a file
    kernel, result = compiled(folder)
    assert result == 42 and kept.place_of(kernel) != numba.config.CACHE_DIR


# -- how long it takes -------------------------------------------------------------------------------------------------


def test_functions_that_are_not_entered_become_no_machine_code_of_their_own():
    names = {
        str(path.relative_to(HERE).with_suffix("")).replace("/", ".")
        for path in HERE.rglob("*.py")
        if path.stem != "__init__"
    }
    modules = [import_module(f"gradus.kernels.cpu.{name}") for name in names]
    found = {each for module in modules for each in vars(module).values() if isinstance(each, Dispatcher)}
    own = {each for each in found if each._compiler.pipeline_class is not machine._Inner}
    assert len(found) > 40 and own == {decode_step.run, panel.widen_panel, product.widen_rows, elementary.exp_of}


FIRST_START = """
import time
from gradus import LLM
from numba.core import event
start = time.process_time()
with event.install_listener("numba:compile", event.RecordingListener()) as events:
    LLM("random:tiny-llama", device="cpu", dtype="float32")
print(time.process_time() - start, len(events.buffer) // 2)
"""


@pytest.mark.stress
def test_a_first_start_compiles_as_many_functions_as_said_in_less_than_20_seconds(tmp_path):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", FIRST_START], env=environment, stdout=subprocess.PIPE, check=True)
    seconds, functions = map(float, done.stdout.split())
    assert 1 < seconds < 20
    assert 0.9 < functions / FUNCTIONS < 1.1, "what a person who waits reads is about right"


# -- what it leaves out ------------------------------------------------------------------------------------------------


def test_references_to_arrays_are_not_counted():
    """Threads that share a step would write to the counters of its arrays by turns, many times in a stage."""

    class Pair(NamedTuple):
        left: np.ndarray
        right: np.ndarray

    @numba.njit(**machine.FLAGS)
    def add(pair, places):
        for i in range(len(places)):
            pair.left[places[i]] += pair.right[places[i]]

    def both(pair, places):
        for _ in range(1 + places[1]):
            add(pair, places)
            pair = Pair(pair.right, pair.left)

    counted, uncounted = numba.njit(both), numba.njit(**machine.ENTERED)(both)
    for kernel in (counted, uncounted):
        pair = Pair(np.ones(4), np.ones(4))
        kernel(pair, np.arange(3))
        assert pair.left.tolist() == [2, 2, 2, 1] and pair.right.tolist() == [3, 3, 3, 1]
    texts = [next(iter(kernel.inspect_llvm().values())) for kernel in (counted, uncounted)]
    assert ["atomicrmw" in text for text in texts] == [True, False]
