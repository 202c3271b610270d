"""Pages are right about what exists: routes, settings, commands, files, names. They deny nothing that exists.

A sentence about a missing feature becomes wrong when the feature is added elsewhere. So each such sentence is listed
here, with the refusal in the source that makes it true.
"""

import importlib
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest
import typer
import yaml

from gradus import cli
from gradus.server.client import EngineClient
from gradus.server.config import ServerConfig
from gradus.server.http.app import create_app
from tests.repository.test_layout import text_of, tracked_or_new

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "gradus"
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
PAGES = [
    *(page for page in sorted(ROOT.glob("*.md")) if page.name != "CHANGELOG.md"),  # a history
    *(page for folder in ("docs", "phases", "benchmarks", "configs") for page in sorted((ROOT / folder).rglob("*.md"))),
    ROOT / "reports" / "README.md",
    *CONFIGS,
]
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    return FENCED.sub("", text_of(page))


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def inline(page: Path) -> list[str]:
    """The code within a page's sentences."""
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose(page))


# -- what is said to be missing ----------------------------------------------------------------------------------------

WAITS = re.compile(
    r"\b(yet|so far|for now|at present|planned for|not (supported|implemented|offered|available))\b", re.I
)
LACKS = re.compile(r"\b(no|not|cannot|nor|never|nothing|none|neither|without|refused|only|alone|will be)\b|n't\b", re.I)

# (page, words of the sentence) → a source file under src/gradus, and words in it that refuse or report the same
PROVEN = {
    ("docs/design/beyond.md", "Quantized weights on several GPUs are refused so far"): (
        "assembly/parallel.py",
        "quantize does not work with tensor_parallel or pipeline_parallel yet",
    ),
    ("docs/serving.md", "speculate does not work with pipeline_parallel yet"): (
        "config/options.py",
        "speculate does not work with pipeline_parallel yet",
    ),
    ("docs/serving.md", "draft models and heads do not work with tensor_parallel yet"): (
        "config/options.py",
        "draft models and heads do not work with tensor_parallel yet",
    ),
    ("docs/serving.md", "prefix_dir does not work with tensor_parallel or pipeline_parallel yet"): (
        "config/options.py",
        "prefix_dir does not work with tensor_parallel or pipeline_parallel yet",
    ),
    ("docs/serving.md", "quantize does not work with tensor_parallel or pipeline_parallel yet"): (
        "assembly/parallel.py",
        "quantize does not work with tensor_parallel or pipeline_parallel yet",
    ),
    ("docs/design/parallel.md", "blocks of a quantized matrix cannot be cut yet"): (
        "parallel/slices.py",
        "quantized weights cannot be cut for several ranks yet",
    ),
    ("docs/serving.md", "in a pipeline without Gradus's own kernels and graphs so far"): (
        "assembly/parallel.py",
        "stages of a pipeline have neither kernels nor CUDA graphs yet",
    ),
}

# Runs that no machine has made: a measurement would make these sentences wrong, not a change of the code.
UNSEEN = {
    ("docs/design/cpu.md", "No ARM processor has run them yet"),
    ("docs/design/parallel.md", "which no two ranks on kernels have been asked for yet"),
    ("docs/install.md", "No Mac has been at hand yet"),
}

# A moment in a run, or a rule: these sentences say nothing about what the engine lacks.
MOMENTS = {
    ("CONTRIBUTING.md", "Refuse what is not supported"),
    ("docs/architecture.md", "Nothing so far has imported torch"),
    ("docs/deploy.md", "requests without an answer yet get 503"),
    ("docs/design/p02.md", "the lengths of answers are not known yet"),
    ("docs/design/p05.md", "a full page that a running sequence has not published yet"),
    ("docs/design/p08.md", "which don't include the accepted drafts yet"),
    ("docs/design/p10.md", "Plans with tokens that are not known yet"),
    ("docs/design/speculation.md", "A request that is not that far behind yet"),
    ("docs/parts.md", "where a token is not known yet"),
    ("docs/serving.md", "keeps the answer so far (over HTTP, only a stream shows it)"),
    ("docs/serving.md", "the server does not accept requests yet, or no longer"),
    ("docs/serving.md", "What it does not do yet"),  # the section's heading; see the test of its last sentence
    ("phases/museum/README.md", "Tokens are not text yet"),
    ("phases/p00_baseline/README.md", "every step computes all rows so far again"),
    ("phases/p03_continuous_batching/README.md", "everything known of a sequence and not stored yet"),
    ("phases/p03_continuous_batching/README.md", "and yet something is read for nothing"),
    ("phases/p05_prefix_cache/README.md", "A step that has been planned has not run yet"),
    ("phases/p05_prefix_cache/README.md", "the token that was just sampled is known, and not stored yet"),
    ("phases/p07_quantization/README.md", "No phase so far has changed this number"),
    ("phases/p07_quantization/calibration.md", "the columns that are not rounded yet"),
    ("phases/p09_triton_attention/README.md", "Computed from all scores so far, which a kernel cannot do"),
    ("phases/p09_triton_attention/README.md", "a row that has seen no key yet"),
    ("phases/p10_cuda_graphs/README.md", "counts the tokens that are not known yet"),
}
LISTED = {*PROVEN, *UNSEEN, *MOMENTS}


def sentences(text: str) -> list[str]:
    """A page's sentences, clauses and cells, each on one line."""
    paragraphs = re.split(r"\n\s*\n", re.sub(r"^#+ +", "", text, flags=re.MULTILINE))
    lines = [re.sub(r"\s*\n#?\s*", " ", paragraph) for paragraph in paragraphs]
    return [found for line in lines for found in re.split(r"(?<=[.!?:;|])\s+", line)]


def missing(text: str) -> list[str]:
    """The sentences that say what does not exist yet."""
    return [sentence for sentence in sentences(text) if WAITS.search(sentence) and LACKS.search(sentence)]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_a_page_says_is_missing_is_listed_here(page):
    known = [words for name, words in LISTED if name == name_of(page)]
    assert [sentence for sentence in missing(prose(page)) if not any(words in sentence for words in known)] == []


@pytest.mark.parametrize("name, words", sorted(LISTED))
def test_what_is_listed_is_on_its_page(name, words):
    assert any(words in sentence for sentence in missing(prose(ROOT / name)))


@pytest.mark.parametrize("statement", PROVEN, ids=lambda statement: statement[1])
def test_what_is_said_to_be_missing_is_refused_or_reported_in_the_same_words(statement):
    file, words = PROVEN[statement]
    assert words in text_of(SOURCE / file)


@pytest.mark.parametrize(
    "text",
    [
        "The server speaks a small protocol. OpenAI-compatible routes are not there yet.",
        "host: 127.0.0.1   # loopback: there is no authentication yet",
        "and reasoning. `gradus serve` does not offer\nthem yet.",
        "than one that waits to be asked; ours has no keys yet.",
        "Launches are not tuned for fp8 yet.",
        "| speculation | refused for now |",
    ],
)
def test_sentences_of_this_kind_are_found(text):
    assert len(missing(text)) == 1


def test_the_server_lacks_what_its_page_says_it_lacks():
    page = text_of(ROOT / "docs" / "serving.md")
    assert "There are no embeddings, images or adapters." in page
    assert not [path for path in paths_of_the_server() if "embedding" in path or "image" in path]
    assert not [name for name in ServerConfig.__dataclass_fields__ if re.search("lora|adapter|image|vision", name)]


# -- routes and settings -----------------------------------------------------------------------------------------------

OTHERS = {"/compact"}  # a command of Claude Code


def paths_of_the_server() -> set[str]:
    """Every route, as pages write them."""
    config = ServerConfig(tokenizer_info=True)
    app = create_app(EngineClient(config), config)
    return {re.sub(r"\{name.*\}", "NAME", route.path) for route in app.routes}  # type: ignore[attr-defined]


def paths_named(pages: Iterable[Path]) -> set[str]:
    found = [re.fullmatch(r"(?:(?:GET|POST) )?(/[\w/.]*)", code) for page in pages for code in inline(page)]
    return {match[1] for match in found if match}


def test_pages_name_the_servers_routes_and_no_others():
    docs = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
    assert paths_named([ROOT / "docs" / "serving.md"]) == paths_of_the_server()
    assert paths_named(docs) - OTHERS == paths_of_the_server()


def settings_of(text: str) -> Iterator[str]:
    """The settings of a configuration file: those in use, and those behind a comment's sign."""
    for line in text.splitlines():
        if found := re.fullmatch(r"(?:# )?([a-z_]+: +\S.*)", line):
            yield found[1]


@pytest.mark.parametrize("path", CONFIGS, ids=name_of)
def test_every_setting_in_a_configuration_can_be_given(path, tmp_path):
    lines = list(settings_of(text_of(path)))
    assert len(lines) >= len(yaml.safe_load(text_of(path))) + 3, "the ones in comments are found"
    ServerConfig.from_yaml(path)
    for line in lines:
        (tmp_path / "one.yaml").write_text(line, encoding="utf-8")
        ServerConfig.from_yaml(tmp_path / "one.yaml")


# -- commands, files, names --------------------------------------------------------------------------------------------


def options_of(command: object) -> set[str]:
    """A command's options, and those of the commands within it."""
    own = {name for each in getattr(command, "params", ()) for name in (*each.opts, *each.secondary_opts)}
    return own.union(*map(options_of, getattr(command, "commands", {}).values()), {"--help"})


@cache
def command_line():
    return typer.main.get_command(cli.app)


def unknown_commands(line: str) -> list[str]:
    """The command, or the options, of a `gradus …` line that do not exist."""
    group = command_line()
    words = line.split()
    name, *arguments = words[words.index("gradus") + 1 :] or ["--help"]
    if name.startswith("-"):
        return [name] if name not in {"--help", "--version"} else []
    commands = getattr(group, "commands", {})
    if name not in commands:
        return [name]
    given = [word.split("=")[0] for word in arguments if word.startswith("--")]
    return [option for option in given if option not in options_of(commands[name])]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_within_sentences_exist(page):
    lines = [code for code in inline(page) if re.match(r"(?:[A-Z_]+=\S+ )*gradus( |$)", code)]
    assert {line: unknown for line in lines if (unknown := unknown_commands(line))} == {}


@pytest.mark.parametrize("line", ["gradus sell", "gradus serve --ports 1", "X=1 gradus keys add a --color red"])
def test_the_check_for_commands_catches(line):
    assert len(unknown_commands(line)) == 1


FILE = re.compile(r"[\w*-][\w.*-]*(?:/[\w.*-]+)*(?:/|\.(?:py|md|json|yaml|toml|css|js|html))")
# Files of checkpoints, students and other programs, and patterns of names.
NOT_OURS = {
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "application/json",
    "phases/pNN_name/", "my-reports/", "exercises/p07", "results.json", "report.md", "exercises/ladder.json",
}  # fmt: skip


def files() -> set[str]:
    """Every path in the repository, and every end of one: `gpu/runner.py` is found wherever it lies."""
    found: set[str] = set()
    for path in tracked_or_new():
        parts = path.relative_to(ROOT).parts
        for end in range(1, len(parts) + 1):
            found |= {"/".join(parts[start:end]) for start in range(end)}
    return found


def lost_files(codes: Iterable[str], there: set[str]) -> list[str]:
    """Files and folders that are named and not there."""
    named = [code for code in codes if FILE.fullmatch(code) and code not in NOT_OURS]
    named = [name for name in named if not name.startswith("exercises/open/")]  # a reader's
    return [
        name for name in named if name.rstrip("/") not in there and not ("*" in name and list(ROOT.glob(f"**/{name}")))
    ]


def test_files_that_pages_name_exist():
    there = files()
    assert {name_of(page): lost for page in PAGES if (lost := lost_files(inline(page), there))} == {}


def test_the_check_for_files_catches():
    there = {"src/gradus/errors.py", "gradus/errors.py", "errors.py", "docs"}
    codes = ["errors.py", "gradus/errors.py", "docs/", "gone.py", "kernels/errors.py", "gone/", "a.b", "x / y"]
    assert lost_files(codes, there) == ["gone.py", "kernels/errors.py", "gone/"]


def exists(name: str) -> bool:
    """Whether a dotted name is a module, or something in one: a class's fields count."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            fields = getattr(found, "__dataclass_fields__", {}) | getattr(found, "__annotations__", {})
            if not hasattr(found, part) and part not in fields:
                return False
            found = getattr(found, part, None)
        return True
    return False


def test_names_that_pages_give_in_full_exist():
    named = re.compile(r"(?:python -m )?((?:gradus|phases|benchmarks|tests)(?:\.\w+)+)(?:\(.*)?")
    found = {(name_of(page), match[1]) for page in PAGES for code in inline(page) if (match := named.fullmatch(code))}
    names = {(page, name) for page, name in found if not FILE.fullmatch(name)}
    assert len(names) > 30
    assert sorted((page, name) for page, name in names if not exists(name)) == []


@pytest.mark.parametrize("name", ["gradus.bench.fingerprint", "gradus.errors.NoSuchError", "gradus.LLM.generated"])
def test_the_check_for_names_catches(name):
    assert exists("gradus.engine.plan.Plan.spans") and not exists(name)
