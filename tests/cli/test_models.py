"""`gradus models` and `gradus pull`."""

import json

import pytest

from gradus import loading
from gradus.cli.progress import Bars


def test_the_catalogue_is_listed_with_license_and_what_is_pulled(gradus, models_folder):
    out = gradus("models").out
    line = next(line for line in out.splitlines() if line.startswith("smollm2-135m"))
    assert "Apache-2.0" in line and "98.4 MB" in line and " no " in line
    assert "random:llama-3.2-1b" in out


def test_json_has_the_same_and_the_shapes(gradus, models_folder):
    listed = json.loads(gradus("models", "--json").out)
    first = listed["catalogue"][0]
    assert (first["name"], first["pulled"], first["path"]) == ("smollm2-135m", False, None)
    shapes = {row["name"]: row for row in listed["random"]}
    assert 1.2e9 < shapes["random:llama-3.2-1b"]["parameters"] < 1.3e9


@pytest.fixture
def fetching(monkeypatch, tmp_path):
    """A `pull` that reports progress and fetches nothing."""

    def pull(name, *, progress):
        progress.note("comes under a license")
        progress.begin(f"fetching {name}", 100)
        progress.advance(40)
        return tmp_path / "weights.gguf"

    monkeypatch.setattr(loading, "pull", pull)
    return tmp_path / "weights.gguf"


def test_pull_says_where_the_model_is_and_under_which_license(gradus, fetching):
    done = gradus("pull", "smollm2-135m")
    assert done.code == 0
    assert str(fetching) in done.out and "Apache-2.0" in done.out
    assert "comes under a license" in done.err


def test_pull_as_json_is_json_alone(gradus, fetching):
    done = gradus("pull", "smollm2-135m", "--json")
    assert json.loads(done.out) == {"name": "smollm2-135m", "path": str(fetching), "license": "Apache-2.0"}


def test_random_weights_are_ready_at_once(gradus):
    done = gradus("pull", "random:tiny-llama")
    assert (done.code, done.err) == (0, "")
    assert "random:tiny-llama is ready" in done.out


def test_what_is_not_in_the_catalogue_is_opened_which_fetches_it(gradus, monkeypatch, tmp_path):
    opened = loading.open_checkpoint("random:tiny-llama")
    opened.source, opened.license = tmp_path, "MIT"
    monkeypatch.setattr(loading, "open_checkpoint", lambda name, *, progress: opened)
    done = gradus("pull", "someone/some-model", "--json")
    assert json.loads(done.out) == {"name": "someone/some-model", "path": str(tmp_path), "license": "MIT"}


def test_pulling_an_unknown_model_names_the_known_ones(gradus):
    done = gradus("pull", "gpt-17")
    assert done.code == 2
    assert "smollm2-135m" in done.err


def test_bars_appear_on_a_terminal_only(capsys, monkeypatch):
    def shown() -> str:
        with Bars() as bars:
            bars.begin("first", 100)
            bars.advance(50)
            bars.begin("second", None)
            bars._bars.refresh()
        return capsys.readouterr().err

    def counted() -> str:
        with Bars() as bars:
            bars.begin("capturing", 27)
            bars.advance(3)
            bars._bars.refresh()
        return capsys.readouterr().err

    assert shown() == counted() == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "first" in shown() and "second" in shown()
    assert "3/27" in counted()


def test_families_are_listed_with_their_checkpoints_and_what_shapes_cost(gradus):
    out = gradus("models", "--families").out
    row = next(line for line in out.splitlines() if line.startswith("phi3 "))
    assert "Phi-4-mini" in row
    cost, context = (line.rstrip() for line in out.splitlines() if line.startswith("random:llama-3.1-8b "))
    assert "16.1 GB" in cost
    assert "1.07 GB / 554 MB" in context and context.endswith("17.2 GB / 8.86 GB")
    assert "tiny-" not in out


def test_families_as_json_have_bytes(gradus):
    listed = json.loads(gradus("models", "--families", "--json").out)
    families = {row["family"]: row for row in listed["families"]}
    assert families["llama"]["model_types"] == ["llama", "mistral"] and families["llama"]["gguf"] == ["llama"]
    assert "SmolLM3-3B" in families["smollm3"]["checkpoints"]
    shapes = {row["name"]: row for row in listed["shapes"]}
    small = shapes["random:olmo2-1b"]
    assert (small["weight_bytes"], small["context_length"], small["context_bytes"]) == (
        2_969_833_472,
        4096,
        {"bfloat16": {}, "fp8": {}},
    )
    assert shapes["random:llama-3.1-8b"]["context_bytes"]["bfloat16"]["131072"] == 131072 * 131072
