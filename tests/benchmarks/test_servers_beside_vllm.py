"""Our server beside vLLM's: both read the same files, and ratios are of medians."""

import pytest

from benchmarks import server_beside_vllm
from benchmarks.random_folder import write_folder
from benchmarks.server_beside_vllm import OURS, ROWS, THEIRS
from gradus.loading import open_checkpoint
from gradus.loading.checkpoint import open_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("models") / "tiny-llama", "tiny-llama", "random:tiny-llama", "cpu")


def test_the_folder_holds_the_random_weights_of_its_shape_and_the_tokenizer(folder):
    import torch

    from gradus.loading import load_model

    ours, random = open_checkpoint(str(folder)), open_checkpoint("random:tiny-llama")
    assert open_tokenizer(str(folder)).decode([72, 105]) == random.tokenizer.decode([72, 105])
    both = [load_model(each, dtype=torch.bfloat16, device="cpu").state_dict() for each in (ours, random)]
    assert both[0].keys() == both[1].keys() and all(torch.equal(both[0][name], both[1][name]) for name in both[0])


def test_a_folder_is_written_once(folder):
    before = (folder / "model.safetensors").stat().st_mtime_ns
    write_folder(folder, "tiny-llama", "random:tiny-llama", "cpu")
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


def samples(engine_rate: float) -> dict:
    one = {"output_tokens": 1000, "completed": 10, "ttft_ms": {"p50": 1.0}, "tokens_an_event": 1.0,
           "client_percent": 5.0, "server_percent": 90.0, "idle_cores": 3.0}  # fmt: skip
    return {
        "/v1/completions": [one | {"seconds": 1000 / rate} for rate in (engine_rate, 0.5 * engine_rate, engine_rate)]
    }


@pytest.mark.parametrize(("rate", "reached"), [(2000, "yes"), (1990, "no")])
def test_a_ratio_is_of_medians_and_reached_from_the_must_on(rate, reached):
    row = {"64 streams": ROWS["64 streams"]}
    blocks = {"A1": {"engine": OURS, "rows": {"64 streams": samples(rate)}},
              "B": {"engine": THEIRS, "rows": {"64 streams": samples(1000)}}}  # fmt: skip
    *_, theirs, ours = server_beside_vllm.table(blocks, row).splitlines()
    assert "vllm" in theirs and ours.split()[-2] == reached
    assert f"| {rate / 1000:.2f} × | 2.00 × |" in ours and "×" not in theirs


def test_without_vllm_no_ratio_is_shown():
    blocks = {"A1": {"engine": OURS, "rows": {"64 streams": samples(7)}}, "B": {"engine": THEIRS, "failed": "no GPU"}}
    *_, ours = server_beside_vllm.table(blocks, {"64 streams": ROWS["64 streams"]}).splitlines()
    assert "×" not in ours
