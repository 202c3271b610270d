"""Our server and our masks beside vLLM's: both sides read the same files, and ratios are of medians."""

import json
import sys
from types import SimpleNamespace

import pytest

from benchmarks import server_beside_vllm, structured_beside_vllm, vllm_block
from benchmarks.random_folder import write_folder
from benchmarks.server_beside_vllm import OURS, ROWS, THEIRS
from benchmarks.structured_beside_vllm import FREE, MASKED, asked_of
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
    _, theirs, ours = server_beside_vllm.table(blocks, row)
    assert "vllm" in theirs and ours.split()[-1] == reached
    assert f"{rate / 1000:.2f} ×" in ours and "×" not in theirs


def test_without_vllm_no_ratio_is_shown():
    blocks = {"A1": {"engine": OURS, "rows": {"64 streams": samples(7)}}, "B": {"engine": THEIRS, "failed": "no GPU"}}
    _, ours = server_beside_vllm.table(blocks, {"64 streams": ROWS["64 streams"]})
    assert "×" not in ours


# -- masks -------------------------------------------------------------------------------------------------------------


def options(**more) -> SimpleNamespace:
    return SimpleNamespace(
        quick=True, shape="tiny-llama", compact=False, device="cpu", dtype="float32", repeats=1, **more
    )


def test_our_block_keeps_to_the_schemas_with_all_tokens(folder, tmp_path):
    from gradus.bench.run.block import run_block

    run_block(asked_of(options(), folder), tmp_path / "found.json")
    cases = json.loads((tmp_path / "found.json").read_text())["cases"]
    for label in (FREE, MASKED):
        (sample,) = cases[label]["samples"]
        assert sample["output_tokens"] == 3 * 12 and sample["completed"] == 3


class FakeVLLM:
    """Stands for the package: keeps the arguments, and answers each request in full."""

    __version__ = "0.26.0"

    def __init__(self) -> None:
        self.built, self.params = {}, []

    def LLM(self, **arguments):
        self.built = arguments
        return self

    def SamplingParams(self, **arguments):
        return arguments

    def generate(self, prompts, params, use_tqdm):
        self.params.append(params)
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=range(each["max_tokens"]))]) for each in params]


def test_vllm_gets_the_same_schemas_and_a_tokenizer(folder, tmp_path, monkeypatch):
    fake = FakeVLLM()
    monkeypatch.setitem(sys.modules, "vllm", fake)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", SimpleNamespace(StructuredOutputsParams=dict))
    asked = asked_of(options(), folder)
    vllm_block.run_block(asked, tmp_path / "found.json")
    assert fake.built["skip_tokenizer_init"] is False
    assert fake.built["structured_outputs_config"] == {"backend": "xgrammar", "disable_any_whitespace": False}
    free, masked = fake.params[0], fake.params[-1]
    assert all(each["ignore_eos"] and each["detokenize"] and "structured_outputs" not in each for each in free)
    wanted = asked["cases"][1]["schemas"]
    assert [each["structured_outputs"]["json"] for each in masked] == wanted and "ignore_eos" not in masked[0]


def test_a_table_shows_what_masks_keep_and_the_ratio_to_vllm():
    def block(free: float, masked: float) -> dict:
        rates = {FREE: free, MASKED: masked}
        return {"cases": {name: {"samples": [{"output_tokens": rate, "seconds": 1.0}]} for name, rate in rates.items()}}

    lines = structured_beside_vllm.table({"A1": block(2000, 1900), "B": block(1000, 800), "A2": block(2000, 1900)})
    ours = next(line for line in lines if line.split()[:2] == [MASKED, "gradus"])
    assert "95.0 %" in ours and "2.38 ×" in ours and " yes " in ours
