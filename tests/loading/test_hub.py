"""Models by hub id, against a small hub on this machine."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from gradus.loading.fetch.hub import is_hub_id
from tests.loading.builders import CHATML, write_folder

COMMIT = "a" * 40
LOAD = """
import sys, json, os
from gradus.errors import GradusError
from gradus.loading import open_checkpoint

class Notes:
    tasks, done = [], 0
    def begin(self, task, total): self.tasks.append(task)
    def advance(self, amount): Notes.done += amount
    def note(self, text): pass

try:
    checkpoint = open_checkpoint(sys.argv[1], progress=Notes())
    files = sorted(str(path.relative_to(checkpoint.source)) for path in checkpoint.source.rglob("*") if path.is_file())
    found = {"files": files, "source": str(checkpoint.source), "done": Notes.done, "tasks": Notes.tasks}
    if os.environ.get("WEIGHTS"):
        import torch  # takes as long as ten of these processes
        from gradus.loading import load_model
        model = load_model(checkpoint, dtype=torch.float32, device="cpu")
        found["norm"] = model.state_dict()["norm.weight"].tolist()
    print(json.dumps(found))
except GradusError as error:
    print(json.dumps({"error": f"{type(error).__name__}: {error}"}))
"""


class Hub(BaseHTTPRequestHandler):
    """The three requests that downloading a model takes."""

    folder: ClassVar[Path]
    asked: ClassVar[list[str]] = []

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def answer(self):
        self.asked.append(self.path)
        parts = self.path.split("?")[0].strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            name = "/".join(parts[2:4])
            if name == "org/gated":
                return self.refuse(403, "GatedRepo")
            if name == "org/broken":
                return self.refuse(500, "")
            if name != "org/tiny":
                return self.refuse(404, "RepoNotFound")
            files = sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())
            siblings = [{"rfilename": file} for file in files]
            if "tree" in parts:
                listed = [{"type": "file", "path": file, "size": 1, "oid": "0" * 40} for file in files]
                return self.send(json.dumps(listed).encode(), "application/json")
            body = {"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings, "private": False, "gated": False}
            return self.send(json.dumps(body).encode(), "application/json")
        wanted = self.folder / "/".join(parts[4:])
        if parts[:3] == ["org", "tiny", "resolve"] and wanted.is_file():  # then the commit, and the file
            return self.send(wanted.read_bytes(), "application/octet-stream")
        return self.refuse(404, "EntryNotFound")

    def send(self, content, kind):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def refuse(self, status, code):
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments):
        pass


@pytest.fixture
def hub(tmp_path):
    Hub.folder = write_folder(tmp_path / "tiny", shards=2)
    Hub.asked.clear()
    (Hub.folder / "pytorch_model.bin").write_bytes(b"pickled")
    (Hub.folder / "modeling.py").write_text("raise SystemExit")
    (Hub.folder / "onnx").mkdir()
    (Hub.folder / "onnx" / "config.json").write_text("{}")
    (Hub.folder / "additional_chat_templates").mkdir()
    (Hub.folder / "additional_chat_templates" / "tool_use.jinja").write_text(CHATML)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def load(name: str, home: Path, **environment: str) -> dict:
    """Run in a separate process: the library reads its settings when it is imported."""
    settings = {"HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, name],
        env=os.environ | settings | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_hub_id_downloads_what_is_needed_and_nothing_else(hub, tmp_path):
    online = load("org/tiny", tmp_path / "home", HF_ENDPOINT=hub, WEIGHTS="1")
    assert online["files"] == [
        "additional_chat_templates/tool_use.jinja",
        "config.json",
        "generation_config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert len(online["norm"]) == 64
    assert online["tasks"][0] == "fetching org/tiny from the hub"
    assert online["done"] == sum((Hub.folder / name).stat().st_size for name in online["files"])
    assert not any(".bin" in path or ".py" in path or "onnx" in path for path in Hub.asked)

    offline = load("org/tiny", tmp_path / "home", HF_HUB_OFFLINE="1", HF_ENDPOINT="http://127.0.0.1:9")
    assert offline["files"] == online["files"] and offline["source"] == online["source"]


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("org/missing", {}, "the hub has no such model"),
        ("org/gated", {}, "accept the terms on its page, then set HF_TOKEN"),
        ("org/broken", {}, "cannot be had from the hub"),
        (
            "org/tiny",
            {"HF_HUB_OFFLINE": "1"},
            "not in the hub's cache, and the hub cannot be reached (is HF_HUB_OFFLINE",
        ),
        ("org/tiny", {"HF_ENDPOINT": "http://127.0.0.1:9"}, "not in the hub's cache, and the hub cannot be reached"),
    ],
)
def test_a_model_that_cannot_be_had_gets_one_line(hub, tmp_path, name, settings, words):
    error = load(name, tmp_path / "home", **({"HF_ENDPOINT": hub} | settings))["error"]
    assert error.startswith(f"CheckpointError: {name}: ") and words in error
    assert "\n" not in error and len(error) < 400


FETCH = """
import sys, json, time, pathlib
from gradus.errors import GradusError
from gradus.loading.fetch import hub
from gradus.loading.progress import Silent

start = time.monotonic()
try:
    found = hub.fetch("org/tiny", sys.argv[1], pathlib.Path(sys.argv[2]), Silent()).read_text()
except GradusError as error:
    found = str(error)
print(json.dumps({"found": found, "seconds": time.monotonic() - start}))
"""


def fetched(name: str, folder: Path, endpoint: str, **environment: str) -> dict:
    settings = {"HF_HOME": str(folder), "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, "-c", FETCH, name, str(folder / "into")]
    environment = os.environ | settings | {"HF_ENDPOINT": endpoint} | environment
    return json.loads(subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120).stdout)


def test_one_file_of_a_repository_is_fetched_alone(hub, tmp_path):
    assert fetched("config.json", tmp_path, hub)["found"] == (Hub.folder / "config.json").read_text()
    assert [path.name for path in (tmp_path / "into").iterdir() if path.is_file()] == ["config.json"]
    assert "has no other.gguf" in fetched("other.gguf", tmp_path, hub)["found"]


def test_a_hub_that_is_not_there_is_given_up_at_once(tmp_path):
    """The library itself would try for half a minute; packages are waiting."""
    for environment in ({}, {"HF_HUB_OFFLINE": "1"}):
        tried = fetched("config.json", tmp_path, "http://127.0.0.1:9", **environment)
        assert "the hub cannot be reached" in tried["found"] and tried["seconds"] < 8


@pytest.mark.parametrize("name", ["org/name", "HuggingFaceTB/SmolLM2-135M-Instruct", "a/b_c.d-1"])
def test_hub_ids_are_recognized(name):
    assert is_hub_id(name)


@pytest.mark.parametrize(
    "name", ["name", "a/b/c", "../b", "a/..", "./b", "/b", "a/", "a b/c", "a/b\n", "~/models", "a/.b"]
)
def test_what_is_no_hub_id_is_not_sent_anywhere(name):
    assert not is_hub_id(name)
