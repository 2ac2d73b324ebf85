"""Files, fields and images as people have them: what is read, and what a refusal says."""

import base64
import codecs
import io
import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import reading
from reading import InputError


# ── files ──
@pytest.mark.parametrize("mark, encoding", [
    (b"", "utf-8"), (codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
])  # fmt: skip
def test_declared_encodings_are_read(tmp_path, mark, encoding):
    (tmp_path / "x.json").write_bytes(mark + '{"名": "ü"}'.encode(encoding))
    assert reading.read_json(tmp_path / "x.json") == {"名": "ü"}


@pytest.mark.parametrize("raw, offset", [
    ("café".encode("latin-1"), 3), ("ab狗".encode("gbk"), 2), ("a".encode("utf-16-le"), 1),
    (codecs.BOM_UTF8 + b"ab\xff", 5), (codecs.BOM_UTF16_LE + b"a\0\x00\xdc", 4), (b"\x1f\x8b\x08\0", 1),
])  # fmt: skip
def test_other_bytes_are_refused_with_their_offset(tmp_path, raw, offset):
    path = tmp_path / "x.jsonl"
    path.write_bytes(raw)
    with pytest.raises(InputError, match=rf"x\.jsonl: expected text in UTF-8, .*; found byte 0x\w\w at offset {offset}$"):
        reading.read_text(path)


def test_only_a_line_feed_ends_a_line_and_blank_lines_are_none(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"a": "one\u2028two\x85three"}\r\n\n  \n2\n', encoding="utf-8", newline="")
    lines = [(n, reading.parse_json(line, "")) for n, line in reading.json_lines(tmp_path / "x.jsonl")]
    assert lines == [(1, {"a": "one\u2028two\x85three"}), (4, 2)]


@pytest.mark.parametrize("text, why", [("{", "not JSON"), ("[" * 100_000, "not JSON"), ("", "not JSON")])
def test_what_is_no_json_is_refused(tmp_path, text, why):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError, match=rf"x\.json: {why}"):
        reading.read_json(tmp_path / "x.json")


def test_a_list_is_no_json_lines(tmp_path):
    (tmp_path / "x.jsonl").write_text(json.dumps([{"a": 1}, {"a": 2}], indent=1))
    with pytest.raises(InputError, match="expected a JSON object a line; found one JSON list"):
        reading.json_lines(tmp_path / "x.jsonl")


def test_missing_files_and_folders_that_cannot_be_made(tmp_path):
    with pytest.raises(InputError, match="absent.json: expected a file; .*No such file"):
        reading.read_json(tmp_path / "absent.json")
    (tmp_path / "file").write_text("")
    for folder in ("file", "file/below"):
        with pytest.raises(InputError, match=f"--out .*{folder}: expected a folder"):
            reading.make_folder(tmp_path / folder, "--out")
    reading.make_folder(tmp_path / "a" / "b", "--out")
    assert (tmp_path / "a" / "b").is_dir()


# ── fields ──
@pytest.mark.parametrize("field, value, read", [
    (reading.ID, 7, "7"), (reading.ID, "7", "7"), (reading.ID, 7.0, "7"), (reading.IDS, [1, "b"], ["1", "b"]),
    (reading.PIXELS, 160.0, 160), (reading.BOX, [1, 2.5, 3, 4], (1, 2.5, 3, 4)), (reading.SIZE, [4, 3], (4, 3)),
    (reading.FLAG, "0", False), (reading.FLAG, 1, True), (reading.FLAG, False, False), (reading.FLAG, 0.0, False),
])  # fmt: skip
def test_fields_are_read(field, value, read):
    assert reading.fields({"x": value}, {"x": field}, "here") == {"x": read}


@pytest.mark.parametrize("field, value", [
    (reading.ID, True), (reading.ID, ""), (reading.ID, 1.5), (reading.ID, [1]), (reading.ID, None), (reading.IDS, 3),
    (reading.PIXELS, 0), (reading.PIXELS, "160"), (reading.PIXELS, float("nan")), (reading.PIXELS, True), (reading.TEXT, " "),
    (reading.TEXT, 0), (reading.BOX, ["1", 2, 3, 4]), (reading.BOX, [1, 2, 3]), (reading.BOX, [1, 2, 3, 4, 0.9]),
    (reading.BOX, {"x": 1}), (reading.BOX, [None] * 4), (reading.BOX, [1, 2, 3, float("inf")]), (reading.FLAG, "x"),
    (reading.FLAG, [0]), (reading.OBJECT, "x"), (reading.LIST, {}), (reading.SIZE, [1]),
])  # fmt: skip
def test_other_values_are_refused(field, value):
    with pytest.raises(InputError, match=r"^here: x: expected .*; found "):
        reading.fields({"x": value}, {"x": field}, "here")


def test_null_is_not_there_and_all_wrong_fields_are_told():
    table = {"a": reading.optional(reading.TEXT), "b": reading.TEXT, "c": reading.BOX}
    assert reading.fields({"a": None, "b": "x", "c": [0, 0, 1, 1]}, table, "here")["a"] is None
    with pytest.raises(InputError, match=r"here: b: expected a text; found nothing; c: expected \[x, y, .*found 3"):
        reading.fields({"c": 3}, table, "here")
    with pytest.raises(InputError, match="here: expected an object; found None"):
        reading.fields(None, table, "here")


def test_long_values_are_counted_not_printed():
    assert reading.shown("A" * 500) == "str of 500 characters" and reading.shown("short") == "'short'"


# ── images ──
def png(mode: str = "RGB", color="red", size: tuple[int, int] = (4, 4)) -> bytes:
    file = io.BytesIO()
    Image.new(mode, size, color).save(file, "PNG")
    return file.getvalue()


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def with_chunk(name: bytes, data: bytes) -> bytes:
    """A PNG with one more chunk, right after its header."""
    return (whole := png())[:33] + chunk(name, data) + whole[33:]


PACKED = zlib.compress(bytes(80 << 20))  # 80 MiB of zeros: above Pillow's limit
GIANT = png("1", 0, (8, 8))[:16] + struct.pack(">II", 20_000, 20_000) + png("1", 0, (8, 8))[24:]
GIANT = GIANT[:29] + struct.pack(">I", zlib.crc32(GIANT[12:29])) + GIANT[33:]


def cells(folder: Path) -> list:
    (folder / "images").mkdir()
    for name in ("a.png", "images/abc"):
        (folder / name).write_bytes(png())
    text = base64.b64encode(png()).decode()
    path = str(folder / "a.png")
    return [png(), text, f"data:image/png;base64,{text}", folder / "a.png", {"bytes": png(), "path": "x"}, {"path": path},
            {"bytes": None, "path": path}, {"url": f"data:image/png;base64,{text}"}, [text], [{"bytes": png()}],
            Image.new("RGB", (4, 4), "red"), text[:20] + "\n" + text[20:]]  # fmt: skip


@pytest.mark.parametrize("which", range(12))
def test_every_cell_is_an_image(tmp_path, which):
    assert reading.open_image(cells(tmp_path)[which], "row 3").getcolors() == [(16, (255, 0, 0))]


@pytest.mark.parametrize("cell", ["a.png", "images/abc", {"path": "a.png"}, ["a.png"], {"url": "a.png"}])
def test_files_are_looked_for_from_their_folder(tmp_path, cell):
    cells(tmp_path)
    assert reading.open_image(reading.locate(cell, tmp_path)).size == (4, 4)


@pytest.mark.parametrize("cell", [None, "", " ", [], {}, {"bytes": None, "path": None}, float("nan"), [None], {"path": ""}])
def test_empty_cells_hold_no_image(cell):
    assert reading.locate(cell, Path()) is None
    with pytest.raises(InputError, match="row 3: the image is missing"):
        reading.open_image(cell, "row 3")


@pytest.mark.parametrize("cell, found", [
    ("https://host/x.png", "found an address"), ({"url": "http://host/x.png"}, "found an address"),
    (["a.png", "b.png"], "found 2"), (7, "found 7"), (True, "found True"),
])  # fmt: skip
def test_what_is_no_image_cell_is_refused(cell, found):
    with pytest.raises(InputError, match=found):
        reading.locate(cell, Path())


@pytest.mark.parametrize("raw", [
    png()[:40], b"no image", with_chunk(b"zTXt", b"x\0\0" + PACKED), with_chunk(b"iCCP", b"x\0\0" + PACKED), GIANT,
], ids=["cut", "text", "text chunk", "profile", "giant"])  # fmt: skip
def test_a_decoder_that_gives_up_is_a_message_with_the_path(tmp_path, raw):
    path = tmp_path / "x.png"
    path.write_bytes(raw)
    for read in (reading.open_image, reading.probe):
        with pytest.raises(InputError, match=r"x\.png: the image does not decode: "):
            read(path)


@pytest.mark.parametrize("cell", ["A" * 5000, "data:image/png;base64," + "A" * 5000, b"A" * 5000, "A" * 5000 + "!"])
def test_base64_is_never_printed(cell):
    with pytest.raises(InputError) as error:
        reading.open_image(cell, "row 3")
    assert str(error.value).startswith("row 3: the image does not decode") and "AAAAA" not in str(error.value)


@pytest.mark.parametrize("suffix", ["png", "tiff"])
def test_16_bits_are_scaled(tmp_path, suffix):
    values = np.array([[0, 257, 25700, 65535]], dtype=np.uint16)
    Image.fromarray(values).save(tmp_path / f"x.{suffix}")
    assert [p[0] for p in reading.open_image(tmp_path / f"x.{suffix}").get_flattened_data()] == [0, 1, 100, 255]


@pytest.mark.parametrize("mode, clear", [("RGBA", (0, 0, 0, 0)), ("LA", (0, 0))])
def test_transparency_is_laid_on_white(mode, clear):
    assert reading.open_image(png(mode, clear)).getpixel((0, 0)) == (255, 255, 255)


def test_a_transparent_palette_is_laid_on_white():
    file = io.BytesIO()
    Image.new("P", (4, 4), 0).save(file, "PNG", transparency=0)
    assert reading.open_image(file.getvalue()).getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_the_pixels_are_those_stored(tmp_path, orientation):
    exif = Image.Exif()
    exif[reading.ORIENTATION] = orientation
    Image.new("RGB", (16, 8)).save(tmp_path / "x.jpg", exif=exif)
    assert reading.probe(tmp_path / "x.jpg") == ((16, 8), orientation)
    assert reading.open_image(tmp_path / "x.jpg").size == (16, 8)
