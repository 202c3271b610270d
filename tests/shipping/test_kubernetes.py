"""The Kubernetes examples: their objects fit together, probes ask routes that exist, and times fit the drain."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from gradus.server.client import GOODBYE_S
from gradus.server.config import ServerConfig
from gradus.server.http.access import MONITORED, PUBLIC
from tests.shipping.flags import unknown
from tests.shipping.promql import read
from tests.shipping.test_alerts import unknown as unmeasured
from tests.shipping.test_images import STAGES, inherited, last

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
FILES = ("gradus.yaml", "monitoring.yaml", "scaling.yaml")
OBJECTS = {one["kind"]: one for name in FILES for one in yaml.safe_load_all((FOLDER / name).read_text())}
LABELS = {"app.kubernetes.io/name": "gradus"}
DEPLOYMENT = OBJECTS["Deployment"]["spec"]
POD = DEPLOYMENT["template"]["spec"]
(CONTAINER,) = POD["containers"]
VERSIONS = {
    "PersistentVolumeClaim": "v1", "Deployment": "apps/v1", "Service": "v1", "PodDisruptionBudget": "policy/v1",
    "ServiceMonitor": "monitoring.coreos.com/v1", "ScaledObject": "keda.sh/v1alpha1",
}  # fmt: skip


def test_the_objects_have_their_versions_one_name_and_one_label():
    assert {kind: one["apiVersion"] for kind, one in OBJECTS.items()} == VERSIONS
    assert {one["metadata"]["name"] for one in OBJECTS.values()} == {"gradus"}
    assert all(one["metadata"]["labels"] == LABELS for one in OBJECTS.values())


def test_all_select_the_same_pods():
    assert DEPLOYMENT["selector"]["matchLabels"] == DEPLOYMENT["template"]["metadata"]["labels"] == LABELS
    assert OBJECTS["Service"]["spec"]["selector"] == LABELS
    for kind in ("PodDisruptionBudget", "ServiceMonitor"):
        assert OBJECTS[kind]["spec"]["selector"]["matchLabels"] == LABELS
    assert OBJECTS["ScaledObject"]["spec"]["scaleTargetRef"] == {"name": "gradus"}


def test_the_server_gets_options_that_it_has():
    arguments = CONTAINER["args"]
    assert not unknown(arguments)
    keys = Path(arguments[arguments.index("--api-keys") + 1])
    mounts = {mount["mountPath"]: mount for mount in CONTAINER["volumeMounts"]}
    assert mounts[str(keys.parent)]["readOnly"] and "subPath" not in mounts[str(keys.parent)]
    # clients in the cluster call it by the service's name
    assert arguments[arguments.index("--allowed-host") + 1] == OBJECTS["Service"]["metadata"]["name"]


def test_every_mount_has_its_volume_and_what_the_image_writes_is_mounted():
    volumes = {volume["name"] for volume in POD["volumes"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in CONTAINER["volumeMounts"]}
    assert set(mounts.values()) == volumes
    written = yaml.safe_load(last(inherited(STAGES, "cuda"), "VOLUME"))
    assert {*written, "/tmp"} <= mounts.keys()
    claims = [
        volume["persistentVolumeClaim"]["claimName"] for volume in POD["volumes"] if "persistentVolumeClaim" in volume
    ]
    assert claims == [OBJECTS["PersistentVolumeClaim"]["metadata"]["name"]]


def test_probes_ask_public_routes_on_the_servers_port():
    (port,) = CONTAINER["ports"]
    assert port == {"name": "http", "containerPort": int(last(inherited(STAGES, "cuda"), "EXPOSE"))}
    paths = {}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = CONTAINER[probe]["httpGet"]
        assert asked["path"] in PUBLIC and asked["port"] == port["name"]
        paths[probe] = asked["path"]
    # a server that loads, or that has lost its engine for a moment, must not be killed for it
    assert paths == {
        "startupProbe": "/health/ready",
        "readinessProbe": "/health/ready",
        "livenessProbe": "/health/live",
    }
    start = CONTAINER["startupProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] >= DEPLOYMENT["progressDeadlineSeconds"] >= 1800
    (service,) = OBJECTS["Service"]["spec"]["ports"]
    assert service["targetPort"] == port["name"]


def test_the_grace_period_holds_the_pause_the_drain_and_the_engines_end():
    program, pause = CONTAINER["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "sleep"
    assert POD["terminationGracePeriodSeconds"] > int(pause) + ServerConfig().drain_timeout + GOODBYE_S


def test_the_container_has_no_rights_that_it_does_not_need():
    pod, own = POD["securityContext"], CONTAINER["securityContext"]
    user = last(inherited(STAGES, "cuda"), "USER")
    assert f"{pod['runAsUser']}:{pod['runAsGroup']}" == user and pod["runAsNonRoot"]
    assert pod["fsGroup"] == pod["runAsGroup"] and pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert own == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert POD["automountServiceAccountToken"] is False
    assert CONTAINER["resources"]["limits"]["nvidia.com/gpu"] == 1 and CONTAINER["resources"]["limits"]["memory"]


def test_secrets_are_referred_to_and_never_written_down():
    assert "Secret" not in OBJECTS
    (keys,) = [volume["secret"] for volume in POD["volumes"] if "secret" in volume]
    used = {keys["secretName"], *(entry["valueFrom"]["secretKeyRef"]["name"] for entry in CONTAINER["env"])}
    (endpoint,) = OBJECTS["ServiceMonitor"]["spec"]["endpoints"]
    used.add(endpoint["authorization"]["credentials"]["name"])
    assert used == {"gradus"} and keys["defaultMode"] & 0o022 == 0
    made = re.search(
        r"kubectl create secret generic gradus((?:.*\\\n)*.*)", (FOLDER.parent / "README.md").read_text()
    ).group(1)
    for name in ("keys.yaml", endpoint["authorization"]["credentials"]["key"]):
        assert f"--from-file={name}" in made


def test_what_watches_asks_for_what_is_measured(known):
    (endpoint,) = OBJECTS["ServiceMonitor"]["spec"]["endpoints"]
    assert endpoint["path"] in MONITORED and endpoint["port"] == OBJECTS["Service"]["spec"]["ports"][0]["name"]
    annotations = DEPLOYMENT["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/path"] in MONITORED and annotations["prometheus.io/port"] == "8000"
    (trigger,) = OBJECTS["ScaledObject"]["spec"]["triggers"]
    assert read(trigger["metadata"]["query"]) and not unmeasured(trigger["metadata"]["query"], known)


def test_kubectl_reads_the_files(tmp_path):
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not here")
    for name in FILES:
        shutil.copy(FOLDER / name, tmp_path)
    (tmp_path / "kustomization.yaml").write_text(f"resources: [{', '.join(FILES)}]\n")
    answer = subprocess.run(["kubectl", "kustomize", str(tmp_path)], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert {one["kind"] for one in yaml.safe_load_all(answer.stdout)} == OBJECTS.keys()
