"""COCO is fetched once and whole, whatever happens on the way: from a server on the loopback address, a kilobyte an archive."""

import hashlib
import io
import json
import os
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import Process, get_context
from pathlib import Path

import pytest

from config import InputError
from support import coco

NAMES = ("annotations_trainval2017.zip", "val2017.zip")


def zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    return buffer.getvalue()


CONTENT = {
    f"/{NAMES[0]}": zipped({"annotations/instances_val2017.json": b'{"images": []}', "annotations/captions_val2017.json": b""}),
    f"/{NAMES[1]}": zipped({"val2017/": b"", "val2017/1.jpg": b"one" * 3000, "val2017/2.jpg": b"two" * 3000}),
}


class Server(ThreadingHTTPServer):
    """What it was asked, and how it misbehaves."""

    asked: list[tuple[str, str | None]]
    ranges, cut, wait = True, 0, 0.0  # answers ranges; bytes after which it hangs up, once; seconds between two kilobytes


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server, body, wanted = self.server, CONTENT[self.path], self.headers.get("Range")
        server.asked.append((self.path, wanted))
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and server.ranges else 0
        self.send_response(206 if wanted and server.ranges else 200)
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        cut, server.cut = server.cut, 0
        for at in range(start, cut or len(body), 1024):
            self.wfile.write(body[at : min(at + 1024, cut or len(body))])
            time.sleep(server.wait)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    """A server of both archives, which `coco.ARCHIVES` then names."""
    server = Server(("127.0.0.1", 0), Handler)
    server.asked = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(coco, "ARCHIVES", archives(f"http://127.0.0.1:{server.server_address[1]}"))
    yield server
    server.shutdown()


def archives(address: str) -> tuple[coco.Archive, ...]:
    """The real table with the address, sizes and digests of these archives."""
    sizes = {path: (len(body), hashlib.md5(body).hexdigest()) for path, body in CONTENT.items()}
    return tuple(a._replace(url=f"{address}/{a.name}", size=sizes[f"/{a.name}"][0], md5=sizes[f"/{a.name}"][1])
                 for a in coco.ARCHIVES)  # fmt: skip


def whole(folder: Path) -> bool:
    """Both images and the annotations, and nothing else in the cache."""
    images = {p.name: p.read_bytes()[:3] for p in (folder / "images").iterdir()}
    assert images == {"1.jpg": b"one", "2.jpg": b"two"}
    assert json.loads((folder / "instances.json").read_text()) == {"images": []}
    return [p.name for p in folder.parent.iterdir()] == ["val2017"]


def test_it_is_fetched_once(server, tmp_path):
    cache = tmp_path / "a" / "cache"
    assert whole(coco.fetch(cache)) and len(server.asked) == 2
    assert whole(coco.fetch(cache)) and len(server.asked) == 2


def test_a_body_that_ends_early_is_told_and_gone_on_with(server, tmp_path):
    server.cut = 150
    with pytest.raises(InputError, match=r"after 150 of \d+ bytes.*The same command goes on.*put .*val2017.zip into"):
        coco.fetch(tmp_path)
    assert whole(coco.fetch(tmp_path))
    assert server.asked == [(f"/{NAMES[0]}", None), (f"/{NAMES[0]}", "bytes=150-"), (f"/{NAMES[1]}", None)]


def test_a_server_without_ranges_sends_all_of_it_again(server, tmp_path):
    (tmp_path / f"{NAMES[1]}.partial").write_bytes(b"what is not of it")
    server.ranges = False
    assert whole(coco.fetch(tmp_path))


def test_a_wrong_digest_is_told_and_what_came_is_not_kept(server, tmp_path, monkeypatch):
    wrong = [coco.ARCHIVES[0], coco.ARCHIVES[1]._replace(md5="0" * 32)]
    monkeypatch.setattr(coco, "ARCHIVES", wrong)
    with pytest.raises(InputError, match=f"val2017.zip.partial: expected the MD5 checksum {'0' * 32}; found"):
        coco.fetch(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [NAMES[0]]


def test_archives_put_there_by_hand_need_no_network(tmp_path, monkeypatch):
    monkeypatch.setattr(coco, "ARCHIVES", archives("http://127.0.0.1:9"))  # nobody listens there
    with pytest.raises(InputError, match="--data coco: .*by hand, or give --data a folder"):
        coco.fetch(tmp_path)
    for path, body in CONTENT.items():
        (tmp_path / path[1:]).write_bytes(body)
    (tmp_path / NAMES[1]).write_bytes(b"half of it")
    with pytest.raises(InputError, match="val2017.zip: expected the MD5 checksum"):
        coco.fetch(tmp_path)
    assert (tmp_path / NAMES[1]).read_bytes() == b"half of it"  # another's file is left to him
    (tmp_path / NAMES[1]).write_bytes(CONTENT[f"/{NAMES[1]}"])
    assert whole(coco.fetch(tmp_path))


def test_a_full_disk_is_told(server, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(coco.shutil, "copyfileobj", full)
    with pytest.raises(InputError, match="No space left on device"):
        coco.fetch(tmp_path)
    monkeypatch.undo()
    assert not (tmp_path / "val2017").exists()


def started(cache: Path, rank: int = 0) -> Process:
    """The same in a process of its own, forked from this one: torch need not be imported again."""

    def fetch() -> None:
        os.environ["LOCAL_RANK"] = str(rank)
        coco.fetch(cache)

    process = get_context("fork").Process(target=fetch, daemon=True)  # it ends with this one, whatever happens
    process.start()
    return process


def test_killed_in_the_middle_it_goes_on_and_others_of_the_machine_wait(server, tmp_path, monkeypatch):
    monkeypatch.setattr(coco, "CHUNK", 1024)
    server.wait = 0.05  # a second for the images
    waiting, fetching = started(tmp_path, rank=1), started(tmp_path)
    partial = tmp_path / f"{NAMES[1]}.partial"
    while not (partial.is_file() and partial.stat().st_size > 2000):
        assert fetching.is_alive()
        time.sleep(0.01)
    fetching.kill()
    fetching.join()
    assert waiting.is_alive() and not (tmp_path / "val2017").exists()
    (tmp_path / "val2017.unpacking" / "images").mkdir(parents=True)  # what a kill at the end leaves
    (tmp_path / "val2017.unpacking" / "images" / "half.jpg").write_bytes(b"h")
    server.wait = 0.0
    assert whole(coco.fetch(tmp_path))
    waiting.join(60)
    assert waiting.exitcode == 0
    assert [wanted is not None for path, wanted in server.asked if path == f"/{NAMES[1]}"] == [False, True]
