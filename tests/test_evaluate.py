"""evaluate.py on a run: what a whole command leaves is read back, and what is not there is refused."""

import json
from pathlib import Path

import evaluate
import train
from config import TINY_RECIPE


def test_the_whole_command(tmp_path, monkeypatch, capsys, small_world):
    """`python train.py`, shortened: everything a run promises is there, and evaluate.py reads it."""
    monkeypatch.chdir(tmp_path)
    flags = ["--steps", "1", "--eval-prompts", "1", "--eval-group", "2", "--group-size", "4"]
    assert train.main(flags) == 0
    out, text = Path("runs/tiny-answer-ced-0"), capsys.readouterr().out
    files = {"config.json", "before.json", "log.jsonl", "state.pt", "adapter", "results.json"}
    drawn = {"learning_curves.png", "audit_sheet.png"}
    assert {p.name for p in out.iterdir()} == files | drawn and all((out / name).stat().st_size > 10_000 for name in drawn)
    assert "| conflict | all |" in text and "--prompts-per-step 4" in text and f"--steps {TINY_RECIPE['steps']}" not in text

    assert evaluate.main(["--run", str(out), "--split", "conflict", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)["conflict"]
    assert scores["all"]["n"] == 4 and scores == json.loads((out / "results.json").read_text())["after"]["conflict"]
    assert evaluate.main(["--compare", str(out)]) == 0 and "| answer-ced | 0 |" in capsys.readouterr().out
    assert evaluate.main(["--run", str(out), "--split", "nowhere"]) == 2

    assert train.main(flags) == 2 and "holds this run; continue it with --resume" in capsys.readouterr().err


def test_evaluate_refuses_what_is_not_there(tmp_path, capsys):
    assert evaluate.main(["--run", str(tmp_path)]) == 2
    assert evaluate.main(["--compare", str(tmp_path)]) == 2
    assert "results.json is missing" in capsys.readouterr().err
