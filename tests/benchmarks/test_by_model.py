"""The command line of scripts that measure one model after another, with a script that measures nothing."""

import json

import torch

from benchmarks import by_model


def test_each_model_is_in_the_file_before_the_next_is_measured(tmp_path, monkeypatch, capsys):
    out = tmp_path / "found.json"
    monkeypatch.setattr(by_model, "resolve_device", lambda name: torch.device("cpu"))
    monkeypatch.setattr("sys.argv", ["script.py", "--commit", "0123", "--out", str(out)])

    def measure(model):
        if model == "second":
            assert json.loads(out.read_text())["rows"] == [{"model": "first"}]
        return [{"model": model}]

    by_model.by_model("what it asks", ["first", "second"], measure, lengths=(1, 2))
    found = json.loads(out.read_text())
    assert found["rows"] == [{"model": "first"}, {"model": "second"}]
    assert found["commit"] == "0123" and found["lengths"] == [1, 2] and found["hardware"]["processor"]
    assert json.loads(capsys.readouterr().out) == found


def test_models_that_are_named_are_measured_in_place_of_the_usual_ones(monkeypatch, capsys):
    monkeypatch.setattr(by_model, "resolve_device", lambda name: torch.device("cpu"))
    monkeypatch.setattr("sys.argv", ["script.py", "--model", "a", "--model", "b", "--commit", "0123"])
    by_model.by_model(None, ["usual"], lambda model: [{"model": model}])
    assert json.loads(capsys.readouterr().out)["rows"] == [{"model": "a"}, {"model": "b"}]
