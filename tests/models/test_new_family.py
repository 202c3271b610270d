"""A family of its own, added from the files that CONTRIBUTING.md names and nothing else, is a family like any other."""

import ast
import importlib.util
import logging
import re
from pathlib import Path

import pytest
import torch

from gradus import LLM, SamplingParams
from gradus.execution.passes import TorchPass
from gradus.loading import load_model, open_checkpoint
from gradus.models import SHAPES, create_model, parameter_count, read_config, write_config
from gradus.models.families.records import FAMILIES
from gradus.models.parts import Undescribed, parts_of
from tests.loading import builders
from tests.models.conftest import run
from tests.models.toy_family import PARALLEL, RAW, TOY, reference_logits

KINDS = {"toy": TOY, "parallel-toy": PARALLEL}
PROMPTS = [[5, 7, 11, 13, 17, 19, 23], [3]]


@pytest.fixture(params=KINDS)
def folder(request, monkeypatch, tmp_path):
    """A checkpoint of the family, which is registered for the length of a test."""
    kind = request.param
    raw = RAW | {"model_type": kind}
    monkeypatch.setitem(FAMILIES, kind, KINDS[kind])
    monkeypatch.setitem(SHAPES, f"tiny-{kind}", read_config(raw))
    monkeypatch.setitem(builders.CONFIGS, kind, raw)
    return builders.write_folder(tmp_path / kind, kind)


def expected(folder: Path, tokens: list[int]) -> torch.Tensor:
    return reference_logits(builders.tensors_of(builders.CONFIGS[folder.name]), tokens, folder.name == "parallel-toy")


def test_a_new_family_is_read_counted_and_loaded(folder):
    checkpoint = open_checkpoint(str(folder))
    config = checkpoint.config
    assert config.family == folder.name and read_config(write_config(config)) == config
    assert sum(weight.numel() for weight in create_model(config).parameters()) == parameter_count(config)
    model = load_model(checkpoint, dtype=torch.float32, device="cpu")
    found = run(model, PROMPTS[0])
    torch.testing.assert_close(found, expected(folder, PROMPTS[0]).float(), rtol=1e-4, atol=1e-4)


def test_a_new_family_serves_and_its_layers_run_in_kernels_if_it_describes_them(folder, caplog):
    with caplog.at_level(logging.INFO, "gradus"), LLM(str(folder), device="cpu", dtype="float32") as llm:
        params = SamplingParams(max_tokens=12, ignore_eos=True)
        done = llm.generate(PROMPTS, params)
        runner = llm.engine.runner
    for prompt, found in zip(PROMPTS, done, strict=True):
        text = [*prompt]
        for token in found.token_ids:
            assert token == expected(folder, text)[-1].argmax()
            text.append(token)
    described = folder.name == "toy"
    if importlib.util.find_spec("numba"):
        assert (type(runner.step.passes) is not TorchPass) == described
        assert ("ParallelBlock" in caplog.text) != described


def test_a_new_family_runs_on_matrices_in_eight_bits(folder):
    with LLM(str(folder), device="cpu", dtype="float32", quantize="int8") as llm:
        done = llm.generate(PROMPTS, SamplingParams(max_tokens=4, ignore_eos=True))
    assert [len(one.token_ids) for one in done] == [4, 4]


def test_a_description_that_is_only_inherited_is_not_believed(folder):
    model = create_model(SHAPES[f"tiny-{folder.name}"])
    if folder.name == "toy":
        assert [parts.up for parts in parts_of(model)] == [layer.up for layer in model.layers]
    else:
        with pytest.raises(Undescribed, match="ParallelBlock"):
            parts_of(model)


ROOT = Path(__file__).parents[2]


def asks_for_a_family(source: str) -> list[str]:
    """Comparisons with a family's name, and imports of a family's own module."""
    if not re.search(r"family\b|gradus\.models", source):  # parsing takes long
        return []
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            text = ast.unparse(node)
            found += [text] if "family" in text and re.search(r"family( (==|!=|in|not in) |$)", text) else []
        if isinstance(node, ast.Import | ast.ImportFrom):
            text = ast.unparse(node)
            found += (
                [text] if re.search(r"gradus\.models\b(?!\.published).*\b(gpt2|llama|qwen3|gemma3)\b", text) else []
            )
    return found


def test_no_code_asks_which_family_a_model_belongs_to():
    """The configuration, the family's record or the block says what is to be known; so no other file has to change."""
    src = ROOT / "src" / "gradus"
    own = src / "models" / "families"
    paths = [path for path in sorted(src.rglob("*.py")) if own not in path.parents]
    assert {path: asks for path in paths if (asks := asks_for_a_family(path.read_text(encoding="utf-8")))} == {}


@pytest.mark.parametrize(
    "code",
    [
        'gated = config.family != "gpt2"',
        'if self._family in ("qwen3", "gemma3"): pass',
        "from gradus.models.families import records, gemma3",
        "from gradus.models.families.llama import Block",
    ],
)
def test_the_check_for_families_catches(code):
    assert asks_for_a_family(code)


def test_contributing_names_files_that_exist():
    """Each file that "Adding a model family" names is where it says."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    steps = text.split("## Adding a model family")[1].split("\n## ")[0]
    named = re.findall(r"`((?:src|tests)/[\w/.]+)`", steps)
    assert len(named) > 6 and all((ROOT / name).exists() for name in named)
