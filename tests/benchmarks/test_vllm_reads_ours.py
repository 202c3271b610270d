"""vLLM compared with our engine on files of `gradus quantize`: right readers pass, wrong ones are far beyond the bound.

An independent reader takes vLLM's place behind `vllm_block.py`: it widens the stored weights by the definition of
compressed-tensors, and rounds activations as its configuration asks.
"""

import json
import sys

import pytest
import torch
from safetensors.torch import load_file

from benchmarks import vllm_reads_ours
from benchmarks.vllm_reads_ours import (
    BOUND,
    FAR,
    RECIPES,
    USUAL,
    WRONG,
    Answer,
    Comparison,
    Verdict,
    difference,
    main,
    ours,
    write_model,
    wrong_copies,
)
from gradus.calibration.quantize import quantize
from gradus.loading import open_checkpoint
from gradus.loading.progress import Silent
from tests.pairwise import first

CPU = torch.device("cpu")
IN_TORCH = ("kernels",)

READER = """
import json, sys
from pathlib import Path
from types import SimpleNamespace

sys.path += {paths!r}
import numpy as np
import torch
from safetensors.torch import load_file, save_file

from gradus.attention.whole import WholeSequence
from gradus.loading import load_model, open_checkpoint
from gradus.models import Linear

__version__ = "0.26.0"
SamplingParams = SimpleNamespace


def nibbles(words):
    words = words.numpy().view(np.uint32)
    return np.stack([words >> np.uint32(4 * i) & np.uint32(15) for i in range(8)], -1)


def widened(stored, name):
    def part(end):
        return stored[name.removesuffix("weight") + end]

    scale = part("weight_scale").double().numpy()
    if name in stored:
        return torch.from_numpy(stored[name].double().numpy() * scale).float()
    rows, width = part("weight_shape").tolist()
    values = nibbles(part("weight_packed")).reshape(rows, width).astype(float)
    zeros = nibbles(part("weight_zero_point")).transpose(0, 2, 1).reshape(rows, -1)
    group = width // zeros.shape[1]
    for column in range(width):
        values[:, column] = (values[:, column] - zeros[:, column // group]) * scale[:, column // group]
    return torch.from_numpy(values).float()


def to_int8(x):
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round() * scale


def to_fp8(x):
    scale = x.abs().amax(-1, keepdim=True) / 448
    return (x / scale).to(torch.float8_e4m3fn).float() * scale


class LLM:
    def __init__(self, model, load_format, skip_tokenizer_init, max_model_len, max_num_seqs, **others):
        assert load_format == "auto" and skip_tokenizer_init and others["enforce_eager"]
        folder, wide, self.limit, stored = Path(model), Path(model + "-wide"), max_model_len, {{}}
        for file in sorted(folder.glob("*.safetensors")):
            stored |= load_file(file)
        config = json.loads((folder / "config.json").read_text())
        group = config.pop("quantization_config")["config_groups"]["group_0"]
        names = {{name.replace("weight_packed", "weight") for name in stored if name.endswith(("weight", "_packed"))}}
        wide.mkdir()
        save_file(
            {{n: widened(stored, n) if n.endswith("_proj.weight") else stored[n].float() for n in sorted(names)}},
            wide / "model.safetensors",
        )
        (wide / "config.json").write_text(json.dumps(config))
        self.model = load_model(open_checkpoint(str(wide)), dtype=torch.float32, device="cpu")
        asked = group["input_activations"]
        if asked:
            assert asked["num_bits"] == 8 and asked["dynamic"] and asked["strategy"] == "token"
            change = {{"int": to_int8, "float": to_fp8}}[asked["type"]]
            for module in self.model.layers.modules():
                if isinstance(module, Linear):
                    module.register_forward_pre_hook(lambda _, given: (change(given[0]), *given[1:]))

    def generate(self, prompts, params, use_tqdm):
        return [SimpleNamespace(outputs=[self.answer(p["prompt_token_ids"], q)]) for p, q in zip(prompts, params)]

    @torch.inference_mode()
    def answer(self, prompt, params):
        assert len(prompt) + params.max_tokens <= self.limit and params.temperature == 0 and params.ignore_eos
        ids, places = list(prompt), []
        for _ in range(params.max_tokens):
            hidden = self.model(torch.tensor(ids), torch.arange(len(ids)), WholeSequence(self.model.config))
            likeliest = self.model.logits(hidden[-1:]).log_softmax(-1)[0].topk(params.logprobs)
            pairs = zip(likeliest.indices.tolist(), likeliest.values.tolist())
            places.append({{token: SimpleNamespace(logprob=value) for token, value in pairs}})
            ids.append(next(iter(places[-1])))
        return SimpleNamespace(token_ids=ids[len(prompt):], logprobs=places)
"""


@pytest.fixture
def few(monkeypatch):
    """Prompts and tokens, so that a CPU is soon done."""
    monkeypatch.setattr(vllm_reads_ours, "PROMPTS", 3)
    monkeypatch.setattr(vllm_reads_ours, "TOKENS", 6)


@pytest.fixture
def vllm(tmp_path):
    """The folder that vLLM was unpacked in, with `text` for vLLM."""

    def unpacked(text: str = READER):
        folder = tmp_path / "vllm"
        (folder / "site").mkdir(parents=True)
        (folder / "site" / "vllm.py").write_text(text.format(paths=[path for path in sys.path if path]))
        return folder

    return unpacked


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reads") / "model"
    write_model(folder)
    return folder


def quantized(model, out, scheme):
    quantize(open_checkpoint(str(model)), out, RECIPES[scheme], None, device=CPU, progress=Silent())
    return out


@pytest.mark.slow
@pytest.mark.parametrize("usual", first([["int4"], [*USUAL]]), ids=len)
def test_a_reader_of_its_own_agrees_and_the_copies_do_not(few, vllm, tmp_path, capsys, usual):
    out = tmp_path / "out" / "found.json"
    out.parent.mkdir()
    schemes = [part for scheme in usual for part in ("--scheme", scheme)]
    code = main(["--vllm", str(vllm()), "--device", "cpu", "--dtype", "float32", "--out", str(out), *schemes])
    said = capsys.readouterr().out
    assert code == 0, said
    found = json.loads(out.read_text())
    assert found["versions"]["vllm"] == "0.26.0" and found["model"]["hidden_size"] == 512
    assert [one["scheme"] for one in found["schemes"]] == usual and all(one["passed"] for one in found["schemes"])
    for one in found["schemes"]:
        assert one["intact"]["positions"] >= 3 and one["intact"]["largest"] < 0.4, said
        assert set(one["wrong"]) == (set(WRONG) if one["scheme"].startswith("int4") else {"scales of the row before"})
        if one["scheme"].startswith("int4"):  # no activation is rounded, only scales and offsets to float16
            assert one["intact"]["largest"] < 0.01 < one["before"]["mean"] and one["intact"]["same_texts"] == 3
    assert said.count("passed") == said.count("as written") == len(usual)


@pytest.mark.stress
def test_a_reader_with_other_scales_fails(few, vllm, tmp_path):
    wrong = READER.replace('part("weight_scale").double()', 'part("weight_scale").double().roll(1, 0)')
    assert wrong != READER
    asked = ["--device", "cpu", "--dtype", "float32", "--scheme", "int8"]
    assert main(["--vllm", str(vllm(wrong)), *asked]) == 1


def test_where_vllm_does_not_answer_its_reason_is_told(few, vllm, tmp_path, capsys):
    why = "ImportError: no module named vllm._C"
    broken = vllm("raise ImportError('no module named vllm._C')")
    out = tmp_path / "found.json"
    asked = ["--device", "cpu", "--dtype", "float32", "--scheme", "int8", "--out", str(out)]
    assert main(["--vllm", str(broken), *asked]) == 1
    assert f"int8: FAILED: vLLM did not answer: exit code 1: {why}" in capsys.readouterr().out
    (one,) = json.loads(out.read_text())["schemes"]
    assert not one["passed"] and one["intact"] is None
    assert why in (tmp_path / "logs" / "vllm-reads-int8.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", first(USUAL))
def test_the_bound_is_above_what_types_differ_by_and_far_below_what_wrong_copies_do(few, model, tmp_path, scheme):
    folder = quantized(model, tmp_path / scheme, scheme)
    exact = ours(folder, CPU, "float32", IN_TORCH)
    rounded = Comparison.of(ours(folder, CPU, "bfloat16", IN_TORCH), exact)
    assert rounded.largest < BOUND / 1.5 and rounded.positions > 3
    for what, copy in wrong_copies(folder, tmp_path).items():
        assert Comparison.of(ours(copy, CPU, "float32", IN_TORCH), exact).largest > 1.2 * FAR * BOUND, what


@pytest.mark.parametrize("end", ["weight_scale", "weight_zero_point"])
def test_neighboring_rows_of_the_model_differ_in_scales_and_zero_points(model, tmp_path, end):
    """A copy with a neighboring row's values must be a different model."""
    tensors = load_file(quantized(model, tmp_path / "int4", "int4") / "model-00001.safetensors")
    found = [tensors[name] for name in tensors if name.endswith(end)]
    assert len(found) == 7 and all((one != one.roll(1, 0)).float().mean() > 0.9 for one in found)


# -- the comparison ----------------------------------------------------------------------------------------------------


def test_a_difference_is_of_one_tokens_two_log_probabilities():
    assert difference({1: -0.5, 2: -1.0}, {1: -0.75, 2: -1.125}) == 0.25


def test_a_token_that_one_side_does_not_report_is_at_most_as_likely_there_as_its_last():
    assert difference({1: -0.5, 2: -1.0}, {1: -0.5, 3: -1.5}) == 0.5, "token 2 is -1.5 or less on the other side"
    assert difference({1: -0.5, 2: -1.0}, {1: -0.5, 3: -1.0}) == 0.0


def test_positions_behind_a_parting_are_not_compared():
    places = [{7: -0.1}, {8: -0.2}, {9: -0.3}]
    one, other = Answer([7, 8, 9], places), Answer([7, 4, 9], [{7: -0.2}, {4: -0.1, 8: -0.3}, {9: -9.0}])
    found = Comparison.of([one, one], [other, one])
    assert (found.positions, found.same_tokens, found.same_texts) == (2 + 3, 1 + 3, 1)
    assert found.largest == pytest.approx(0.1) and found.mean == pytest.approx((0.1 + 0.1) / 5)


@pytest.mark.parametrize(
    ("intact", "wrong", "passed"),
    [(BOUND, FAR * BOUND + 0.1, True), (BOUND + 0.01, 9.0, False), (0.0, FAR * BOUND, False), (0.0, None, False)],
)
def test_a_scheme_passes_within_the_bound_if_the_bound_can_tell(intact, wrong, passed):
    def found(largest):
        return Comparison(8, 8, 8, largest, largest)

    copies = {} if wrong is None else {"scales": found(wrong)}
    assert Verdict("int8", {}, "", found(intact), copies, found(1.0), 1.0).passed == passed
