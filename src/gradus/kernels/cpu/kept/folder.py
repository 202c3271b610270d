"""Whether a folder of compiled code is safe: numba unpickles its files, so each is a program that runs as this user."""

import functools
import os
import stat
from collections.abc import Iterator
from pathlib import Path


def danger_of(folder: Path) -> str | None:
    """Say how other users could put code into this folder; None if they cannot.

    They may write to it, to a file in it, or to a folder above it, where they could replace it. Above it, a sticky
    folder such as /tmp is safe: only owners replace its entries.
    """
    if os.name != "posix":
        return None
    trusted = (0, os.geteuid(), os.stat("/").st_uid)  # in a container without a user 0, "/" has another owner
    for path in _involved(folder):
        found = path.stat()
        if found.st_uid not in trusted:
            return f"{path} belongs to another user"
        above = stat.S_ISDIR(found.st_mode) and path not in (folder, folder.resolve())
        if _others_may_write(found) and not (above and found.st_mode & stat.S_ISVTX):
            return f"other users may write to {path}"
    return None


def _involved(folder: Path) -> Iterator[Path]:
    """The folder, its code, and the folders above, also above what symbolic links lead to."""
    for path in dict.fromkeys((folder.absolute(), folder.resolve())):
        yield from (path, *path.parents)
    yield from folder.glob("*.nb[ic]")


def _others_may_write(found: os.stat_result) -> bool:
    private = found.st_mode & stat.S_IWGRP and _is_private(found.st_gid)
    return bool(found.st_mode & (stat.S_IWOTH if private else stat.S_IWOTH | stat.S_IWGRP))


@functools.cache
def _is_private(group: int) -> bool:
    """Whether a group is its user's own, as on systems whose users share files with umask 002."""
    import grp
    import pwd

    try:
        user, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return found.gr_name == user.pw_name and group == user.pw_gid and set(found.gr_mem) <= {user.pw_name}
