"""COCO val2017 with its instances, fetched once into a cache folder: what the paper's questions are derived from.

    cache/val2017.zip.partial   half of an archive: the next start goes on where it ends
    cache/val2017.zip           a whole one, or one put there by hand; its checksum is looked at before it is opened
    cache/val2017.unpacking     removed and begun anew
    cache/val2017               instances.json and images/: renamed to this name last, so it is whole or not there

A kill at any moment leaves something that the next start completes. The images keep the licenses of their authors on Flickr;
the annotations are CC BY 4.0 (cocodataset.org).
"""

import hashlib
import os
import shutil
import time
import urllib.request
import zipfile
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from config import InputError

CHUNK = 1 << 20  # bytes read at a time
TIMEOUT = 30.0  # seconds without a byte
POLL = 0.2  # seconds between looks of the processes that wait for another's download


class Archive(NamedTuple):
    """A zip of which some members are kept."""

    url: str
    size: int  # bytes
    md5: str
    kept: str  # members whose name begins so
    place: str  # where they go: a folder ending in /, or a file

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


SERVER = "http://images.cocodataset.org"
ARCHIVES = (
    Archive(f"{SERVER}/annotations/annotations_trainval2017.zip", 252_907_541, "f4bbac642086de4f52a3fdda2de5fa2c",
            "annotations/instances_val2017.json", "instances.json"),
    Archive(f"{SERVER}/zips/val2017.zip", 815_585_330, "442b8da7639aecaf257c1dceb8ba8c80", "val2017/", "images/"),
)  # fmt: skip


def fetch(cache: Path) -> Path:
    """The folder, fetched first if it is not there: by one process of a machine, the others wait for it. Raises InputError that
    names the files to put where by hand."""
    cache = Path(cache).expanduser()
    folder = cache / "val2017"
    if folder.is_dir():
        return folder
    if int(os.environ.get("LOCAL_RANK", "0")):
        while not folder.is_dir():  # if the one that fetches fails, torchrun ends those that wait
            time.sleep(POLL)
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        for archive in ARCHIVES:
            download(archive, cache)
        unpack(cache, folder)
    except (OSError, HTTPException, zipfile.BadZipFile) as error:
        names = " and ".join(archive.url for archive in ARCHIVES)
        raise InputError(
            f"--data coco: {error}. The same command goes on where this one ended; without a network, put {names} into {cache} "
            "by hand, or give --data a folder of your own"
        ) from error
    return folder


def download(archive: Archive, cache: Path) -> None:
    """Brings the archive whole into the cache; what is there of it already is not asked for again."""
    whole = cache / archive.name
    partial = whole.with_name(f"{archive.name}.partial")
    if not whole.is_file():
        receive(archive, partial)
        try:
            check(archive, partial)
        except OSError:
            partial.unlink()  # or it would be met again
            raise
        os.replace(partial, whole)


def receive(archive: Archive, partial: Path) -> None:
    """Appends the rest of the archive to its part. Raises OSError if the connection ends before the archive does."""
    start = partial.stat().st_size if partial.is_file() else 0
    if start >= archive.size:
        return
    request = urllib.request.Request(archive.url, headers={"Range": f"bytes={start}-"} if start else {})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        start = start if answer.status == 206 else 0  # a server that knows no ranges sends all of it
        bar = tqdm(total=archive.size, initial=start, desc=archive.name, unit="B", unit_scale=True)
        with bar, partial.open("ab" if start else "wb") as file:
            while part := answer.read(CHUNK):
                file.write(part)
                bar.update(len(part))
    if (size := partial.stat().st_size) < archive.size:
        raise OSError(f"{archive.url}: the connection ended after {size:,} of {archive.size:,} bytes")


def check(archive: Archive, path: Path) -> None:
    """Raises OSError if the file is not the archive."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "md5").hexdigest()
    if found != archive.md5:
        raise OSError(f"{path}: expected the MD5 checksum {archive.md5}; found {found}")


def unpack(cache: Path, folder: Path) -> None:
    """Makes the folder of both archives, and removes them."""
    unpacking = folder.with_name(f"{folder.name}.unpacking")
    shutil.rmtree(unpacking, ignore_errors=True)
    (unpacking / "images").mkdir(parents=True)
    for archive in ARCHIVES:
        check(archive, cache / archive.name)
        with zipfile.ZipFile(cache / archive.name) as file:
            members = [name for name in file.namelist() if name.startswith(archive.kept) and not name.endswith("/")]
            for name in tqdm(members, desc=f"unpacking {archive.name}"):
                place = unpacking / (archive.place + Path(name).name if archive.place.endswith("/") else archive.place)
                with file.open(name) as source, place.open("wb") as target:
                    shutil.copyfileobj(source, target)
    os.replace(unpacking, folder)
    for archive in ARCHIVES:
        (cache / archive.name).unlink()
