"""A server's configuration: each mistake is one line that names the key, and reading it costs nothing."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gradus.errors import ConfigError
from gradus.loading.default_sampling import Recommended
from gradus.server.config import ServerConfig
from gradus.server.engine.loading import sampling_of

ROOT = Path(__file__).parents[2]


def written(tmp_path, text):
    path = tmp_path / "server.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["cpu.yaml", "gpu.yaml"])
def test_the_configurations_that_ship_load(name):
    config = ServerConfig.from_yaml(ROOT / "configs" / name)
    assert config != ServerConfig()
    assert config.host == "127.0.0.1"


def test_a_file_sets_what_it_names_and_keeps_the_other_defaults(tmp_path):
    config = ServerConfig.from_yaml(written(tmp_path, "port: 9000\nrequest_timeout: 5\nphase: p01\n"))
    assert config == ServerConfig(port=9000, request_timeout=5, phase="p01")


def test_switches_are_a_list(tmp_path):
    config = ServerConfig.from_yaml(written(tmp_path, "switch_off: [graphs, overlap]"))
    assert config == ServerConfig(switch_off=("graphs", "overlap"))


def test_an_empty_file_is_the_defaults(tmp_path):
    assert ServerConfig.from_yaml(written(tmp_path, "# nothing\n")) == ServerConfig()


def test_flags_win_over_the_file_and_absent_flags_change_nothing():
    config = ServerConfig(port=9000, phase="p01").merge({"port": 9001, "phase": None, "model": None})
    assert config == ServerConfig(port=9001, phase="p01")


def test_by_default_only_this_machine_can_reach_it():
    assert ServerConfig().host == "127.0.0.1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("temperature: 101", "temperature must be a number between 0 and 100, got 101"),
        ("temperature: .nan", "temperature must be a number, got nan"),
        ("top_k: many", "top_k must be a whole number, got 'many'"),
        ("override_generation_config: '{'", "override_generation_config must be a JSON object, got '{'"),
        ("override_generation_config: '[1]'", "override_generation_config must be a JSON object, got '[1]'"),
        (
            """override_generation_config: '{"top_q": 1}'""",
            "override_generation_config takes temperature, top_p, top_k, min_p, repetition_penalty, got 'top_q'",
        ),
        ("""override_generation_config: '{"min_p": true}'""", "min_p must be a number between 0 and 1, got True"),
        ("""override_generation_config: '{"min_p": 2}'""", "min_p must be a number between 0 and 1, got 2"),
        (
            """{min_p: 0.1, override_generation_config: '{"min_p": 0.2}'}""",
            "min_p is given twice: leave it out of override_generation_config, or alone",
        ),
        ("served_model_name: ['']", "served_model_name takes names of 1 to 256 printable characters, got ''"),
        ('served_model_name: ["a\\n"]', "served_model_name takes names of 1 to 256 printable characters, got 'a\\n'"),
        (f"served_model_name: {['x'] * 65}", "served_model_name takes at most 64 names, got 65"),
        ("prot: 9000", "unknown setting 'prot'; did you mean 'port'?"),
        ("zzz: 1", "unknown setting 'zzz'; there are model, phase,"),
        ("1: 1", "unknown setting '1'"),
        ("port: many", "port must be a whole number between 0 and 65535, got 'many'"),
        ("port: yes", "port must be a whole number between 0 and 65535, got True"),
        ("port: null", "port must be a whole number between 0 and 65535, got None"),
        ("port: 65536", "port must be a whole number between 0 and 65535, got 65536"),
        ("phase: 1", "phase must be text, got 1"),
        ("max_waiting: 0", "max_waiting must be a whole number, 1 or more, got 0"),
        ("context_length: 0", "context_length must be a whole number, 1 or more, got 0"),
        ("page_size: 0", "page_size must be a whole number, 1 or more, got 0"),
        ("cache_tokens: 0", "cache_tokens must be a whole number, 1 or more, got 0"),
        ("token_budget: 1.5", "token_budget must be a whole number, 1 or more, got 1.5"),
        ("memory_fraction: 1.5", "memory_fraction must be a number above 0 and at most 1, got 1.5"),
        ("memory_fraction: all", "memory_fraction must be a number above 0 and at most 1, got 'all'"),
        ("switch_off: graphs", "switch_off must be a list of texts, got 'graphs'"),
        ("switch_off: [1]", "switch_off must be a list of texts, got (1,)"),
        ("switch_off: [graph]", "switch_off takes prefix_cache, chunked, kernels, graphs, overlap, got 'graph'"),
        ("policy: fifo", "policy must be one of fcfs, priority, deadline, got 'fifo'"),
        (
            "request_timeout: 604801",
            "request_timeout must be a number of seconds above 0 and at most 604800, got 604801",
        ),
        ("request_timeout: 0", "request_timeout must be a number of seconds above 0 and at most 604800, got 0"),
        ("step_timeout: .inf", "step_timeout must be a number of seconds above 0, got inf"),
        ("step_timeout: .nan", "step_timeout must be a number of seconds above 0, got nan"),
        ("drain_timeout: -1", "drain_timeout must be a number of seconds, 0 or more, got -1"),
        ("log_level: loud", "log_level must be one of debug, info, warning, error, got 'loud'"),
        ("- a list", "must hold `key: value` lines, found a list"),
        ("port: [", "is not YAML"),
        ("!!python/object/apply:os.getpid []", "is not YAML"),
    ],
)
def test_a_mistake_in_a_file_is_one_line_that_names_file_key_and_value(tmp_path, text, message):
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        ServerConfig.from_yaml(path)
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.yaml: cannot be read \(No such file or directory\)"):
        ServerConfig.from_yaml(tmp_path / "absent.yaml")


def test_a_file_that_is_not_text_is_one_line(tmp_path):
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"port: \xff\xfe")
    with pytest.raises(ConfigError, match=r"binary\.yaml: cannot be read"):
        ServerConfig.from_yaml(path)


def test_flags_are_checked_like_files():
    with pytest.raises(ConfigError, match="port must be a whole number between 0 and 65535, got -1"):
        ServerConfig().merge({"port": -1})


def test_reading_a_configuration_imports_neither_torch_nor_the_web_server():
    code = (
        "import sys; from gradus.server.config import ServerConfig; ServerConfig.from_yaml('configs/cpu.yaml');"
        "print([name for name in ('torch', 'fastapi', 'uvicorn', 'starlette') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_sampling_comes_from_the_settings_then_the_model():
    checkpoint = SimpleNamespace(default_sampling=Recommended({"temperature": 0.2, "top_p": 0.9}, "its card"))
    assert sampling_of(checkpoint, ServerConfig()) == (
        {"temperature": 0.2, "top_p": 0.9}, {"temperature": "its card", "top_p": "its card"},
    )  # fmt: skip
    config = ServerConfig(temperature=0.5, override_generation_config='{"top_k": 7, "min_p": null}')
    ours = "the server's settings"
    assert sampling_of(checkpoint, config) == (
        {"temperature": 0.5, "top_p": 0.9, "top_k": 7}, {"temperature": ours, "top_p": "its card", "top_k": ours},
    )  # fmt: skip
    for word in ("none", "vllm"):
        assert sampling_of(checkpoint, ServerConfig(generation_config=word)) == ({}, {})
        assert sampling_of(checkpoint, ServerConfig(generation_config=word, top_k=1)) == ({"top_k": 1}, {"top_k": ours})
