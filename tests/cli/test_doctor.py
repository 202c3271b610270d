"""`gradus doctor`: each check is really run, and says what to do when it fails."""

import json
import socket
import sys
from types import SimpleNamespace

import pytest

from gradus.device.host_memory import HostMemory
from gradus.device.threads import use
from gradus.doctor import machine as doctor
from gradus.doctor.finding import FAILED, NOTE, OK, WARNING, Finding
from gradus.doctor.machine import Report


def finding(name: str) -> Finding:
    return next(found for found in doctor.examine().findings if found.name == name)


def test_on_this_machine_everything_essential_works(gradus, models_folder):
    done = gradus("doctor")
    assert done.code == 0, done.out
    for name in ("torch", "tokenizers", "phases", "instruction sets", "memory", "GFLOP/s"):
        assert name in done.out


def test_json_is_the_whole_report(gradus, models_folder):
    report = json.loads(gradus("doctor", "--json").out)
    assert report["healthy"] is True
    assert report["versions"]["torch"].startswith("2.")
    assert int(report["hardware"]["cores"]) >= 1
    assert {found["name"]: found["status"] for found in report["findings"]}["torch"] == OK


@pytest.mark.parametrize(
    ("module", "name", "status"),
    [
        ("tokenizers", "tokenizers", FAILED),
        ("gguf", "gguf", WARNING),
        ("triton", "triton", NOTE),
        ("numba", "CPU kernels", NOTE),
    ],
)
def test_a_missing_package_is_named_with_what_to_do(monkeypatch, module, name, status):
    monkeypatch.setitem(sys.modules, module, None)
    found = finding(name)
    assert found.status == status
    assert module in found.detail
    assert found.advice


@pytest.mark.parametrize(
    ("system", "machine", "release", "status", "said"),
    [
        ("Linux", "x86_64", "6.1.0", OK, "Linux, supported"),
        ("Linux", "x86_64", "5.15.90.1-microsoft-standard-WSL2", OK, "Linux in WSL, supported"),
        ("Darwin", "arm64", "24.1.0", OK, "macOS 15.1 on an Apple processor, supported; its GPU is not used"),
        ("Darwin", "x86_64", "22.6.0", WARNING, "PyTorch has no build for it"),
        ("Windows", "AMD64", "11", WARNING, "Windows itself has not been tried"),
        ("FreeBSD", "amd64", "14.1", WARNING, "FreeBSD has not been tried"),
    ],
)
def test_it_says_whether_the_system_is_supported(monkeypatch, system, machine, release, status, said):
    monkeypatch.setattr("platform.system", lambda: system)
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("platform.release", lambda: release)
    monkeypatch.setattr("platform.mac_ver", lambda: ("15.1", ("", "", ""), machine))
    found = finding("system")
    assert found.status == status and said in found.detail
    assert ("WSL on Windows" in found.advice) is (status == WARNING)


def test_it_says_what_serving_the_default_model_takes_pulled_or_not(models_folder, monkeypatch):
    found = finding("serving")
    assert found.status == OK
    assert found.detail.startswith("smollm2-135m would take up to ") and found.detail.endswith(" free on the cpu")
    monkeypatch.setattr(HostMemory, "now", lambda: HostMemory(2**30, 2**20, "psutil"))
    found = finding("serving")
    assert found.status == WARNING and "--dry-run" in found.advice


def test_it_says_where_the_number_of_free_memory_comes_from(monkeypatch):
    monkeypatch.setattr(HostMemory, "now", lambda: HostMemory(8 << 30, 3 << 30, "POSIX"))
    assert doctor.hardware()["memory"] == "8.0 GiB, 3.0 GiB of it free for this process by POSIX"


def test_the_kernels_of_a_cpu_are_described(monkeypatch):
    pytest.importorskip("numba")
    from gradus.kernels.cpu import byte_products
    from gradus.kernels.cpu.kept import code as kept

    for name, place, seen in [
        ("avx2", "/place", ("int8 by avx2", "code is kept in /place")),
        (None, None, ("int8 by plain loops", "not kept, so every start compiles")),
    ]:
        monkeypatch.setattr(byte_products, "NAME", name)
        monkeypatch.setattr(kept, "place_of", lambda kernel, place=place: place)
        found = finding("CPU kernels")
        assert found.status == OK and all(each in found.detail for each in seen)
        assert f"on {use(None)} threads" in found.detail


def test_a_place_for_code_that_others_may_write_to_is_named(monkeypatch):
    pytest.importorskip("numba")
    from gradus.kernels.cpu.kept import code as kept

    monkeypatch.setattr(kept, "place_of", lambda kernel: None)
    monkeypatch.setattr(kept, "danger_to", lambda kernel: "other users may write to /place")
    assert "every start compiles: other users may write to /place" in finding("CPU kernels").detail
    (unsafe,) = [found for found in doctor.unsafe_settings({}) if "/place" in found.detail]
    assert "NUMBA_CACHE_DIR" in unsafe.advice


def test_numba_that_computes_wrongly_is_noticed(monkeypatch):
    pytest.importorskip("numba")
    from gradus.kernels.cpu import elementary

    monkeypatch.setattr(elementary, "exp_of", lambda x: 2.0)
    assert finding("CPU kernels").status == NOTE and "wrongly" in finding("CPU kernels").detail


def test_only_what_is_essential_makes_it_fail(gradus, monkeypatch):
    def report(status: str) -> Report:
        return Report({}, {}, [Finding("torch", status, "broken", "mend it")])

    for status, code in [(OK, 0), (NOTE, 0), (WARNING, 0), (FAILED, 1)]:
        monkeypatch.setattr(doctor, "examine", lambda status=status: report(status))
        done = gradus("doctor")
        assert done.code == code
        assert "mend it" in done.out


@pytest.mark.parametrize(
    ("version", "status"),
    [((3, 10, 14), FAILED), ((3, 11, 0), OK), ((3, 14, 9), OK), ((3, 15, 0), FAILED)],
)
def test_a_python_out_of_range_fails_and_the_advice_names_the_range(monkeypatch, version, status):
    monkeypatch.setattr(doctor, "sys", SimpleNamespace(version_info=version, executable=sys.executable))
    found = finding("python")
    assert found.status == status
    assert found.advice == ("use Python 3.11 to 3.14" if status == FAILED else "")


def test_a_port_in_use_is_noticed(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(doctor, "SERVER_PORT", server.getsockname()[1])
        assert "--port" in finding(f"port {doctor.SERVER_PORT}").advice


def test_an_empty_and_a_full_model_cache(models_folder, monkeypatch):
    assert finding("models").advice == "gradus pull smollm2-135m"
    assert finding("model cache").status == OK
    monkeypatch.setattr(doctor, "FREE_DISK_WANTED", 2**80)
    assert "free" in finding("model cache").advice


def test_a_model_cache_that_cannot_be_made_is_noticed(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("GRADUS_HOME", str(tmp_path / "file" / "cache"))
    assert finding("model cache").status == WARNING


@pytest.mark.parametrize("setting", ["1", "true", "YES"])
def test_each_unsafe_environment_setting_is_named(setting):
    found = doctor.unsafe_settings({"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": setting})
    assert "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD" in found[0].detail


def test_a_model_cache_that_others_may_write_to_is_named(models_folder):
    models_folder.mkdir(parents=True)
    models_folder.chmod(0o777)
    assert [found for found in doctor.unsafe_settings({}) if str(models_folder) in found.detail]
    models_folder.chmod(0o755)
    assert not [found for found in doctor.unsafe_settings({}) if str(models_folder) in found.detail]


def test_running_as_root_is_named(monkeypatch, models_folder):
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert [found for found in doctor.unsafe_settings({}) if "root" in found.detail]
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert [found.status for found in doctor.unsafe_settings({})] == [OK]
