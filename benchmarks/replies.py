"""Replies in the files of other tools: read into a response a row, and written as those tools write them.

    tool         file                                      an entry has               and belongs to the row
    ours         .jsonl, .json, .tsv, .parquet             id, response               of that id; none may be missing
    lmms-eval    *_samples_TASK.jsonl, of --log_samples    doc_id, filtered_resps     of the id in its metric (`ID_COLUMNS`),
                                                                                      else at that position of the split
    lm_eval      samples_TASK_*.jsonl                      doc_id, doc,               of the id in doc, else at that position
                                                           filtered_resps
    VLMEvalKit   MODEL_DATASET.xlsx, .tsv or .json         index, prediction          of its id columns; else of that index in
                                                                                      VLMEvalKit's table; else at that position

A file of another tool may hold some of the rows: those are scored. An entry that is no row of the benchmark is refused. Where a
position alone names a row, the gold answer (or, in lm_eval's files, the question) that stands beside the reply has to be that
row's: two tools may count the rows of a benchmark differently, and every verdict would be of another question.
"""

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from answers import normalize_word
from benchmarks.prompts import PROMPTS
from benchmarks.rows import Row, blank, read_rows
from benchmarks.tasks import LIKELIHOODS, align, benchmark, row_id, to_rows
from config import InputError
from reading import ID, OBJECT, Field, fields, read_xlsx, require, shown

# ── 1. cells ──────────────────────────────────────────────────────────────────────────────────────────────────────────

def said_of(value: Any) -> str:
    """A reply as a table holds it: an empty cell is an empty reply, and a spreadsheet makes a number of "4"."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    require(value is None or (isinstance(value, str | int | float) and not isinstance(value, bool)))
    return "" if value is None else str(value)


def logged_of(value: Any) -> str:
    """lmms-eval wraps a reply in one list for each request, and one for each repetition; or leaves it."""
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    require(isinstance(value, str))
    return value


def lls_of(value: Any) -> list[float]:
    """Log-likelihoods: a number or [number, is it the greedy one] an option. Both tools may write numbers as texts."""
    require(isinstance(value, list) and len(value) > 0)
    return [float(one[0] if isinstance(one, list) else one) for one in value]


REPLY = Field("a text, or a number an option", lambda value: value)  # which of them, its row tells
PREDICTION = Field("a text", said_of)
TEXT_LOGGED = Field("a text, or a list of one", logged_of)
LLS_LOGGED = Field("a log-likelihood an option", lls_of)
ID_COLUMNS: dict[str, tuple[str, ...]] = {  # where lmms-eval logs what names a row: its metric, then the columns in it
    "mmmu": ("mmmu_acc", "id"), "mathvista": ("submission", "question_id"), "mmbench": ("submission", "index"),
    "hallusionbench": ("aAcc", *benchmark("hallusionbench").id),
}  # fmt: skip


# ── 2. formats ────────────────────────────────────────────────────────────────────────────────────────────────────────
Name = tuple[str, str]  # ("id" | "index" | "position", its value)


@dataclass(frozen=True)
class Format:
    """What an entry of a tool's file holds. An entry is of the first format of `FORMATS` whose fields it has."""

    tool: str
    fields: dict[str, Field]
    named: Callable[[str, dict], Name]  # benchmark, entry → its row
    response: str  # the field with the reply
    gold: Callable[[dict], Any] = lambda entry: None  # the answer that the entry states; None if none
    whole: bool = False  # whether there must be a reply to every row


def joined(columns: Sequence[str], entry: Any) -> str | None:
    """The id that columns of an entry make; None unless it has them all."""
    if not columns or not isinstance(entry, dict) or any(entry.get(column) is None for column in columns):
        return None
    return "_".join(ID.read(entry[column]) if not isinstance(entry[column], str) else entry[column] for column in columns)


def named_by_log(name: str, entry: dict) -> Name:
    metric, *columns = ID_COLUMNS.get(name, ("",))
    own = joined(columns, entry.get(metric))
    return ("id", own) if own else ("position", ID.read(entry["doc_id"]))


def named_by_doc(name: str, entry: dict) -> Name:
    own = joined(benchmark(name).id, entry["doc"])
    return ("id", own) if own else ("position", ID.read(entry["doc_id"]))


def named_by_table(name: str, entry: dict) -> Name:
    own = joined(benchmark(name).id, entry)
    return ("id", own) if own else ("index", ID.read(entry["index"]))


FORMATS = (
    Format("ours", {"id": ID, "response": REPLY}, lambda name, entry: ("id", ID.read(entry["id"])), "response", whole=True),
    Format("lm_eval", {"doc_id": ID, "doc": OBJECT, "filtered_resps": REPLY}, named_by_doc, "filtered_resps"),
    Format("lmms-eval", {"doc_id": ID, "filtered_resps": REPLY}, named_by_log, "filtered_resps",
           gold=lambda entry: entry.get("target")),
    Format("VLMEvalKit", {"index": ID, "prediction": PREDICTION}, named_by_table, "prediction",
           gold=lambda entry: entry.get("answer", entry.get("answers"))),
)  # fmt: skip


def format_of(entry: dict, place: object) -> Format:
    """Raises InputError where an entry has the fields of no format."""
    for form in FORMATS:
        if form.fields.keys() <= entry.keys():
            return form
    known = "; ".join(f"{', '.join(form.fields)} ({form.tool})" for form in FORMATS)
    raise InputError(f"{place}: expected the fields {known}; found {', '.join(map(str, entry))}")


# ── 3. entries → responses ────────────────────────────────────────────────────────────────────────────────────────────

def read_entries(path: Path) -> list[dict]:
    """The entries of a file of replies. Raises InputError."""
    entries = read_xlsx(path) if path.suffix == ".xlsx" else read_rows(path)
    if not entries:
        raise InputError(f"{path}: expected replies; found an empty table")
    return entries


def read_replies(path: Path, name: str, raws: Sequence[dict], rows: Sequence[Row]) -> tuple[dict[str, Any], Format]:
    """The responses of a file by the ids of a benchmark's rows, and its format. Another tool's may be to some of the rows.

    Raises InputError, naming the entry, for a field of another type, an id that is not the benchmark's or that another entry
    has, and a reply that belongs to another row.
    """
    entries = read_entries(path)
    form, names, found = format_of(entries[0], path), Names(name, raws, rows), {}
    if form.whole:
        replied = {str(entry.get("id")) for entry in entries}
        asked = [row for row in rows if not row.lacks or row.id in replied]
        return dict(zip((row.id for row in asked), align(asked, entries))), form
    splits = benchmark(name).split.split("+")
    for number, entry in enumerate(entries, start=1):
        if entry.get("split", splits[0]) not in splits:
            continue  # VLMEvalKit's MMMU has two splits in one table, and as for rows the other one is left out
        place = f"{path}, entry {number}"
        if format_of(entry, place) is not form:
            raise InputError(f"{place}: expected {', '.join(form.fields)} ({form.tool}), as in entry 1; found "
                             f"{', '.join(map(str, entry))}")  # fmt: skip
        fields(entry, form.fields, place)
        row = names.row(*form.named(name, entry), entry, form, place)
        if row.id in found:
            raise InputError(f"{place}: row {row.id} has a reply already")
        found[row.id] = response_of(form, entry, row, place)
    if not found:
        raise InputError(f"{path}: found no reply to a row of the split {benchmark(name).split!r}")
    return found, form


def response_of(form: Format, entry: dict, row: Row, place: str) -> Any:
    """The reply: a text, or log-likelihoods where the row is answered by these. Raises InputError."""
    field = form.fields[form.response]
    if form.response == "filtered_resps":
        field = LLS_LOGGED if row.kind in LIKELIHOODS else TEXT_LOGGED
    return fields(entry, {form.response: field}, f"{place}, row {row.id}")[form.response]


class Names:
    """The rows of a benchmark by id, by the index of VLMEvalKit's own table, and by position in the split."""

    def __init__(self, name: str, raws: Sequence[dict], rows: Sequence[Row]) -> None:
        own = [row_id(benchmark(name), raw, position) for position, raw in enumerate(raws)]
        logged = [one for one, raw in zip(own, raws) if str(raw.get("visual_input")) != "0"]  # lmms-eval asks with images alone
        self.name, self.raws = name, dict(zip(own, raws))
        self.ids = {row.id: row for row in rows}
        self.of = {"id": {one: one for one in self.ids},
                   "index": {one: one for one in self.ids}
                   | {str(raw["index"]): one for one, raw in zip(own, raws) if "index" in raw},
                   "position": {str(position): one for position, one in enumerate(logged)}}  # fmt: skip

    def row(self, how: str, value: str, entry: dict, form: Format, place: str) -> Row:
        """The row that an entry belongs to. Raises InputError where there is none, or where it contradicts the entry."""
        row = self.ids.get(self.of[how].get(value))
        if row is None:
            raise InputError(f"{place}: expected one of {len(self.ids)} rows of {self.name}, as {next(iter(self.ids))}; found "
                             f"the {how} {value}")  # fmt: skip
        why = contradiction(form.gold(entry), entry.get("doc"), row, self.raws.get(row.id, {})) if how != "id" else ""
        if why:
            raise InputError(f"{place}: {how} {value} is row {row.id} of {self.name}, {why}: these are replies to other rows")
        return row


def contradiction(gold: Any, doc: Any, row: Row, raw: dict) -> str:
    """Why a reply that stands beside this gold answer, or this row of lm_eval's, cannot belong to the row; "" if it can."""
    if not blank(gold) and not any(same(gold, own) for own in golds(row)):
        return f"whose answer is {shown(next(iter(golds(row))))}, not {shown(gold)}"
    for column, cell in (doc or {}).items():
        if isinstance(cell, str) and isinstance(raw.get(column), str) and cell.strip() != raw[column].strip():
            return f"whose {column} is {shown(raw[column])}, not {shown(cell)}"
    return ""


def golds(row: Row) -> list[str]:
    """The forms in which tools state a row's answer: a letter or a text, one of several, a pair."""
    answers = list(row.answer) if isinstance(row.answer, list | tuple | set) else [row.answer]
    options = [row.options[answer] for answer in answers if row.options and answer in row.options]
    return [*map(str, answers), *options, ",".join(map(str, answers)), str(answers)]


def same(a: Any, b: Any) -> bool:
    """Whether two answers are the same number or, if they are none, the same words."""
    try:
        return float(a) == float(b)
    except (TypeError, ValueError):
        return normalize_word(str(a)) == normalize_word(str(b))


# ── 4. responses → the files of other tools ───────────────────────────────────────────────────────────────────────────
WRITERS = ("vlmevalkit", "lmms-eval")


def check_writable(tool: str, name: str) -> None:
    """Raises InputError for a benchmark that the tool does not have."""
    if tool not in PROMPTS.get(name, {"lmms-eval": None}):
        raise InputError(f"--replies-as {tool}: expected a benchmark that it has; found {name}")


def write_replies(tool: str, name: str, raws: Sequence[dict], replies: dict[str, Any], path: Path) -> None:
    """The replies to those rows that have one, by row id, as `tool` writes them: VLMEvalKit's .tsv, lmms-eval's .jsonl."""
    names = Names(name, raws, to_rows(name, raws))
    entry = table_entry if tool == "vlmevalkit" else log_entry
    of = {own: raw.get("index", position) for position, (own, raw) in enumerate(names.raws.items())}
    place = of if tool == "vlmevalkit" else {own: int(position) for position, own in names.of["position"].items()}
    entries = [entry(name, place[own], names.raws[own], names.ids[own], replies[own]) for own in place if own in replies]
    path.write_text(as_table(entries) if tool == "vlmevalkit" else "".join(json.dumps(one) + "\n" for one in entries))


def mathvista_columns(raw: dict, row: Row) -> dict:
    """What VLMEvalKit's scorer of MathVista reads: the hub's metadata as columns, the choices, and the right one's letter."""
    told = raw.get("metadata") or raw
    cells = {"question": raw["query"], "task": told.get("task"), "skills": told.get("skills")}
    if row.options:
        right = next(letter for letter, text in row.options.items() if text == row.answer)
        cells |= {"choices": list(row.options.values()), "answer_option": right}
    return cells


COLUMNS: dict[str, Callable[[dict, Row], dict]] = {  # where a column of VLMEvalKit's table is not the hub's of that name
    "countbench": lambda raw, row: {"answer": row.answer},
    "hallusionbench": lambda raw, row: {"index": row.id, "answer": row.answer.title(), "l2-category": raw["subcategory"]},
    "vlmsareblind": lambda raw, row: {"question": raw["prompt"], "answers": raw["groundtruth"]},
    "mathvista": mathvista_columns,
    "mmmu": lambda raw, row: {"category": row.meta["part"], **(row.options or {})},
    "scienceqa": lambda raw, row: {"answer": row.answer, **row.options},
}


def table_entry(name: str, position: int, raw: dict, row: Row, reply: str) -> dict:
    """A line of VLMEvalKit's: the columns of the row, which its scorers read, and the prediction."""
    cells = {column: cell for column, cell in raw.items() if isinstance(cell, str | int | float) and "image" not in column}
    return cells | {"index": position} | COLUMNS.get(name, lambda raw, row: {})(raw, row) | {"prediction": reply}


def as_table(entries: Sequence[dict]) -> str:
    """Entries as a table with tabs, quoted where they hold line ends."""
    file = io.StringIO()
    columns = list(dict.fromkeys(column for entry in entries for column in entry))
    table = csv.DictWriter(file, columns, delimiter="\t", lineterminator="\n")
    table.writeheader()
    table.writerows(entries)
    return file.getvalue()


def log_entry(name: str, position: int, raw: dict, row: Row, reply: Any) -> dict:
    """A line of lmms-eval's: one reply is not wrapped; log-likelihoods are pairs, each with whether it is the greedy one."""
    target = raw.get("groundtruth", ",".join(row.answer) if isinstance(row.answer, tuple) else row.answer)
    wrapped = reply if isinstance(reply, str) else [[ll, False] for ll in reply]
    entry = {"doc_id": position, "input": row.question, "target": str(target), "filtered_resps": wrapped}
    if metric := ID_COLUMNS.get(name):
        entry[metric[0]] = {column: raw.get(column, row.id) for column in metric[1:]}
    return entry
