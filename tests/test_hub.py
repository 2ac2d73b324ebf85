"""Backbones from the hub: from a server on the loopback address that behaves as the hub does, and from none."""

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from conftest import ROOT
from huggingface_hub import constants

import models
from config import InputError
from models import TINY, Policy, source_of
from support import plan

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {path.name: path.read_bytes() for path in TINY.iterdir()}
MODELS = {"org/tiny": FILES, "org/gpt": FILES | {"config.json": b'{"model_type": "gpt2"}'}, "org/empty": {"README.md": b"."}}


class Hub(BaseHTTPRequestHandler):
    """A model's revisions `main` and `v1`, its tree and its files."""

    def do_GET(self):
        api, name = "/api/models/", "/".join(self.path.removeprefix("/api/models").split("/")[1:3])
        path, files = self.path.partition("?")[0], MODELS.get(name)
        self.server.asked.append(f"{self.command} {path}")
        if files is None or "/revision/" in path and path.rpartition("/")[2] not in ("main", "v1", COMMIT):
            return self.answer(404, b"")
        if path.startswith(f"{api}{name}/tree/"):
            blobs = [{"type": "file", "path": f, "size": len(b), "oid": hashlib.sha1(b).hexdigest()} for f, b in files.items()]
            return self.answer(200, json.dumps(blobs).encode())
        if path.startswith(api):
            return self.answer(200, json.dumps({"id": name, "sha": COMMIT, "siblings": []}).encode())
        return self.answer(200, files[path.rpartition("/")[2]])

    do_HEAD = do_GET

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", hashlib.sha1(body).hexdigest())
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


def use(monkeypatch, address: str) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """The server that huggingface_hub then knows, and an empty cache."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.asked = []
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    use(monkeypatch, f"http://127.0.0.1:{server.server_address[1]}")
    yield server
    server.shutdown()


def test_a_model_of_the_hub_is_fetched_once_and_then_needs_no_network(hub, monkeypatch):
    assert source_of("org/tiny", weights=False) and not any("safetensors" in path for path in hub.asked)  # for a plan
    assert Policy.load("org/tiny").grid((84, 84)) == (6, 6)
    assert sum("safetensors" in path for path in hub.asked) >= 1 and "README" not in " ".join(hub.asked)
    folder, asked = source_of("org/tiny"), len(hub.asked)
    assert not any("/resolve/" in path for path in hub.asked[asked:])
    use(monkeypatch, "http://127.0.0.1:9")  # nobody listens there
    assert source_of("org/tiny") == folder


def test_a_revision_is_that_which_is_asked_for(hub):
    assert source_of("org/tiny@v1", weights=False).endswith(COMMIT)
    assert any(path.endswith("/revision/v1") for path in hub.asked)
    with pytest.raises(InputError, match="org/tiny@v2: cannot be loaded from the hub: RevisionNotFound|org/tiny@v2: .*404"):
        source_of("org/tiny@v2")


def test_another_architecture_is_refused_before_its_weights_are_fetched(hub):
    with pytest.raises(InputError, match="--backbone org/gpt: model_type .*expected one of qwen2_5_vl, .*found 'gpt2'"):
        Policy.load("org/gpt")
    assert hub.asked and not any("safetensors" in path for path in hub.asked)


@pytest.mark.parametrize("name, message", [
    ("org/nothing", "org/nothing: .*404"),
    ("org/empty", "expected one of tiny, .*org/name@revision.*found 'org/empty'"),
    ("org/a--b", "org/a--b: "),  # no name that the hub would take
])  # fmt: skip
def test_what_the_hub_does_not_have_is_one_line(hub, name, message):
    with pytest.raises(InputError, match=message) as error:
        source_of(name)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("address", ["http://127.0.0.1:9", "http://nowhere.invalid"])
def test_without_a_network_the_message_comes_at_once(hub, monkeypatch, address):
    """And what was cut off on the way is not taken for the model."""
    source_of("org/tiny", weights=False)
    use(monkeypatch, address)
    begun = time.monotonic()
    for load in (lambda: Policy.load("org/tiny"), lambda: Policy.load("hhj-ai/Evidence-RL-9B")):
        with pytest.raises(InputError, match="--backbone .*/.*: cannot be loaded from the hub: .*; else give a folder"):
            load()
    assert time.monotonic() - begun < 5


def test_a_backbone_is_refused_before_the_code_of_models_is_loaded(tmp_path):
    """Half of the seconds that the message took were spent on importing what it then had no use for."""
    code = """
import sys, train
status = train.main(["--backbone", "hhj-ai/Evidence-RL-9B", "--out", "none"])
print(status, [name for name in ("peft", "transformers.modeling_utils", "transformers.generation") if name in sys.modules])
"""
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_CACHE": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=os.environ | nowhere, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "2 []" and done.stderr.count("\n") == 1
    assert "--backbone hhj-ai/Evidence-RL-9B: cannot be loaded from the hub" in done.stderr
    assert not (tmp_path / "none").exists()


def test_a_network_that_says_nothing_is_not_waited_for_long(hub, monkeypatch):
    monkeypatch.setattr(models, "PATIENCE", 0.2)
    monkeypatch.setattr(Hub, "answer", lambda *_: time.sleep(1))
    begun = time.monotonic()
    with pytest.raises(InputError, match="imeout"):
        source_of("org/tiny")
    assert time.monotonic() - begun < 3


def test_a_plan_reads_no_weights(hub):
    source = source_of("org/tiny", weights=False)
    assert plan.count(plan.meta_model(source)) > 500_000 and not any("safetensors" in path for path in hub.asked)
