"""A benchmark's rows: files → raw rows, cells → values, and `Row`, one question as it is asked. Knows no benchmark.

    a file ─read_rows─▶ raw rows, {column: cell} ─(tasks.py)─▶ Row ─content─▶ the texts and images that a model reads
"""

import ast
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from config import InputError
from reading import json_lines, locate, open_image, parse_json, parse_tsv, read_text, shown


@dataclass(frozen=True)
class Row:
    """One question as it is asked. Images are decoded only by `content`: rows can be scored without them."""

    id: str
    question: str  # the whole prompt, options and answer format included; an image stands at its first <image k> mark
    answer: Any  # in the form of its kind
    kind: str  # see the table at the top
    options: dict[str, str] | None = None  # letter → text; for likelihoods: label → continuation
    images: tuple = ()  # PIL images, paths, bytes, base64 texts or {"bytes", "path"}; None where one is missing
    system: str = ""  # the system message; "": the chat template's own
    group: Any = None  # shared by the rows that count together: copies of a question, figures of a question
    meta: dict = field(default_factory=dict)  # "part", "by": the row's places in the breakdowns

    @property
    def lacks(self) -> str:
        """What an incomplete file leaves out, so that the row can be scored but not asked; "" if nothing."""
        return "image" if None in self.images else "options" if self.options == {} else "" if self.question else "question"


# ── 1. files → raw rows ───────────────────────────────────────────────────────────────────────────────────────────────

def read_rows(path: str | Path) -> list[dict]:
    """The raw rows of a .parquet, .json (a list, or a dict of id → row), .jsonl or .tsv file, with its images located.

    Raises InputError, naming file, row and column, if it is missing, malformed, empty or of another type.
    """
    path = Path(path)
    rows = parse(path)
    if not rows:
        raise InputError(f"{path}: expected rows; found an empty file")
    for position, row in enumerate(rows):
        if not isinstance(row, dict):
            raise InputError(f"{path}, row {position}: expected an object; found {shown(row)}")
    return [located(row, path, position) for position, row in enumerate(rows)]


def parse(path: Path) -> list:
    """The rows of a file. A VLMEvalKit TSV holds images in base64 or, for one that it has already, the index of that row."""
    if path.suffix == ".parquet":
        return read_parquet(path)
    if path.suffix == ".tsv":
        rows = parse_tsv(read_text(path), path)
        images = {row.get("index"): row.get("image") for row in rows}
        return [row | {"image": images.get(row["image"], row["image"])} if "image" in row else row for row in rows]
    if path.suffix == ".jsonl":
        return [parse_json(line, f"{path}, line {number}") for number, line in json_lines(path)]
    if path.suffix == ".json":
        text = read_text(path)
        rows = parse_json(text, path) if text.strip() else []
        if isinstance(rows, dict):  # {id: row}, or MMMU's {id: reply}
            return [{"id": name, **(row if isinstance(row, dict) else {"response": row})} for name, row in rows.items()]
        return rows if isinstance(rows, list) else [rows]
    raise InputError(f"{path}: expected .parquet, .json, .jsonl or .tsv; found {path.suffix or 'a name without an ending'}")


def read_parquet(path: Path) -> list[dict]:
    """The rows of a parquet file. Raises InputError if it is none."""
    # Not `datasets`: it is twice the size, imports in 1.5 s, loads a dict of rows as one row and a TSV's "None" as NaN,
    # and would save no more than this function. Only parquet needs pyarrow.
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_table(path).to_pylist()
    except (OSError, ValueError) as error:  # Arrow's errors are ValueErrors
        raise InputError(f"{path}: cannot be read: {error}") from error


def located(row: dict, path: Path, position: int) -> dict:
    """The row with its images as `locate` has them; several in a cell stay a list. Raises InputError, naming row and column."""
    found = dict(row)
    for column in row:
        if isinstance(column, str) and re.fullmatch(r"(decoded_)?image(_\d)?", column):
            try:
                several = isinstance(row[column], list) and len(row[column]) > 1
                found[column] = (
                    [locate(one, path.parent) for one in row[column]] if several else locate(row[column], path.parent)
                )
            except InputError as error:
                raise InputError(f"{path}, row {position}, column {column!r}: {error}") from error
    return found


# ── 2. cells → values ─────────────────────────────────────────────────────────────────────────────────────────────────

def blank(cell: Any) -> bool:
    """"nan" is what pandas makes of an empty cell; "None" and "NA" are options."""
    return cell is None or str(cell).strip() in ("", "nan")


def parsed(cell: Any) -> Any:
    """A list or an object that a table holds as a text, in JSON or as Python writes it; any other cell as it is."""
    if isinstance(cell, str) and cell.strip()[:1] in ("[", "{"):
        for read in (json.loads, ast.literal_eval):
            try:
                return read(cell)
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
    return cell


def texts_of(cell: Any, column: str) -> list[str]:
    """A list of texts, [] for an empty cell. Nulls that fill it up to a fixed length are left out. Raises InputError for
    anything else: a text is never split into its characters."""
    texts = [] if blank(cell) else parsed(cell)
    while isinstance(texts, list) and texts and texts[-1] is None:
        texts = texts[:-1]
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str | int | float) for text in texts):
        raise InputError(f"column {column!r}: expected a list of texts; found {shown(cell)}")
    return [str(text) for text in texts]


def number_of(cell: Any, column: str) -> int:
    """A whole number, also as 1.0 or "1.0", which is what tables make of it."""
    try:
        value = float(cell)
        if value.is_integer():
            return int(value)
    except (TypeError, ValueError):
        pass
    raise InputError(f"column {column!r}: expected a whole number; found {shown(cell)}")


# ── 3. what a model reads ─────────────────────────────────────────────────────────────────────────────────────────────

def content(row: Row) -> list[str | Image.Image]:
    """What a model reads, in order: texts and images. An image stands at its first <image k> mark; further marks of it stay
    words, and images without a mark come first. Raises InputError, naming the row."""
    images = [open_image(cell, f"row {row.id}, image {k}") for k, cell in enumerate(row.images, start=1)]
    parts: list = re.split(r"<image (\d+)>", row.question) if images else [row.question]  # text, k, text, ..., k, text
    marks = parts[1::2]
    for i, mark in enumerate(marks):
        if not 0 < int(mark) <= len(images):
            raise InputError(f"row {row.id}: the question names <image {mark}>; found {len(images)} images")
        parts[2 * i + 1] = f"<image {mark}>" if mark in marks[:i] else images[int(mark) - 1]
    unmarked = [image for k, image in enumerate(images, start=1) if str(k) not in marks]
    return unmarked + [part for part in parts if part != ""]
