"""benchmarks/replies.py: a file of each tool is scored as our own is, is refused where it is of other rows, and comes back."""

import csv
import json
import re
import sys
from pathlib import Path

import pytest
from test_tasks import RAW, SAMPLES, needs_samples, right_answer

import evaluate
from benchmarks import harness, replies
from benchmarks.harness import Asking
from benchmarks.prompts import PROMPTS
from benchmarks.tasks import find_rows, to_rows
from config import InputError


def source(tmp_path: Path, name: str, raws: list[dict]) -> Asking:
    (tmp_path / f"{name}.json").write_text(json.dumps(raws))
    return Asking(source=tmp_path)


def lines(path: Path, entries: list[dict]) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def table(path: Path, entries: list[dict]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(entries[0]), delimiter="\t")
        writer.writeheader()
        writer.writerows(entries)
    return path


MMBENCH = [RAW["mmbench"] | {"index": i} for i in (5, 6, 7, 1_000_005)]
BLIND = [RAW["vlmsareblind"] | {"groundtruth": gold} for gold in ("4", "m", "4,5", "Yes")]
PIQA = [RAW["piqa"] | {"goal": goal, "label": i} for i, goal in enumerate(("red", "blue"))]


# ── each tool ──
@pytest.mark.parametrize("name, raws, entries, value, n", [
    ("vlmsareblind", BLIND, [  # 0.7.3, and older: one list a request, one a repetition
        {"doc_id": 0, "target": "4", "filtered_resps": "{4}"}, {"doc_id": 1, "target": "m", "filtered_resps": ["n"]},
        {"doc_id": "2", "target": "4,5", "filtered_resps": [["(4, 5)"]]}], 2 / 3, 3),
    ("mmmu", [RAW["mmmu"], RAW["mmmu"] | {"id": "validation_Art_1"}], [  # its id counts, not its position
        {"doc_id": 0, "target": "B", "filtered_resps": "B", "mmmu_acc": {"id": "validation_Art_1"}},
        {"doc_id": 1, "target": "B", "filtered_resps": "A", "mmmu_acc": {"id": RAW["mmmu"]["id"]}}], 0.5, 2),
    ("mmbench", MMBENCH, [{"doc_id": 3, "filtered_resps": "C", "submission": {"index": 5}},
                          {"doc_id": 9, "filtered_resps": "B", "submission": {"index": "1000005"}}], 0.0, 1),
    ("piqa", PIQA, [{"doc_id": 1, "doc": {"goal": "blue"}, "filtered_resps": [["-3.5", "False"], ["-1.25", "True"]]},
                    {"doc_id": 0, "doc": {"goal": "red"}, "filtered_resps": [-3.5, -1.25]}], 0.5, 2),
    ("arc_easy", [RAW["arc_easy"], RAW["arc_easy"] | {"id": "y"}], [
        {"doc_id": 0, "doc": {"id": "y"}, "filtered_resps": [[-4, False], [-3, False], [-1, True], [-2, False]]}], 1.0, 1),
])  # fmt: skip
def test_logged_samples(tmp_path, name, raws, entries, value, n):
    result = harness.score_file(lines(tmp_path / "samples.jsonl", entries), name, source(tmp_path, name, raws))
    assert (result["value"], result["n"]) == (pytest.approx(value), n)


@pytest.mark.parametrize("entries, value", [
    ([{"index": 6, "question": "?", "answer": "B", "prediction": "B. elm"}, {"index": 7, "question": "?", "answer": "B",
                                                                             "prediction": "two\nlines"}], 0.5),
])  # fmt: skip
def test_vlmevalkits_predictions(tmp_path, entries, value):
    asking = source(tmp_path, "mmbench", MMBENCH)
    for path in (table(tmp_path / "p.tsv", entries), tmp_path / "p_.json"):
        if path.suffix == ".json":
            path.write_text(json.dumps(entries))
        result = harness.score_file(path, "mmbench", asking)
        assert (result["value"], result["n"], result["not_given"]) == (value, 2, 2)
        assert "| *rows without a reply in the file: 2* |" in harness.table_rows(result)


def test_a_workbook_is_read_where_openpyxl_is_there(tmp_path, monkeypatch):
    asking, path = source(tmp_path, "countbench", [RAW["countbench"]] * 2), tmp_path / "p.xlsx"
    path.write_bytes(b"PK")
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(InputError, match=r"p\.xlsx: reading .xlsx takes openpyxl: run `pip install openpyxl`"):
        harness.score_file(path, "countbench", asking)
    monkeypatch.undo()
    openpyxl = pytest.importorskip("openpyxl")
    with pytest.raises(InputError, match=r"p\.xlsx: not a workbook"):
        harness.score_file(path, "countbench", asking)
    book = openpyxl.Workbook()
    for line in (["index", "answer", "prediction"], [0, 3, 3], [1, 3, None], [None, None, None]):
        book.active.append(line)
    book.save(path)
    result = harness.score_file(path, "countbench", asking)
    assert (result["value"], result["n"], result["unparsable"]) == (0.5, 2, 1)


def test_the_other_split_of_a_table_is_left_out(tmp_path):
    asking = source(tmp_path, "mmmu", [RAW["mmmu"]])
    dev = {"index": 0, "id": "dev_Art_1", "split": "dev", "prediction": "A"}
    path = table(tmp_path / "p.tsv", [dev, dev | {"id": RAW["mmmu"]["id"], "split": "validation", "prediction": "B"}])
    assert harness.score_file(path, "mmmu", asking)["n"] == 1
    with pytest.raises(InputError, match="found no reply to a row of the split 'validation'"):
        harness.score_file(table(tmp_path / "p.tsv", [dev]), "mmmu", asking)


def test_vlmevalkits_own_table_gives_the_index_its_meaning(tmp_path):
    asking = source(tmp_path, "countbench", [RAW["countbench"] | {"index": i} for i in (8, 9)])
    entries = [{"index": 9, "prediction": "3"}]
    result = harness.score_file(table(tmp_path / "p.tsv", entries), "countbench", asking)
    assert result["items"][0]["id"] == "1"


# ── refused ──
@pytest.mark.parametrize("name, raws, entries, message", [
    ("mmbench", MMBENCH, [{"index": 8, "prediction": "A"}], "entry 1: expected one of 4 rows of mmbench, as 5; found the id 8"),
    ("mmbench", MMBENCH, [{"index": 5, "prediction": "A"}] * 2, "entry 2: row 5 has a reply already"),
    ("mmbench", MMBENCH, [{"index": 5, "prediction": ["A"]}], "entry 1: prediction: expected a text; found"),
    ("mmbench", MMBENCH, [{"index": 5, "prediction": "A"}, {"index": 6}], "entry 2: expected the fields id, response"),
    ("mmbench", MMBENCH, [{"index": 5, "answer": "A"}], "expected the fields id, response .ours.; doc_id, doc, filtered_resps"),
    ("vlmsareblind", BLIND, [{"doc_id": 4, "filtered_resps": "4"}], "found the position 4"),
    ("vlmsareblind", BLIND, [{"doc_id": 1, "target": "4", "filtered_resps": "4"}],
     "position 1 is row 1 of vlmsareblind, whose answer is 'M', not '4': these are replies to other rows"),
    ("vlmsareblind", BLIND, [{"index": 1, "answers": "4", "prediction": "4"}], "index 1 is row 1 of vlmsareblind, whose"),
    ("vlmsareblind", BLIND, [{"index": 0, "prediction": "4"}, {"doc_id": 1, "filtered_resps": "4"}],
     "entry 2: expected index, prediction .VLMEvalKit., as in entry 1; found doc_id"),
    ("vlmsareblind", BLIND, [{"doc_id": 1, "target": "m", "filtered_resps": [["m"], ["n"]]}],
     "entry 1, row 1: filtered_resps: expected a text, or a list of one"),
    ("piqa", PIQA, [{"doc_id": 1, "doc": {"goal": "red"}, "filtered_resps": [-1, -2]}],
     "row 1 of piqa, whose goal is 'blue', not 'red'"),
    ("piqa", PIQA, [{"doc_id": 1, "doc": {"goal": "blue"}, "filtered_resps": ["yes", "no"]}], "expected a log-likelihood an"),
    ("piqa", PIQA, [{"doc_id": 1, "doc": {"goal": "blue"}, "filtered_resps": [-1]}], "row 1: expected 2 finite"),
])  # fmt: skip
def test_what_is_not_the_benchmarks_is_refused(tmp_path, name, raws, entries, message, capsys):
    lines(tmp_path / "samples.jsonl", entries)
    source(tmp_path, name, raws)
    assert evaluate.main(["--score", str(tmp_path / "samples.jsonl"), "--benchmark", name, "--source", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert re.search(message, error), error


# ── written ──
@needs_samples
@pytest.mark.parametrize("tool, name", [
    *((tool, name) for tool in replies.WRITERS for name in PROMPTS if tool in PROMPTS[name]),
    ("lmms-eval", "piqa"), ("lmms-eval", "arc_easy"),
])  # fmt: skip
def test_what_is_written_is_read_again(tmp_path, tool, name):
    asking, raws = Asking(source=SAMPLES), find_rows(name, SAMPLES)
    rows = [row for row in to_rows(name, raws) if not row.lacks]
    said = {row.id: right_answer(row) for row in rows}
    said |= {key: "none of them" for key, reply in list(said.items())[::3] if isinstance(reply, str)}
    path = tmp_path / f"file.{'tsv' if tool == 'vlmevalkit' else 'jsonl'}"
    replies.write_replies(tool, name, raws, said, path)
    result = harness.score_file(path, name, asking)
    asked = [row.id for row in rows if tool == "vlmevalkit" or name != "hallusionbench" or row.meta["seen"]]
    own = lines(tmp_path / "own.jsonl", [{"id": key, "response": said[key]} for key in said])
    verdicts = {item["id"]: item["correct"] for item in harness.score_file(own, name, asking)["items"]}
    assert {item["id"]: item["correct"] for item in result["items"]} == {key: verdicts[key] for key in asked}


def test_replies_as_writes_beside_the_runs_own(tmp_path, backbone, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    source(tmp_path, "piqa", PIQA)
    flags = ["--backbone", str(backbone), "--source", str(tmp_path), "--benchmarks", "piqa", "--replies-as", "lmms-eval"]
    assert evaluate.main(flags) == 0 and "piqa_lmms-eval.jsonl" in capsys.readouterr().err
    path = tmp_path / "runs" / "random-base" / "benchmarks" / "piqa_lmms-eval.jsonl"
    assert [json.loads(line)["doc_id"] for line in path.read_text().splitlines()] == [0, 1]
    assert harness.score_file(path, "piqa", Asking(source=tmp_path))["n"] == 2
