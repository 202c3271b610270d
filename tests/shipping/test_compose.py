"""The Compose file: its services fit together, only loopback is published, and secrets are made, never written down."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gradus.server.config import ServerConfig
from gradus.server.http.keys import Keys, digest_of, read_keys
from tests.shipping.flags import unknown
from tests.shipping.test_images import SECRET, STAGES

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "compose"
TEXT = (FOLDER / "compose.yaml").read_text()
COMPOSE = yaml.safe_load(TEXT)
SERVICES = COMPOSE["services"]
SERVERS = ["server-cpu", "server-gpu"]


def mounts(service):
    """(source, target, options) of each volume."""
    return [tuple((volume + ":").split(":")[:3]) for volume in SERVICES[service]["volumes"]]


def test_the_file_has_a_server_for_each_kind_of_machine_and_what_watches_it():
    assert SERVICES.keys() == {"secrets-cpu", "secrets-gpu", *SERVERS, "prometheus", "grafana"}
    for profile in ("cpu", "gpu"):
        started = {name for name, service in SERVICES.items() if profile in service["profiles"]}
        assert started == {f"secrets-{profile}", f"server-{profile}", "prometheus", "grafana"}


@pytest.mark.parametrize("service", SERVICES)
def test_files_and_volumes_that_a_service_mounts_exist(service):
    for source, target, _ in mounts(service):
        if source.startswith("."):
            assert (FOLDER / source).exists()
        else:
            assert source in COMPOSE["volumes"]
        assert target.startswith("/")


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_is_bounded_and_cannot_gain_rights(service):
    settings = SERVICES[service]
    assert settings["mem_limit"] and settings["read_only"] is True and settings["cap_drop"] == ["ALL"]
    assert settings["security_opt"] == ["no-new-privileges:true"] and not settings.get("privileged")
    assert settings["restart"] == ("no" if service.startswith("secrets") else "unless-stopped")
    assert ":latest" not in settings["image"] and ":" in settings["image"]


@pytest.mark.parametrize("service", SERVICES)
def test_only_loopback_is_published(service):
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[service].get("ports", []))
    assert service != "prometheus" or "ports" not in SERVICES[service]  # it has no password


@pytest.mark.parametrize("service", [*SERVERS, "secrets-cpu", "secrets-gpu"])
def test_an_image_of_ours_is_a_stage_of_the_dockerfile(service):
    build = SERVICES[service]["build"]
    assert (FOLDER / build["context"] / build["dockerfile"]).resolve() == ROOT / "deploy" / "docker" / "Dockerfile"
    assert build["target"] in STAGES and SERVICES[service]["image"] == f"gradus:{build['target']}"


@pytest.mark.parametrize("service", SERVERS)
def test_a_server_gets_options_that_it_has_and_keys(service):
    command = SERVICES[service]["command"]
    assert not unknown(command)
    keys = command[command.index("--api-keys") + 1]
    assert any(keys.startswith(target + "/") for _, target, _ in mounts(service))
    # Prometheus calls the server by its name, which has to be allowed
    names = SERVICES[service]["networks"]["default"]["aliases"]
    assert names == [command[command.index("--allowed-host") + 1]] == ["server"]
    assert int(SERVICES[service]["stop_grace_period"].removesuffix("s")) > ServerConfig().drain_timeout + 10
    targets = {target for _, target, _ in mounts(service)}
    assert {"/var/lib/gradus", "/var/cache/gradus"} <= targets


def test_a_gpu_is_reserved_where_there_is_one():
    (device,) = SERVICES["server-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["driver"] == "nvidia" and device["capabilities"] == ["gpu"] and "count" in device
    assert "deploy" not in SERVICES["server-cpu"]


def test_services_start_once_their_secrets_are_made():
    for profile in ("cpu", "gpu"):
        (before,) = SERVICES[f"server-{profile}"]["depends_on"].items()
        assert before == (f"secrets-{profile}", {"condition": "service_completed_successfully"})
    for service in ("prometheus", "grafana"):
        for maker in ("secrets-cpu", "secrets-gpu"):  # one of them is in no profile at hand
            wanted = {"condition": "service_completed_successfully", "required": False}
            assert SERVICES[service]["depends_on"][maker] == wanted


def test_prometheus_scrapes_the_server_with_its_key_and_has_the_alerts():
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    assert job["job_name"] == "gradus" and job["static_configs"] == [{"targets": ["server:8000"]}]
    key = job["authorization"]["credentials_file"]
    assert ("prometheus-secrets", str(Path(key).parent), "ro") in mounts("prometheus")
    assert all((ROOT / "deploy/prometheus" / name).is_file() for name in config["rule_files"])
    assert "--config.file=/etc/prometheus/prometheus.yml" in SERVICES["prometheus"]["command"]


def test_grafana_lets_nobody_in_without_its_password_and_has_the_dashboard():
    settings = SERVICES["grafana"]["environment"]
    assert settings["GF_AUTH_ANONYMOUS_ENABLED"] == settings["GF_USERS_ALLOW_SIGN_UP"] == "false"
    password = settings["GF_SECURITY_ADMIN_PASSWORD__FILE"]
    targets = {target: source for source, target, _ in mounts("grafana")}
    assert targets[str(Path(password).parent)] == "grafana-secrets"
    provider = yaml.safe_load((ROOT / "deploy/grafana/provisioning/dashboards/gradus.yaml").read_text())["providers"][0]
    assert targets[provider["options"]["path"] + "/gradus.json"] == "../grafana/gradus.json"


def test_nothing_secret_is_written_down():
    written = [line for line in TEXT.splitlines() if SECRET.search(line.replace(": ", "="))]
    assert all("__FILE" in line or "${HF_TOKEN:-}" in line for line in written)
    assert set(re.findall(r"\$\{(\w+)", TEXT)) == {
        "GRADUS_MODEL", "GRADUS_MEMORY", "GRADUS_PORT", "GRADUS_GPUS", "GRAFANA_PORT", "HF_TOKEN"
    }  # fmt: skip


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to the services' users, as root alone can")
def test_secrets_are_made_once_and_those_lost_are_made_again(tmp_path):
    gradus = tmp_path / "bin" / "gradus"
    gradus.parent.mkdir()
    gradus.write_text(f'#!/bin/sh\nexec {sys.executable} -m gradus "$@"\n')
    gradus.chmod(0o755)
    path = f"{gradus.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"

    def make():
        folder = tmp_path / "secrets"
        command = ["sh", str(FOLDER / "secrets.sh"), str(folder)]
        subprocess.run(command, check=True, cwd=ROOT, env=os.environ | {"PATH": path})
        files = [path for path in folder.rglob("*") if path.is_file()]
        return {str(path.relative_to(folder)): path.read_text() for path in files}, {
            str(path.relative_to(folder)): (path.stat().st_uid, path.stat().st_mode & 0o777) for path in files
        }

    first, owners = make()
    assert owners == {
        "server/keys.yaml": (10001, 0o600), "server/admin.key": (10001, 0o600),
        "prometheus/prometheus.key": (65534, 0o600), "grafana/password": (472, 0o600),
    }  # fmt: skip
    assert len(first["grafana/password"]) >= 24 and make()[0] == first
    (tmp_path / "secrets" / "server" / "admin.key").unlink()
    second, _ = make()
    assert second["server/admin.key"] != first["server/admin.key"]
    assert second["prometheus/prometheus.key"] == first["prometheus/prometheus.key"]
    os.chown(tmp_path / "secrets" / "server" / "keys.yaml", 0, 0)
    known = read_keys(tmp_path / "secrets" / "server" / "keys.yaml")
    assert {name: key.role for name, key in known.items()} == {"admin": "admin", "prometheus": "monitor"}
    keys = Keys(tmp_path / "secrets" / "server" / "keys.yaml")
    assert keys.find(second["server/admin.key"].strip()).name == "admin"
    assert keys.find(first["server/admin.key"].strip()) is None
    assert known["prometheus"].digest == digest_of(first["prometheus/prometheus.key"].strip())


def test_compose_itself_reads_the_file():
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "compose", "version"], capture_output=True).returncode
    ):
        pytest.skip("docker compose is not here")
    for profile in ("cpu", "gpu"):
        command = [
            "docker",
            "compose",
            "--file",
            str(FOLDER / "compose.yaml"),
            "--profile",
            profile,
            "config",
            "--quiet",
        ]
        assert subprocess.run(command).returncode == 0
