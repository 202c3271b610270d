"""The benchmark of host memory behind a GPU's cache runs on a CPU, and measures what its rows say."""

from benchmarks import host_tier


def test_a_prefix_is_computed_once_and_then_comes_from_where_the_row_says(tmp_path):
    with host_tier.allowed_on("cpu"):
        row = host_tier.first_token("random:tiny-llama", host_tier.QUICK, "cpu", tmp_path / "p")
    assert {name: len(samples) for name, samples in row["samples_ms"].items()} == dict.fromkeys(
        ("computed", "gpu", "host", "disk"), host_tier.REPEATS
    )
    assert row["lost"] == [0, 0] and row["of_computed"]["computed"] == 1


def test_answers_are_compared_after_their_prefixes_came_back():
    with host_tier.allowed_on("cpu"):
        row = host_tier.correct("random:tiny-llama", host_tier.QUICK, "cpu", "fp8")
    assert row["same"] and row["came_back"] > 300
