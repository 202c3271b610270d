"""API keys, with their roles and limits.

A key is 32 random bytes that `gradus keys add` prints once. The file holds only its SHA-256: a password needs a slow,
salted hash because it can be guessed, but 256 random bits cannot. So a request costs one hash, and no attacker can keep
the event loop busy with slow ones.

`GRADUS_API_KEY` is one more key, for a server with a single user. There is no option for it: every user of the machine
can read a command line, but only the same user and root can read a process's environment.
"""

import hashlib
import hmac
import logging
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from gradus.engine.request import MAX_PRIORITY
from gradus.errors import ConfigError
from gradus.server.config import KeyLimits, ServerConfig

log = logging.getLogger(__name__)

VARIABLE = "GRADUS_API_KEY"
OWN_NAME = "GRADUS_API_KEY"  # in capitals: no name in a file can equal it
LEAST_CHARACTERS = 16  # of a key chosen by a person
REFRESH_S = 1.0  # between two checks of the file
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
PREFIX = "gradus-"  # lets secret scanners recognize a leaked key

HEADER = "# API keys of a Gradus server, as SHA-256: `gradus keys add NAME --file FILE` makes one more.\n"

Role = Literal["client", "monitor", "admin"]
"""client: everything but the statistics; monitor: only the statistics; admin: both."""


LIMITS = tuple(one.name for one in fields(KeyLimits))
OPTIONAL = ("role", "created", *LIMITS, "best_priority")  # fields of an entry in the file


@dataclass(frozen=True, slots=True)
class Key:
    """One key's owner. digest: SHA-256 of the key. created: a date, for human readers.

    best_priority: the lowest number that its requests may have as their priority; None: any for the role admin, and 0
    for other roles, so that no client gets ahead of requests at the default.
    """

    name: str
    digest: bytes
    role: Role = "client"
    limits: KeyLimits = field(default_factory=KeyLimits)
    created: str = ""
    best_priority: int | None = None

    @property
    def first_priority(self) -> int:
        """The best priority, with the role's default."""
        if self.best_priority is not None:
            return self.best_priority
        return -MAX_PRIORITY if self.role == "admin" else 0


def check_priority(where: str, value: Any) -> int | None:
    """Check a key's best priority. Raises ConfigError."""
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or abs(value) > MAX_PRIORITY):
        raise ConfigError(
            f"{where}best_priority must be a whole number between {-MAX_PRIORITY} and {MAX_PRIORITY}, got {value!r}"
        )
    return value


def new_key() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def digest_of(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


class Keys:
    """The keys of a server: those of a file, and the environment's.

    The file is read again when it changes, so a key can be added or revoked while the server runs. If the file can no
    longer be read, the last keys stay valid, and the log has an error.
    """

    def __init__(self, file: str | Path | None = None, own: str | None = None) -> None:
        """Read the file. Raises ConfigError if it cannot be trusted or understood, or if `own` is too short."""
        self._file = None if file is None else Path(file)
        self._own = () if own is None else (Key(OWN_NAME, digest_of(_checked(own)), "admin"),)
        self._version: tuple[int, ...] | None = None
        self._next_check = 0.0
        self._keys: tuple[Key, ...] = self._own
        if self._file is not None:
            self._version = _version(self._file)
            self._keys = (*read_keys(self._file).values(), *self._own)

    @classmethod
    def of(cls, config: ServerConfig) -> "Keys":
        """Read the keys of the configured file and of this process's environment."""
        return cls(config.api_keys, os.environ.get(VARIABLE) or None)

    def __bool__(self) -> bool:
        """Whether the server requires a key, even if the file has none left."""
        return self._file is not None or bool(self._own)

    def find(self, presented: str) -> Key | None:
        """Return the owner of a presented key, in constant time: timing does not reveal a nearly equal key."""
        digest, found = hashlib.sha256(presented.encode("latin-1")).digest(), None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found

    def keep_current(self) -> None:
        """Read the file again if it has changed. Looks at most once per REFRESH_S: call it before `find`."""
        now = time.monotonic()
        if now >= self._next_check:
            self.refresh()
            self._next_check = now + REFRESH_S

    def refresh(self) -> None:
        """Read the file again if it has changed."""
        if self._file is None:
            return
        try:
            version = _version(self._file)
            if version != self._version:
                self._keys = (*read_keys(self._file).values(), *self._own)
                self._version = version
                log.info("%s has changed: %d keys", self._file, len(self._keys))
        except (ConfigError, OSError) as error:
            if self._version is not None:
                log.error("the API keys stay as they were: %s", error)
            self._version = None


def _checked(own: str) -> str:
    if len(own) < LEAST_CHARACTERS or not own.isascii() or not own.isprintable() or " " in own:
        raise ConfigError(
            f"{VARIABLE} must have at least {LEAST_CHARACTERS} characters, all printable ASCII without blanks, "
            f"got {len(own)}"
        )
    return own


def _version(path: Path) -> tuple[int, ...]:
    """Identify a file's version without reading it."""
    try:
        found = path.stat()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    return found.st_mtime_ns, found.st_size, found.st_ino


# -- the file ----------------------------------------------------------------------------------------------------------


def read_keys(path: Path) -> dict[str, Key]:
    """Read a file of keys, by name. Raises ConfigError naming the file and the entry."""
    import yaml

    _check_owner(path)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    except (yaml.YAMLError, ValueError):  # ValueError: a date that does not exist. Its message would quote the file
        raise ConfigError(f"{path}: is not YAML") from None
    entries = content.get("keys") if isinstance(content, dict) else None
    if not isinstance(entries, dict) or len(content) > 1:
        raise ConfigError(f"{path}: must hold `keys:`, names and their entries, as `gradus keys add` writes it")
    return {name: _key(path, name, entry) for name, entry in entries.items()}


def _check_owner(path: Path) -> None:
    """Refuse a file that another user may write to: writing it grants access to the server."""
    if os.name != "posix" or not path.exists():
        return
    found = path.stat()
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(f"{path}: other users may write to it; run `chmod go-w {path}`")
    if found.st_uid not in (0, os.geteuid()):
        raise ConfigError(f"{path}: must belong to root or to the user who runs the server, not to user {found.st_uid}")


def _key(path: Path, name: Any, entry: Any) -> Key:
    where = f"{path}: key {str(name)[:64]!r}"
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigError(
            f"{where}: names have 1 to 64 of a-z, 0-9, '.', '_' and '-', and begin with a letter or digit"
        )
    if not isinstance(entry, dict) or not entry.keys() <= {"sha256", *OPTIONAL}:
        raise ConfigError(f"{where}: must have sha256, and may have {', '.join(OPTIONAL)}")
    digest = entry.get("sha256")
    if not isinstance(digest, str) or not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise ConfigError(f"{where}: sha256 must be 64 hexadecimal digits, as `gradus keys add` writes them")
    role = entry.get("role", "client")
    if role not in get_args(Role):
        raise ConfigError(f"{where}: role must be one of {', '.join(get_args(Role))}, got {role!r}")
    best = check_priority(f"{where}: ", entry.get("best_priority"))
    return Key(name, bytes.fromhex(digest), role, _limits(where, entry), str(entry.get("created", "")), best)


def _limits(where: str, entry: Mapping[str, Any]) -> KeyLimits:
    for name in LIMITS:
        value = entry.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ConfigError(f"{where}: {name} must be a whole number, 1 or more, got {value!r}")
    return KeyLimits(**{name: entry.get(name) for name in LIMITS})


def write_keys(path: Path, keys: Mapping[str, Key]) -> None:
    """Replace the file atomically, readable by its owner alone. Raises ConfigError."""
    import yaml

    content = yaml.safe_dump({"keys": {name: _entry(key) for name, key in keys.items()}}, sort_keys=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(HEADER + content)
        os.replace(name, path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from error


def _entry(key: Key) -> dict[str, Any]:
    limits = {name: getattr(key.limits, name) for name in LIMITS} | {"best_priority": key.best_priority}
    return {
        "sha256": key.digest.hex(),
        "role": key.role,
        "created": key.created,
        **{name: value for name, value in limits.items() if value is not None},
    }
