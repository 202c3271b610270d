"""The programs that p14's lesson names run as it names them, with a tiny model; what they compute holds."""

import re
import runpy
import sys

import pytest
import torch

from gradus.errors import ConfigError
from gradus.models import SHAPES
from gradus.models.config import matrix_parameters
from phases.p14_experts import balance, demo, distinct, fitting, grouped, quality, ranks, watch
from phases.p14_experts.router import choose
from tests.cli.conftest import gradus  # noqa: F401  # the command line, as a fixture
from tests.course.conftest import ROOT
from tests.phases.conftest import tiny_model

FOLDER = ROOT / "phases/p14_experts"
LESSON = (FOLDER / "README.md").read_text(encoding="utf-8")
TINY = ("--model", "random:tiny-qwen3-moe")


def run(monkeypatch, capsys, name, *arguments):
    """Run a program of the phase as `python -m` does. Returns what it printed."""
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    monkeypatch.delitem(sys.modules, f"phases.p14_experts.{name}")
    runpy.run_module(f"phases.p14_experts.{name}", run_name="__main__")
    return capsys.readouterr().out


def test_the_lesson_names_every_program_of_the_phase():
    named = set(re.findall(r"^python -m phases\.p14_experts\.(\w+)", LESSON, flags=re.MULTILINE))
    programs = {path.stem for path in FOLDER.glob("*.py") if '__name__ == "__main__"' in path.read_text("utf-8")}
    assert named == programs == {"watch", "distinct", "ranks", "quality"}


@pytest.mark.parametrize(("name", "rows"), [("distinct", 1 + 9), ("ranks", 1 + 6)])
def test_what_is_only_computed_is_a_program_too(name, rows, monkeypatch, capsys):
    assert len(run(monkeypatch, capsys, name).splitlines()) == rows


@pytest.mark.parametrize("module", [distinct, ranks])
def test_a_dense_model_is_refused_in_one_line(module, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [module.__name__, "--model", "smollm2-135m"])
    with pytest.raises(SystemExit):
        module.main()
    assert "error: this model of family llama has no experts: name one that has" in capsys.readouterr().err


def test_watch_shows_each_token_with_as_many_experts_as_it_takes(monkeypatch, capsys):
    shown = run(monkeypatch, capsys, "watch", *TINY, "--max-tokens", "3")
    steps = re.split(r"^step \d+: ", shown, flags=re.MULTILINE)[1:]
    assert len(steps) == 3
    for step in steps:
        tokens, read = map(int, re.match(r"(\d+) tokens, (\d+) of 8 experts are read", step).groups())
        assert len(re.findall(r"(?:Ann|Ben|Cy):", step)) == 2 * tokens
        assert step.count("  expert ") == read


def test_watch_cuts_a_dense_model_and_refuses_a_layer_that_is_not_there(monkeypatch, capsys):
    shown = run(monkeypatch, capsys, "watch", "--model", "random:tiny-llama", "--max-tokens", "2", "--layer", "3")
    assert "of 16 experts are read" in shown
    monkeypatch.setattr(sys, "argv", ["watch", *TINY, "--layer", "3"])
    with pytest.raises(SystemExit):
        watch.main()
    assert "--layer must be between 0 and 2, got 3" in capsys.readouterr().err


def test_the_demo_reads_more_experts_with_more_users(gradus, monkeypatch):  # noqa: F811
    monkeypatch.setattr(demo, "BATCHES", (1, 8))
    monkeypatch.setattr(demo, "TOKENS", 3)
    done = gradus("demo", "p14", "--model", "random:tiny-llama")
    assert done.code == 0, done.err
    one, many = (float(re.search(r"#+ +(\d+\.\d)", line)[1]) for line in done.out.splitlines() if "#" in line)
    assert one == 2.0 < many <= 16 and done.out.startswith(demo.QUESTION)
    refused = gradus("demo", "p14", "--model", "random:tiny-gpt2")
    assert refused.code == 2 and "p14 cuts the MLPs of models like Llama" in refused.err


def test_a_step_of_one_token_reads_the_active_weights_and_a_large_one_all():
    config = SHAPES["qwen3-30b-a3b"]
    assert distinct.layer_bytes(config, 1) == pytest.approx(2 * distinct.active_parameters(config))
    assert distinct.layer_bytes(config, 10_000) == pytest.approx(2 * matrix_parameters(config))


def test_padding_is_what_the_longest_group_makes_of_the_others():
    assert grouped.padding([0, 3, 4, 4]) == pytest.approx(1 - 4 / 9) and grouped.padding([0, 2, 4]) == 0


@pytest.mark.parametrize("starts", [[0, 2, 2, 7], [0, 7, 7, 7], [0, 1, 3, 7]])
def test_the_padded_form_gives_what_the_loop_gives(starts):
    torch.manual_seed(0)
    gates, features, down, rows = (torch.randn(*shape) for shape in ((3, 5, 4), (3, 5, 4), (3, 4, 5), (7, 4)))

    def expert(number, x):
        return (torch.nn.functional.silu(x @ gates[number].T) * (x @ features[number].T)) @ down[number].T

    found = grouped.padded(rows, starts, gates, features, down)
    assert torch.allclose(found, grouped.grouped(rows, starts, expert), atol=1e-5)


def test_a_correction_evens_out_what_it_was_found_on():
    torch.manual_seed(1)
    scores = (torch.randn(400, 8) + torch.linspace(0, 2, 8)).softmax(-1)
    before = balance.fullest(choose(scores, 2), 8)
    after = balance.fullest(choose(scores, 2, balance.correction(scores, 2)), 8)
    assert before > 1.8 and after < 1.2


def test_a_fitted_router_ranks_slices_by_what_they_add():
    """Rows of two kinds, of which each has features in one slice alone."""
    x = torch.eye(2).repeat(10, 1)
    features = torch.cat([x[:, :1], torch.zeros(20, 1), x[:, 1:], torch.zeros(20, 1)], 1)
    found = fitting.lengths(features, torch.ones(3, 4), 2)
    assert torch.allclose(found, x * 3**0.5)
    router = fitting.regression(x, found)
    assert (x @ router.T).argmax(1).tolist() == x.argmax(1).tolist() and router.abs().max() == pytest.approx(0.1)


def test_all_slices_lose_nothing_and_fewer_lose_something():
    model, seen, judged = tiny_model("tiny-llama"), list(range(3, 60)), list(range(60, 100))
    rows = {chosen: (first, fitted) for chosen, first, fitted in quality.losses(model, seen, judged, 8)}
    assert list(rows) == [8, 7, 6, 4, 2]
    assert all(abs(divergence) < 1e-4 for divergence, *_ in rows[8]) and rows[4][1][0] > 0.01


def test_what_ranks_send_follows_from_their_number():
    assert ranks.sum_bytes(4, 8, 2) == 2 * 4 * 8 / 2 * 2 and ranks.sum_bytes(4, 8, 1) == 0
    assert ranks.other_ranks(8, 8, 4) == 3 and ranks.other_ranks(4, 1, 4) == pytest.approx(3 / 4)
    assert ranks.exchange_bytes(8, 16, 4, 4, 2) == 2 * (8 / 2) * 1 * 16 * 2
    with pytest.raises(ConfigError, match="8 experts cannot be dealt out evenly to 3 ranks"):
        ranks.own_experts(8, 0, 3)
    assert [list(ranks.own_experts(6, rank, 3)) for rank in range(3)] == [[0, 1], [2, 3], [4, 5]]
