"""The unit for systemd: it fits the server's own times and messages, and systemd can read it."""

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gradus.server.client import GOODBYE_S
from gradus.server.config import ServerConfig
from gradus.server.serve import LAST_BYTES_S, leaves_on_failure
from tests.shipping.flags import unknown

FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"
TEXT = (FOLDER / "gradus.service").read_text()


def lines(section, key):
    """All values of a setting, which a unit may repeat."""
    body = re.search(rf"(?ms)^\[{section}\]\n(.*?)(?=^\[|\Z)", TEXT).group(1)
    return re.findall(rf"(?m)^{key}=(.*)$", body)


def setting(key, section="Service"):
    (value,) = lines(section, key)
    return value


def seconds(text):
    amount, unit = re.fullmatch(r"(\d+)(s|min)", text).groups()
    return int(amount) * {"s": 1, "min": 60}[unit]


def test_the_command_is_one_that_the_server_takes():
    program, command, *arguments = setting("ExecStart").split()
    assert program.startswith("/") and command == "serve" and not unknown(arguments)
    loaded, _, path = setting("LoadCredential").partition(":")
    assert f"${{CREDENTIALS_DIRECTORY}}/{loaded}" == arguments[arguments.index("--api-keys") + 1]
    assert Path(path).parent == Path(arguments[arguments.index("--config") + 1]).parent


def test_the_example_of_settings_is_valid():
    config = ServerConfig.from_yaml(FOLDER / "serve.yaml")
    assert config.host == "0.0.0.0" and config.log_format == "json"


def test_the_unit_waits_for_ready_and_lets_a_drain_finish():
    assert setting("Type") == "notify" and setting("NotifyAccess") == "main"
    assert seconds(setting("TimeoutStopSec")) > ServerConfig().drain_timeout + GOODBYE_S + LAST_BYTES_S
    assert seconds(setting("TimeoutStartSec")) >= 600 and seconds(setting("WatchdogSec")) >= 10
    assert setting("KillMode") == "mixed" and setting("OOMPolicy") == "continue"


def test_a_failure_is_started_again_but_not_for_ever_and_not_a_mistake_in_the_settings(monkeypatch):
    assert setting("Restart") == "on-failure" and setting("RestartPreventExitStatus") == "2"
    assert int(setting("StartLimitBurst", "Unit")) >= 3 and seconds(setting("StartLimitIntervalSec", "Unit")) >= 300
    monkeypatch.setattr("os.getpid", lambda: 4711)
    monkeypatch.setenv("SYSTEMD_EXEC_PID", "4711")
    assert leaves_on_failure(ServerConfig())


def test_what_is_written_is_in_folders_of_the_service():
    written = " ".join(lines("Service", "Environment"))
    folders = dict(part.split("=", 1) for part in written.split())
    assert {"GRADUS_HOME", "HF_HOME", "HOME", "NUMBA_CACHE_DIR", "TRITON_CACHE_DIR"} <= folders.keys()
    roots = {"%S/gradus": setting("StateDirectory"), "%C/gradus": setting("CacheDirectory")}
    assert set(roots.values()) == {"gradus"}
    assert all(path.startswith(tuple(roots)) for path in folders.values())


def test_the_service_has_no_rights_that_it_does_not_need():
    assert setting("DynamicUser") == "yes" and setting("CapabilityBoundingSet") == ""
    assert setting("NoNewPrivileges") == "yes" and setting("ProtectSystem") == "strict" and setting("LimitCORE") == "0"
    assert setting("DevicePolicy") == "closed" and all("nvidia" in device for device in lines("Service", "DeviceAllow"))
    # numba and Triton make code at run time; a GPU is a device
    assert not lines("Service", "MemoryDenyWriteExecute") and not lines("Service", "PrivateDevices")


def test_systemd_reads_the_unit_and_finds_it_hardened(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    unit = tmp_path / "gradus.service"
    unit.write_text(TEXT.replace("/opt/gradus/bin/gradus", sys.executable))
    answer = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    assert answer.returncode == 0 and not answer.stderr.strip(), answer.stderr
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=40", str(unit)]
    exposure = subprocess.run(command, capture_output=True, text=True)
    if "unrecognized option" in exposure.stderr:
        pytest.skip("an old systemd-analyze")
    assert exposure.returncode == 0, exposure.stdout[-200:]


def test_the_unit_has_its_sections_and_comments_on_lines_of_their_own():
    """A comment behind a value would be part of it."""
    parser = configparser.RawConfigParser(strict=False, comment_prefixes=("#",))
    parser.optionxform = str
    parser.read_string(TEXT)
    assert parser.sections() == ["Unit", "Service", "Install"]
    assert not [line for line in TEXT.splitlines() if "#" in line and not line.startswith("#")]
