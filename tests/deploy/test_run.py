"""What is deployed, from the command's options or a YAML file's arguments; without Ray."""

import sys

import pytest

from gradus.cli import main
from gradus.deploy import run
from gradus.deploy.replica import Replica
from gradus.deploy.run import Plan, last_line
from gradus.errors import ConfigError
from gradus.server.config import ServerConfig


def test_the_settings_of_a_server_bound_a_replica():
    plan = Plan.of({"replicas": 3, "gpus": 1, "settings": {"max_waiting": 20, "max_sequences": 4, "drain_timeout": 5}})
    options = plan.options()
    assert options["num_replicas"] == 3
    assert (options["max_ongoing_requests"], options["max_queued_requests"]) == (24, 20)
    assert options["graceful_shutdown_timeout_s"] >= 5
    assert options["ray_actor_options"] == {"num_cpus": 0, "num_gpus": 1}


def test_with_most_replicas_ray_scales_by_the_requests_that_an_engine_runs_at_once():
    options = Plan.of({"replicas": 2, "max_replicas": 5, "settings": {"max_sequences": 4}}).options()
    assert "num_replicas" not in options
    assert options["autoscaling_config"] == {"min_replicas": 2, "max_replicas": 5, "target_ongoing_requests": 4}


def test_an_engine_on_a_gpu_runs_more_at_once():
    assert Plan(gpus=1).running > Plan().running > 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"replicas": 0}, "replicas must be 1 or more, got 0"),
        ({"replicas": 3, "max_replicas": 2}, "at least replicas \\(3\\), got 2"),
        ({"gpus": -1}, "0 or more, got -1"),
        ({"replica": 2}, "args takes settings, .* got 'replica'"),
        ({"settings": {"prot": 1}}, "prot"),
        ({"settings": {"tls_cert": "a", "tls_key": "b"}}, "the front speaks HTTP alone"),
    ],
)
def test_an_impossible_deployment_is_refused_in_one_line(args, message):
    with pytest.raises(ConfigError, match=message):
        Plan.of(args)


def test_without_ray_the_command_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.serve", None)
    assert main(["deploy", "ray", "--replicas", "2"]) == 2
    assert "pip install -e '.[ray]'" in capsys.readouterr().err


def test_a_model_that_does_not_exist_is_refused_before_ray_starts(monkeypatch, capsys):
    monkeypatch.setattr(run, "check_ray", lambda: None)
    monkeypatch.setattr(run, "start", lambda plan: pytest.fail("Ray was started"))
    assert main(["deploy", "ray", "--model", "/nowhere"]) == 2
    assert "/nowhere" in capsys.readouterr().err


def test_a_replica_without_the_deployments_keys_does_not_start(monkeypatch):
    monkeypatch.delenv("GRADUS_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="has API keys"):
        Replica(ServerConfig(), "tests.server.scripted", keyed=True)


def test_of_rays_report_the_last_line_is_shown():
    report = RuntimeError("Traceback\n  File x\nConfigError: no such model\n\n")
    assert last_line(report) == "ConfigError: no such model"
