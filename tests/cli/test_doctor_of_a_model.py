"""`gradus doctor MODEL`: whether it would load, why not, and what it would cost, from its configuration alone."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from gradus.models import SHAPES, write_config
from tests.loading import builders

LINEAR = {
    "model_type": "qwen3_5",
    "text_config": {"layer_types": ["linear_attention", "full_attention"]},
    "vision_config": {"depth": 2},
}


def write(path: Path, raw: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(raw))
    return path


@pytest.fixture
def examined(gradus):
    """examined(name) → exit code, and the findings by name; of several with one name, all of them."""

    def run(name: object) -> tuple[int, dict[str, list[dict[str, Any]]]]:
        done = gradus("doctor", str(name), "--json")
        report = json.loads(done.out)
        assert report["loads"] is (done.code == 0)
        found: dict[str, list[dict[str, Any]]] = {}
        for finding in report["findings"]:
            found.setdefault(finding["name"], []).append(finding)
        return done.code, found

    return run


def test_a_config_json_alone_says_what_the_model_costs(examined, tmp_path):
    raw = write_config(SHAPES["smollm3-3b"])
    code, found = examined(write(tmp_path / "config.json", raw))
    assert code == 0
    assert found["loads"][0]["detail"] == "yes, as smollm3, by model_type smollm3"
    assert found["weights"][0]["detail"] == "3.08 B parameters: 6.15 GB in bfloat16, 12.3 GB in float32; none are here"
    assert found["cache"][0]["detail"].startswith("604 MB for 8192 tokens, 2.42 GB for 32768 tokens, 4.83 GB for 65536")
    assert found["tokenizer"][0]["status"] == "warning"


def test_of_experts_it_says_what_a_token_takes(examined):
    code, found = examined("random:gpt-oss-20b")
    assert code == 0 and found["loads"][0]["detail"] == "yes, as gpt_oss"
    assert found["weights"][0]["detail"].startswith("20.9 B parameters, 4.19 B of them per token: 41.8 GB in bfloat16")


@pytest.mark.parametrize(
    ("shape", "context"),
    [
        ("gpt2-124m", "1024 tokens; the table of positions ends there"),
        ("qwen3-4b", "40960 tokens"),
        ("smollm3-3b", "65536 tokens; 9 of 36 layers have no positions"),
        ("llama-3.1-8b", "131072 tokens; Llama 3's scaling extends the 8192 of its training by 8"),
        ("ministral3-3b", "262144 tokens; YaRN extends the 16384 of its training by 16"),
        (
            "gpt-oss-20b",
            "131072 tokens; YaRN extends the 4096 of its training by 32; 12 of 24 layers see the last 128 alone",
        ),
        ("phi4-mini", "131072 tokens; LongRoPE extends the 4096 of its training"),
        (
            "olmo3-7b",
            "65536 tokens; YaRN extends the 8192 of its training by 8; 24 of 32 layers see the last 4096 alone",
        ),
    ],
)
def test_the_context_has_its_reason(examined, shape, context):
    code, found = examined(f"random:{shape}")
    assert (code, found["context"][0]["detail"]) == (0, context)


def test_a_model_that_does_not_load_has_a_line_for_every_reason(examined, gradus, tmp_path):
    file = write(tmp_path / "config.json", LINEAR)
    code, found = examined(file)
    assert code == 1 and found["loads"][0]["detail"] == "no: 2 reasons"
    assert [each["detail"] for each in found["missing"]] == [
        "model_type 'qwen3_5' is not supported: layers with a state are not computed; "
        "Qwen3-4B (qwen3) is the nearest that loads",
        "text_config.layer_types: 1 of 2 layers do not attend: layers with a state are not computed",
    ]
    assert not {"weights", "context", "cache"} & found.keys()
    shown = gradus("doctor", file)
    assert shown.code == 1 and "Qwen3-4B" in shown.out


def test_a_folder_is_read_with_its_tokenizer_template_and_files(examined, tmp_path):
    folder = builders.write_folder(tmp_path / "llama", "llama")
    code, found = examined(folder)
    assert code == 0 and found["tokenizer"][0]["status"] == found["chat template"][0]["status"] == "ok"
    assert "; here: one file of 0." in found["weights"][0]["detail"]
    (folder / "model.safetensors").unlink()
    assert examined(folder)[1]["weights"][0]["detail"].endswith("; none are here")
    (folder / "tokenizer.json").write_text("{}")
    code, found = examined(folder)
    assert code == 1 and found["loads"][0]["status"] == "ok" and found["tokenizer"][0]["status"] == "failed"


def test_the_text_part_of_a_model_that_sees_is_said_to_stand_alone(examined, tmp_path):
    text = write_config(SHAPES["tiny-gemma3"])
    raw = {"model_type": "gemma3", "text_config": text, "vision_config": {"depth": 2}, "audio_config": None}
    raw["quantization_config"] = {"quant_method": "awq"}
    code, found = examined(write(tmp_path / "config.json", raw))
    assert code == 0
    assert found["left out"][0]["detail"] == "the text part alone is loaded: images cannot be given to it"
    assert found["quantized"][0]["detail"] == "awq: its matrices are checked as they are loaded"


def test_a_gguf_file_is_read_too_and_its_architecture_refused_by_name(examined, tmp_path):
    file = builders.write_gguf(tmp_path / "qwen3.gguf", "qwen3")
    code, found = examined(file)
    assert code == 0 and found["loads"][0]["detail"] == "yes, as qwen3, by model_type qwen3"
    content = file.read_bytes()
    file.write_bytes(content.replace(b"qwen3", b"qwenX"))
    code, found = examined(file)
    assert code == 1 and "architecture 'qwenX' is not supported" in found["missing"][0]["detail"]


def test_a_hub_id_is_looked_up_in_the_cache_and_never_downloaded(examined, gradus, tmp_path, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("nothing is downloaded")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    file = write(tmp_path / "snapshot" / "config.json", write_config(SHAPES["tiny-llama"]))
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda repository, name: str(file))
    assert examined("org/name")[0] == 0
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda repository, name: None)
    done = gradus("doctor", "org/name")
    assert done.code == 2 and "gradus pull org/name" in done.err


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no-such-model", "no model named 'no-such-model'"),
        ("random:no-such-shape", "no-such-shape"),
        ("smollm2-135m", "gradus pull smollm2-135m"),
        ("~nobody-there/x", "no model named"),
    ],
)
def test_a_name_that_leads_nowhere_is_a_mistake(gradus, models_folder, name, says):
    done = gradus("doctor", name)
    assert (done.code, done.out) == (2, "") and says in done.err


def test_a_file_of_another_kind_is_a_mistake(gradus, tmp_path):
    (tmp_path / "model.bin").touch()
    done = gradus("doctor", tmp_path / "model.bin")
    assert done.code == 2 and "give its folder" in done.err
    done = gradus("doctor", tmp_path)
    assert done.code == 2 and "has no config.json" in done.err


def test_a_config_json_needs_no_torch(tmp_path):
    file = write(tmp_path / "config.json", write_config(SHAPES["phi4-mini"]))
    code = (
        "import sys; from gradus.doctor import model; model.examine_model(sys.argv[1]); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
