"""A setting is described once: every front end has it, with its bounds and its help, and nothing spells them again."""

import ast
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradus import LLM, phases
from gradus.cli import app
from gradus.cli.settings_table import settings_table, switches_table
from gradus.config.description import Setting, described
from gradus.config.options import SETTINGS, SWITCHES, EngineConfig, EngineOptions
from gradus.config.settings import Settings, heeded
from gradus.engine.request import ModelLimits
from gradus.errors import ConfigError
from gradus.server.config import ServerConfig

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "gradus"
LIMITS = ModelLimits(vocab_size=320, context_length=512)


# -- one edit ----------------------------------------------------------------------------------------------------------

FIELD = '    haste: int = setting(3, "How hurried it is.", least=1, heeded="final")\n'
LOOK = """
import inspect, json
from typer.testing import CliRunner
from gradus import LLM, ConfigError
from gradus.cli import app
from gradus.cli.settings_table import settings_table
from gradus.server.config import ServerConfig

def refused(call):
    try:
        call()
    except ConfigError as mistake:
        return str(mistake)

fast = {"switch_off": ["kernels"]}  # a copy of the source has no kernels compiled
dry = ["serve", "--port", "0", "--dry-run", "--json", "--model", "random:tiny-llama", "--dtype", "float32"]
run = lambda *arguments: CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"}).output
print(json.dumps({
    "help": [run(command, "--help-all") for command in ("generate", "chat", "serve")],
    "dry run": json.loads(run(*dry, "--haste", "7"))["settings"]["haste"],
    "file": ServerConfig().replaced({"haste": 4}).haste,
    "keyword": LLM("random:tiny-llama", device="cpu", dtype="float32", haste=5, **fast).settings["haste"],
    "default": LLM("random:tiny-llama", device="cpu", dtype="float32", **fast).settings["haste"],
    "signature": "haste" in inspect.signature(LLM).parameters and "How hurried it is." in LLM.__doc__,
    "bounds": [refused(lambda: LLM(haste=0)), refused(lambda: ServerConfig().replaced({"haste": "x"}))],
    "phase": refused(lambda: LLM("random:tiny-llama", phase="p06", device="cpu", dtype="float32", haste=5)),
    "table": "| `haste` | 3 | How hurried it is. (the final engine) |" in settings_table(),
}))
"""


def test_one_new_field_is_an_option_a_key_a_keyword_a_statistic_and_a_row(tmp_path):
    """Add one line in a copy of the source."""
    shutil.copytree(SOURCE, tmp_path / "gradus")  # with what is compiled: its times are those of its source
    options = tmp_path / "gradus" / "config" / "options.py"
    text = options.read_text()
    before = "    prefix_cache: bool"
    assert text.count(before) == 1
    options.write_text(text.replace(before, FIELD + before))
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert all("--haste" in text and "How hurried it is." in text for text in seen["help"])
    assert (seen["dry run"], seen["file"], seen["keyword"], seen["default"]) == (7, 4, 5, 3)
    assert seen["signature"] and seen["table"]
    assert seen["bounds"] == [f"haste must be a whole number, 1 or more, got {got}" for got in ("0", "'x'")]
    assert seen["phase"] == "haste does nothing in phase p06, leave it out; it is for the final engine"


# -- every setting is everywhere ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "owner", "without"),
    [("generate", Settings, {"max_sequences", "policy"}), ("chat", Settings, {"max_sequences", "policy"}),
     ("serve", ServerConfig, set())],
)  # fmt: skip
def test_a_command_has_an_option_for_each_setting(command, owner, without):
    shown = " ".join(CliRunner().invoke(app, [command, "--help-all"], env={"COLUMNS": "300"}).output.split())
    for name, one in described(owner).items():
        flag = f"--{name.replace('_', '-')}"
        if name == "model" and owner is ServerConfig:  # which `models` replaces where there may be several
            assert f"{flag}," in shown or f"{flag} " in shown
            continue
        assert (flag in shown) == (name not in without), name
        if name not in without:
            assert one.help in shown and f"({one.by_default})" in shown


def test_the_keywords_of_llm_are_the_settings():
    assert inspect.signature(LLM).parameters.keys() - {"progress", "gc_freeze"} == described(Settings).keys()
    assert all(one.help in LLM.__doc__ for one in described(Settings).values())


def test_the_documentation_lists_the_settings_as_they_are():
    """`python -m gradus.cli.settings_table` prints what belongs there."""
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    assert settings_table() in page
    assert switches_table() in page


def squeezed(text: str) -> str:
    """Without what parts a text's pieces in a source file: quotes, with their prefixes, and white space."""
    return re.sub(r"""\b[bfru]{0,2}["']+|["'\s]+""", "", text)


def test_no_other_source_file_spells_the_help_or_the_bounds_again():
    described_in = {
        SOURCE / "config" / "options.py",
        SOURCE / "config" / "settings.py",
        SOURCE / "server" / "config.py",
    }
    settings = described(ServerConfig) | SWITCHES
    for path in set(SOURCE.rglob("*.py")) - described_in:
        text = squeezed(path.read_text(encoding="utf-8"))
        again = [name for name, one in settings.items() if squeezed(one.help) in text]
        checked = [name for name in SETTINGS if f"{name}mustbe" in text]
        assert not again and not checked, path


def test_no_front_end_spells_a_default_again():
    """No parameter of that name has that default."""
    settings = described(ServerConfig)
    rooms = ("cli", "server", "text", "assembly", "execution")
    for path in (path for room in rooms for path in (SOURCE / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.arguments):
                positional = [*node.posonlyargs, *node.args]
                pairs = [*zip(reversed(positional), reversed(node.defaults), strict=False)]
                for argument, default in [*pairs, *zip(node.kwonlyargs, node.kw_defaults, strict=True)]:
                    if argument.arg in settings and isinstance(default, ast.Constant) and default.value is not None:
                        assert default.value != settings[argument.arg].default, f"{path}: {argument.arg}"


# -- what a description says -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "description", "good", "bad", "wanted"),
    [
        (int, {"least": 1}, [1, 10**9], [0, 1.0, True, "1", None], "a whole number, 1 or more"),
        (int, {"least": 0, "most": 9}, [0, 9], [-1, 10], "a whole number between 0 and 9"),
        (int, {"least": 1, "optional": True}, [None, 1], [0], "a whole number, 1 or more"),
        (float, {"above": 0}, [1e-9, 3], [0, float("nan"), float("inf")], "a number above 0"),
        (float, {"above": 0, "most": 1}, [1, 0.5], [1.01], "a number above 0 and at most 1"),
        (float, {"least": 0, "unit": "seconds"}, [0], [-1], "a number of seconds, 0 or more"),
        (str, {"choices": ("a", "b")}, ["a", "b"], ["c", 1, None], "one of a, b"),
        (str, {}, ["", "c"], [1, None, b"c"], "text"),
        (bool, {}, [True, False], [1, 0, "yes"], "true or false"),
        (tuple, {"choices": ("a",)}, [(), ("a", "a")], ["a", (1,), ["a"]], "a list of texts"),
    ],
)
def test_a_value_is_taken_or_refused_with_what_is_wanted(kind, description, good, bad, wanted):
    setting = Setting(default=None, help="", kind=kind, **description)
    for value in good:
        setting.check(value)
    for value in bad:
        with pytest.raises(ConfigError, match=f" must be {wanted}, got "):
            setting.check(value)


def test_a_default_is_told_with_what_it_depends_on():
    settings = described(ServerConfig)
    assert settings["page_size"].by_default == "16"
    assert settings["max_sequences"].by_default == "8; the final engine: 8 on a CPU, 256 on a GPU"
    assert settings["memory_fraction"].by_default == "0.5 on a CPU, 0.9 on a GPU"
    assert settings["drain_timeout"].by_default == "30 seconds"
    assert settings["phase"].by_default == "none: the final engine"


# -- from settings to an engine's options ------------------------------------------------------------------------------


def test_what_is_not_given_suits_the_engine_and_the_device():
    phase = Settings(phase="p06").options(LIMITS, "cuda")
    assert phase == EngineOptions(LIMITS) and phase.max_sequences == 8 and phase.token_budget is None
    gpu = Settings().options(LIMITS, "cuda")
    assert (gpu.max_sequences, gpu.token_budget, gpu.memory_fraction) == (256, 8192, 0.9)
    cpu = Settings().options(LIMITS, "cpu")
    chosen = {"token_budget": 256, "memory_fraction": 0.5, "graphs": False}
    assert cpu == EngineConfig(LIMITS, 8, yielding=cpu.yielding, **chosen)


def test_only_what_nobody_has_set_yields():
    suiting = {"max_sequences", "token_budget", "memory_fraction"}
    assert Settings().options(LIMITS, "cuda").yielding == suiting | SWITCHES.keys()
    asked = Settings(
        max_sequences=256, memory_fraction=0.9, switch_off=["graphs", "overlap"]
    )  # the default, but asked for
    assert asked.options(LIMITS, "cuda").yielding == {"token_budget", "prefix_cache", "chunked", "kernels"}
    assert EngineConfig(LIMITS).yielding == frozenset()


def test_a_phase_heeds_what_it_says_and_the_final_engine_everything():
    everywhere = {"model", "phase", "impl", "device", "dtype", "quantize", "context_length", "max_sequences", "threads"}
    assert heeded("p00") == everywhere
    assert heeded("p04") == everywhere | phases.load("p04").USES
    assert heeded(None) == described(Settings).keys() - {"impl"} >= SETTINGS.keys()


def test_none_keeps_the_default_and_a_list_is_a_tuple():
    assert Settings.of({"page_size": None, "switch_off": ["overlap"]}) == Settings(switch_off=("overlap",))
