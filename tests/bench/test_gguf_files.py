"""Our checkpoints as GGUF files for llama.cpp: read back by our own loader, they are the same model."""

from dataclasses import replace

import pytest
import torch

from gradus.bench.contenders.gguf_files import GGUFFiles, OwnTensors, format_of, widths, write
from gradus.bench.contenders.gguf_random import SPREAD, write_random
from gradus.bench.measure.drive import ContenderFailed
from gradus.bench.predict.roofline import streamed_parameters
from gradus.loading import Checkpoint, open_checkpoint
from gradus.loading.gguf.architectures import hugging_face_config
from gradus.loading.gguf.file import GGUFFile
from gradus.loading.gguf.model import GGUFTensors
from gradus.models import SHAPES, ModelConfig, create_model, load_weights, randomize, read_config
from tests.loading.builders import CONFIGS, write_folder
from tests.pairwise import each_once

FAMILIES = list(CONFIGS)
SCHEMES = {None: "F16", "int8": "Q8_0", "int4": "Q4_0"}


def read_back(path) -> tuple[ModelConfig, torch.nn.Module]:
    """Read the file with our own loader, without a tokenizer, since the file has none."""
    file = GGUFFile(path)
    model = create_model(read_config(hugging_face_config(file)))
    load_weights(model, GGUFTensors(file))
    return model.config, model


def largest_difference(one, other) -> float:
    """Return the largest difference between two models' weights, relative to the largest weight of each tensor."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).abs().max() / a.abs().max()) for a, b in pairs)


@pytest.mark.parametrize(
    ("scheme", "bound", "family"), each_once([(None, 5e-4), ("int8", 5e-3), ("int4", 0.13)], FAMILIES)
)
def test_a_checkpoint_comes_back_as_the_same_model(tmp_path, family, scheme, bound):
    checkpoint = open_checkpoint(str(write_folder(tmp_path / "folder", family)))
    ours = create_model(checkpoint.config)
    load_weights(ours, checkpoint.tensors)
    files = GGUFFiles(checkpoint, ours)
    config, theirs = read_back(files.path(scheme))
    assert largest_difference(ours, theirs) < bound
    # the file keeps float32, and no special tokens
    ours = replace(checkpoint.config, norm_eps=config.norm_eps, bos_token_id=None, eos_token_ids=())
    assert config == ours


@pytest.mark.parametrize(("scheme", "kind"), SCHEMES.items())
def test_matrices_of_the_layers_are_in_the_format_and_the_head_is_not(bench, scheme, kind):
    """The file has no tokenizer, and says how many tokens there are."""
    file = GGUFFile(bench.gguf.path(scheme))
    kinds = {name: entry.type.name for name, entry in file.tensors.items()}
    assert (file.metadata["llama.vocab_size"], file.metadata["tokenizer.ggml.model"]) == (320, "no_vocab")
    assert open_checkpoint(str(bench.gguf.path(scheme))).tokenizer is None
    assert kinds["blk.0.attn_q.weight"] == kinds["blk.1.ffn_down.weight"] == kind
    assert kinds["token_embd.weight"] == "F16" and kinds["blk.0.attn_norm.weight"] == "F32"


def test_random_weights_are_the_very_ones_that_we_run(bench):
    _, theirs = read_back(bench.gguf.path(None))
    assert largest_difference(bench.model, theirs) < 5e-4


def test_random_keys_that_are_values_are_both(tmp_path):
    config = SHAPES["tiny-gemma4"]
    model = create_model(config)
    randomize(model, 0)
    write(tmp_path / "model.gguf", config, OwnTensors(model), format_of(None))
    assert largest_difference(model, read_back(tmp_path / "model.gguf")[1]) < 5e-4


def test_a_file_is_written_once(bench):
    first = bench.gguf.path("int8").stat()
    assert bench.gguf.path("int8").stat() == first


def test_llama_3s_scaling_survives(tmp_path):
    raw = CONFIGS["llama"] | {
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    }  # fmt: skip
    config = read_config(raw)
    model = create_model(config)
    randomize(model, 0)
    write(tmp_path / "model.gguf", config, OwnTensors(model), format_of(None))
    assert read_back(tmp_path / "model.gguf")[0].ropes == config.ropes


@pytest.mark.parametrize(
    ("shape", "changes", "reason"),
    [
        ("tiny-mistral", {}, "windows of 16"),
        ("tiny-llama", {"attention_scale": 0.5}, "scaled by 0.5"),
        ("tiny-qwen2", {}, "heads of 24 values"),
        ("tiny-gemma3", {"attention_softcap": 50.0}, "soft cap"),
        ("tiny-llama", {"family": "toy"}, "toy"),
    ],
)
def test_what_llama_cpp_would_compute_in_another_way_is_refused(shape, changes, reason):
    config, model = replace(SHAPES[shape], **changes), create_model(SHAPES[shape])
    with pytest.raises(ContenderFailed, match=f"llama.cpp has no such model: .*{reason}"):
        GGUFFiles(Checkpoint(shape, None, config, None, None, None, 0), model).path(None)


def test_a_scheme_without_a_format_is_refused(bench):
    with pytest.raises(ContenderFailed, match="no GGUF format stands for fp8, only for int8, int4"):
        bench.gguf.path("fp8")


@pytest.mark.parametrize("shape", ["tiny-llama", "tiny-qwen3", "tiny-gpt2", "smollm2-135m"])
def test_the_prediction_counts_the_bytes_that_the_file_has(shape, tmp_path):
    config = SHAPES[shape]
    if shape == "smollm2-135m":
        block = (1 + 1 / 16) * 106_168_320 + 2 * 28_311_552 + 4 * 61 * 576  # Q8_0: 34 bytes for 32 weights
        assert widths(config, "int8").weight * streamed_parameters(config) == pytest.approx(block)
        return
    model = create_model(config)
    randomize(model, 0)
    write(tmp_path / "model.gguf", config, OwnTensors(model), format_of("int8"))
    file = GGUFFile(tmp_path / "model.gguf")
    looked_up = {"position_embd.weight"} if config.tie_embeddings else {"token_embd.weight"}
    read = sum(entry.size_bytes for name, entry in file.tensors.items() if name not in looked_up)
    assert widths(config, "int8").weight * streamed_parameters(config) == pytest.approx(read)


def test_a_file_of_random_weights_has_the_formats_of_q4_k_m_and_weights_of_a_usual_size(tmp_path):
    path = tmp_path / "random.gguf"
    sizes = {"hidden_size": 256, "num_heads": 8, "num_kv_heads": 4, "head_dim": 32}
    tiny = SHAPES["tiny-qwen3-moe"]
    mixture = next(each for each in tiny.experts if each)
    every = tiny.num_layers * (replace(mixture, width=256),)  # llama.cpp has experts in all layers of this family
    config = replace(tiny, experts=every, sizes=(), intermediate_size=0, **sizes)
    write_random(path, config)
    kinds = {name: entry.type.name for name, entry in GGUFFile(path).tensors.items()}
    assert kinds["blk.0.ffn_gate_exps.weight"] == "Q4_K" and kinds["blk.0.ffn_gate_inp.weight"] == "F32"
    assert kinds["blk.0.ffn_down_exps.weight"] == "Q6_K" and kinds["output.weight"] == "Q6_K"
    assert kinds["blk.0.attn_norm.weight"] == "F32" and kinds["blk.0.attn_q.weight"] == "Q4_K"
    found, model = read_back(path)
    assert found.experts == config.experts
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            assert SPREAD / 1.2 < weight.float().std() < 1.2 * SPREAD and abs(weight.float().mean()) < SPREAD / 5, name
