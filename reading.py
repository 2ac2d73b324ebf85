"""What comes from outside, read or refused: text, JSON, tables, the fields of an entry, and images.

    a file          ─read_text─▶ text ─parse_json | json_lines | parse_tsv─▶ entries ─fields─▶ values of known types
    an image cell   ─locate─▶ a path, bytes or base64 ─open_image─▶ RGB pixels, as stored

Everything that other people wrote passes here, and nothing else needs to know how files go wrong. What cannot be read raises
InputError, which names the file, the place in it, the field, what was expected and what was found.

    encoding    UTF-8; UTF-8, UTF-16 or UTF-32 where a byte-order mark declares it; anything else is refused, with its byte
    lines       only \\n (or \\r\\n) ends one: U+2028 is a character of a text; blank lines are skipped
    null        a field that is null is a field that is not there
    images      16 bits are scaled to 8; transparency is laid on white; EXIF's orientation is not applied, for boxes refer to
                the pixels as stored
"""

import base64
import binascii
import codecs
import csv
import io
import json
import math
import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image


class InputError(ValueError):
    """The user's input is wrong: the message names the file or flag, what was expected and what was found."""


# ── 1. files → entries ──────────────────────────────────────────────────────────────────────────────────────────────
MARKS = {  # a UTF-32 mark begins with a UTF-16 mark, and comes first
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}


def read_text(path: Path) -> str:
    """The text of a file, without its byte-order mark. Raises InputError with the offset of the first byte that is no text."""
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"{path}: expected a file; found none that can be read: {error.strerror}") from error
    mark = next((mark for mark in MARKS if raw.startswith(mark)), b"")
    try:
        text = raw[len(mark) :].decode(MARKS.get(mark, "utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: {not_text(raw, len(mark) + error.start)}") from error
    if "\0" in text:  # UTF-16 without its mark, or no text at all
        raise InputError(f"{path}: {not_text(raw, raw.index(0))}")
    return text


def not_text(raw: bytes, offset: int) -> str:
    return f"expected text in UTF-8, or in UTF-16 with a byte-order mark; found byte 0x{raw[offset]:02x} at offset {offset}"


def parse_json(text: str, place: object) -> Any:
    """The value of a JSON text. Raises InputError with its place."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: not JSON: {error}") from error


def read_json(path: Path) -> Any:
    """The value of a JSON file."""
    return parse_json(read_text(path), path)


def read_object(path: Path) -> dict:
    """The object that a JSON file holds, which a run wrote."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected an object; found {shown(value)}")
    return value


def json_lines(path: Path) -> list[tuple[int, str]]:
    """(number, text) of each line of a JSON-lines file that is not blank. Raises InputError for one JSON list."""
    text = read_text(path)
    if text.lstrip().startswith("[") and is_json(text) and "\n" in text.strip():
        raise InputError(f"{path}: expected a JSON object a line; found one JSON list")
    return [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def parse_tsv(text: str, place: object) -> list[dict[str, str]]:
    """The rows of a table with tabs, by the names in its first line. Quoted cells may hold line ends."""
    csv.field_size_limit(2**31 - 1)
    try:
        return list(csv.DictReader(io.StringIO(text, newline=""), delimiter="\t", restkey="surplus"))
    except csv.Error as error:
        raise InputError(f"{place}: not a table with tabs: {error}") from error


def read_xlsx(path: Path) -> list[dict[str, Any]]:
    """The rows of a workbook's first sheet, by the names in its first line. Raises InputError, also without openpyxl."""
    try:
        import openpyxl  # no requirement: only VLMEvalKit's predictions come so
    except ImportError as error:
        raise InputError(f"{path}: reading .xlsx takes openpyxl: run `pip install openpyxl`, or save it as .tsv") from error
    try:
        header, *rows = openpyxl.load_workbook(path, read_only=True, data_only=True).worksheets[0].iter_rows(values_only=True)
    except (OSError, ValueError, KeyError, IndexError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: not a workbook: {first_line(error)}") from error
    return [dict(zip(header, row)) for row in rows if any(cell is not None for cell in row)]


# ── 2. entries → fields ─────────────────────────────────────────────────────────────────────────────────────────────
class Field(NamedTuple):
    """What a field of an entry holds. `read` gives its value, and raises ValueError or TypeError for any other."""

    expected: str
    read: Callable[[Any], Any]
    required: bool = True  # a field that is not is None where it is missing or null


def optional(field: Field) -> Field:
    return field._replace(required=False)


def require(holds: bool) -> None:
    if not holds:
        raise ValueError


def text_of(value: Any) -> str:
    require(isinstance(value, str) and value.strip() != "")
    return value


def id_of(value: Any) -> str:
    """7, 7.0 and "7" are one id: tools change the type on their way."""
    if isinstance(value, float):
        require(value.is_integer())
        value = int(value)
    require(not isinstance(value, bool) and (isinstance(value, int) or (isinstance(value, str) and value != "")))
    return str(value)


def ids_of(value: Any) -> list[str]:
    require(isinstance(value, list))
    return [id_of(one) for one in value]


def pixels_of(value: Any) -> int:
    require(not isinstance(value, bool) and isinstance(value, int | float) and value >= 1 and float(value).is_integer())
    return int(value)


def size_of(value: Any) -> tuple[int, int]:
    require(isinstance(value, list | tuple) and len(value) == 2)
    return pixels_of(value[0]), pixels_of(value[1])


def box_of(value: Any) -> tuple[float, float, float, float]:
    require(isinstance(value, list) and len(value) == 4)
    require(all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in value))
    return tuple(value)


def flag_of(value: Any) -> bool:
    require(not isinstance(value, list | dict) and str(value).strip().lower() in FLAGS)
    return FLAGS[str(value).strip().lower()]


def object_of(value: Any) -> dict:
    require(isinstance(value, dict))
    return value


def list_of(value: Any) -> list:
    require(isinstance(value, list))
    return value


FLAGS = {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}
ANY = Field("anything", lambda value: value)
TEXT = Field("a text", text_of)
ID = Field("a whole number or a text", id_of)
IDS = Field("a list of ids", ids_of)
PIXELS = Field("a whole number above 0", pixels_of)
SIZE = Field("[width, height], two whole numbers above 0", size_of)
BOX = Field("[x, y, width, height], four finite numbers", box_of)
FLAG = Field("0 or 1", flag_of)
OBJECT = Field("an object", object_of)
LIST = Field("a list", list_of)


def shown(value: Any) -> str:
    """A value as a message shows it. What is long is counted, not printed: it may be an image in base64."""
    text = repr(value)
    if len(text) <= 80:
        return text
    return f"{type(value).__name__} of {len(value)} {'characters' if isinstance(value, str) else 'entries'}"


def fields(entry: Any, table: dict[str, Field], place: object) -> dict[str, Any]:
    """The values of an entry's fields, as the table has them. Raises InputError with the entry's place and all wrong fields."""
    if not isinstance(entry, dict):
        raise InputError(f"{place}: expected an object; found {shown(entry)}")
    values, wrong = {}, []
    for name, field in table.items():
        values[name] = None
        if entry.get(name) is None and not field.required:
            continue
        try:
            values[name] = field.read(entry.get(name))
        except (ValueError, TypeError, OverflowError):
            wrong.append(f"{name}: expected {field.expected}; found {shown(entry[name]) if name in entry else 'nothing'}")
    if wrong:
        raise InputError(f"{place}: {'; '.join(wrong)}")
    return values


def unique(ids: list[str], place: object, what: str) -> None:
    """Raises InputError for an id that two entries have."""
    seen: set[str] = set()
    for one in ids:
        if one in seen:
            raise InputError(f"{place}: {what}: expected ids that differ; found {one!r} twice")
        seen.add(one)


# ── 3. images ───────────────────────────────────────────────────────────────────────────────────────────────────────
ORIENTATION = 0x0112  # EXIF's tag: how a viewer turns the image
LONGEST_PATH = 4096  # characters; a longer text is base64
# Whatever Pillow's decoders raise: SyntaxError for a broken PNG, ValueError for a chunk above its limits, ...
UNDECODABLE = (OSError, SyntaxError, ValueError, TypeError, EOFError, KeyError, IndexError, OverflowError, MemoryError,
               struct.error, Image.DecompressionBombError)  # fmt: skip


def locate(cell: Any, folder: Path) -> Any:
    """Where an image cell has its pixels: a path, bytes, base64 text or a Pillow image; None if it has none.

    Files are looked for from `folder`. A cell may be wrapped in a list of one or as {"bytes" | "path" | "url"}. A text without
    a dot is a path if there is such a file, else base64. Raises InputError for anything else.
    """
    while isinstance(cell, list | tuple | dict):
        if isinstance(cell, dict):
            named = [cell[key] for key in ("bytes", "path", "url") if cell.get(key) not in (None, "", b"")]
            cell = named[0] if named else None
        elif len(cell) > 1:
            raise InputError(f"expected one image; found {len(cell)}")
        else:
            cell = cell[0] if cell else None
    if cell is None or (isinstance(cell, float) and math.isnan(cell)) or (isinstance(cell, str) and not cell.strip()):
        return None
    if isinstance(cell, str) and not cell.startswith("data:"):
        if re.match(r"\w+://", cell):
            raise InputError(f"expected an image; found an address, {shown(cell)}: nothing is downloaded")
        is_path = len(cell) < LONGEST_PATH and ("." in cell or (folder / cell).is_file())
        return folder / cell if is_path else cell
    if isinstance(cell, Path):
        return folder / cell
    if not isinstance(cell, str | bytes | Image.Image):
        raise InputError(f"expected an image: a path, bytes or base64; found {shown(cell)}")
    return cell


def open_image(source: Any, place: object = None) -> Image.Image:
    """The stored pixels as RGB, from anything that `locate` knows. Raises InputError with `place`, which is the path where
    there is one and no other is given."""
    place = source if place is None and isinstance(source, Path) else place or "an image"
    try:
        source = locate(source, Path())
    except InputError as error:
        raise InputError(f"{place}: {error}") from error
    if source is None:
        raise InputError(f"{place}: the image is missing")
    try:
        if isinstance(source, Image.Image):
            return as_rgb(source)
        with Image.open(io.BytesIO(encoded(source)) if isinstance(source, str | bytes) else source) as image:
            return as_rgb(image)
    except UNDECODABLE as error:
        raise InputError(f"{place}: the image does not decode: {reason(error)}") from error


def encoded(source: str | bytes) -> bytes:
    """The bytes of an image that is given as bytes, base64 or a data URL."""
    if isinstance(source, bytes):
        return source
    head, _, tail = source.rpartition(",") if source.startswith("data:") else ("", "", source)
    try:
        return base64.b64decode("".join(tail.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("neither a file nor base64") from error


def reason(error: BaseException) -> str:
    """An error of Pillow's in words, without an address in memory."""
    if isinstance(error, Image.UnidentifiedImageError):
        return "not an image of a known format"
    return first_line(error)


def first_line(error: BaseException) -> str:
    """What an error says, on one line; its name if it says nothing."""
    return next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)[:300]


def as_rgb(image: Image.Image) -> Image.Image:
    """RGB of 8 bits: greys of 16 and 32 bits are scaled, transparency is laid on white."""
    if image.mode.startswith("I") or image.mode == "F":
        values = np.asarray(image).astype(float)
        white = 65535.0 if image.mode.startswith("I;16") or values.max() > 255 else 255.0
        image = Image.fromarray((values.clip(0, white) * (255 / white)).round().astype(np.uint8))
    if image.has_transparency_data:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return image.convert("RGB")


def probe(path: Path) -> tuple[tuple[int, int], int]:
    """Size (width, height) of an image as it is stored, and its EXIF orientation (1: as stored). Raises InputError if the image
    does not decode."""
    try:
        with Image.open(path) as image:
            size, orientation = image.size, image.getexif().get(ORIENTATION, 1)
            image.draft("L", (1, 1))  # JPEG: decode at 1/8 of the size, enough to notice a truncated file
            image.load()
    except UNDECODABLE as error:
        raise InputError(f"{path}: the image does not decode: {reason(error)}") from error
    return size, orientation


# ── 4. a place to write ─────────────────────────────────────────────────────────────────────────────────────────────
def make_folder(folder: Path, flag: str) -> None:
    """Makes a folder and those above it. Raises InputError, naming the flag that asked for it, where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{flag} {folder}: expected a folder that is there or can be made: {error.strerror}") from error
