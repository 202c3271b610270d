"""Control groups limit cores and memory."""

from pathlib import Path

import pytest

from gradus.device.control_groups import memory_left, share_of_cores


def groups(folder: Path, own: str, **limits: str) -> tuple[Path, Path]:
    """A tree of control groups: of each, by its path with `__` between names, what cpu.max says."""
    for name, text in limits.items():
        group = folder.joinpath("groups", *name.removeprefix("root").removeprefix("__").split("__"))
        group.mkdir(parents=True, exist_ok=True)
        (group / "cpu.max").write_text(text)
    (folder / "cgroup").write_text(own)
    return folder / "groups", folder / "cgroup"


@pytest.mark.parametrize(
    ("own", "limits", "share"),
    [
        ("0::/\n", {"root": "200000 100000\n"}, 2),  # as in a container, whose own group is the root that it sees
        ("0::/\n", {"root": "50000 100000\n"}, 0.5),
        ("0::/\n", {"root": "max 100000\n"}, float("inf")),
        ("0::/a/b\n", {"a": "300000 100000\n", "a__b": "max 100000\n"}, 3),  # a group above it
        ("0::/a/b\n", {"a": "300000 100000\n", "a__b": "100000 100000\n"}, 1),
        ("4:cpu:/a\n0::/b\n", {"a": "100000 100000\n", "b": "200000 100000\n"}, 2),
        ("0::/gone\n", {"root": "150000 100000\n"}, 1.5),
        ("0::/\n", {"root": "nonsense\n"}, float("inf")),
        ("0::/\n", {"root": "100000 0\n"}, float("inf")),
    ],
)
def test_the_share_of_control_groups(tmp_path, own, limits, share):
    assert share_of_cores(*groups(tmp_path, own, **limits)) == share


def test_without_control_groups_there_is_no_limit(tmp_path):
    assert share_of_cores(tmp_path, tmp_path / "cgroup") == float("inf")


def memory_group(group: Path, **values: int | str) -> None:
    group.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        (group / f"memory.{name}").write_text(f"{value}\n")


def test_what_is_left_of_a_containers_memory_is_its_limit_less_what_is_in_use(tmp_path):
    (tmp_path / "own").write_text("0::/\n")
    stat = "anon 2000\ninactive_file 500\nactive_file 100\n"
    memory_group(tmp_path / "groups", max=10_000, current=3000, stat=stat)
    assert memory_left(tmp_path / "groups", tmp_path / "own") == 7500


def test_the_tightest_group_above_a_process_counts(tmp_path):
    (tmp_path / "own").write_text("0::/a/b\n")
    memory_group(tmp_path / "groups" / "a", max=1000, current=900)
    memory_group(tmp_path / "groups" / "a" / "b", max="max", current=50)
    assert memory_left(tmp_path / "groups", tmp_path / "own") == 100


def test_a_container_that_is_over_its_limit_has_nothing_left(tmp_path):
    (tmp_path / "own").write_text("0::/\n")
    memory_group(tmp_path / "groups", max=1000, current=1200)
    assert memory_left(tmp_path / "groups", tmp_path / "own") == 0


def test_version_1_tells_the_limit(tmp_path):
    memory_group(tmp_path / "memory", limit_in_bytes=4096)
    assert memory_left(tmp_path, tmp_path / "own") == 4096
    assert memory_left(tmp_path / "nowhere", tmp_path / "own") == float("inf")
