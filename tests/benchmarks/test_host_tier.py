"""The benchmark of host memory behind a GPU's cache runs on a CPU, and measures what its rows say."""

from benchmarks import host_tier


def test_a_prefix_is_computed_once_and_then_comes_from_where_the_row_says(capsys):
    with host_tier.allowed_on("cpu"):
        row = host_tier.measured("tiny-llama", ["first_token", "correct"], host_tier.QUICK, "cpu", profiled=True)
    found = row["first_token"]
    assert {name: len(samples) for name, samples in found["samples_ms"].items()} == dict.fromkeys(
        host_tier.SOURCES, host_tier.REPEATS
    )
    assert found["lost"] == [0, 0] and found["of_computed"]["computed"] == 1
    assert all(row["correct"][kept]["same"] and row["correct"][kept]["came_back"] > 300 for kept in ("auto", "fp8"))
    assert list(row["took_s"]) == ["start", "first_token", "correct", "correct_fp8"]
    assert "first token, disk" in capsys.readouterr().err


def test_parts_that_do_not_exist_are_refused_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["host_tier.py", "--models", "llama-3.1-8b:latency"])
    try:
        host_tier.main()
    except SystemExit as ended:
        assert ended.code == 2
    assert "unknown parts latency: name any of first_token, throughput, correct" in capsys.readouterr().err
