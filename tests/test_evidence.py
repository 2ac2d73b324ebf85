"""The comparison of kinds of evidence: its runs, its table, and what it measures of a region."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import SMALL, first

from config import EVIDENCE, load_config
from studies import evidence
from support.checkpoint import claim


def test_every_kind_is_trained_at_every_seed_and_the_sweeps_at_the_first(tmp_path):
    runs = evidence.runs_of([3, 4], True, tmp_path, ["--steps", "2"])
    assert list(runs)[: 2 * len(EVIDENCE)] == [f"{kind}/answer-ced-{seed}" for kind in EVIDENCE for seed in (3, 4)]
    swept = {name: config for name, (config, _) in runs.items() if name.startswith("attributed, ")}
    assert {(c.evidence_mass, c.evidence_steps) for c in swept.values()} == {(0.5, 6), (0.95, 6), (0.8, 1), (0.8, 3), (0.8, 12)}
    assert {c.seed for c in swept.values()} == {3} and {c.evidence for c in swept.values()} == {"attributed"}
    assert {c.steps for c, _ in runs.values()} == {2}
    assert len(evidence.runs_of([3, 4], False, tmp_path, [])) == 2 * len(EVIDENCE)


def test_the_command_trains_what_is_missing_and_measures_what_has_ended(tmp_path, monkeypatch, capsys):
    """At the second call nothing is left to do but the run that has not ended, which is told."""
    started = []

    def run_all(commands, workers, out, before):
        started.append(sorted(commands))
        for name in commands:
            config = evidence.runs_of([0, 1], False, out, [])[name][0]
            if not Path(config.out).is_dir():
                claim(Path(config.out), config)
            if name != "centre/answer-ced-1":
                (Path(config.out) / "results.json").write_text("{}")
        return {}

    def score(config, prompts):
        assert load_config(Path(config.out)) == config and prompts == 8
        return dict.fromkeys(evidence.COLUMNS.values(), 0.5 + 0.25 * config.seed)

    monkeypatch.setattr(evidence.comparison, "run_all", run_all)
    monkeypatch.setattr(evidence, "score", score)
    flags = ["--seeds", "0", "1", "--no-sweeps", "--prompts", "8", "--out", str(tmp_path)]
    assert evidence.main(flags) == 1
    out, err = capsys.readouterr()
    assert "| random | 0 1 | 0.62 ± 0.18 |" in out and "| 0.50 0.75 |" in out
    assert err == "studies.evidence: centre/answer-ced-1 is missing: stopped; the same command continues it\n"
    assert evidence.main([*flags, "--json"]) == 1
    assert [len(names) for names in started] == [10, 1]
    assert json.loads(capsys.readouterr().out)["runs"]["boxes"]["1"]["IoU before"] == 0.75


@pytest.mark.parametrize("flags, message", [
    (["--workers", "0"], "--workers: expected at least 1; found 0"),
    (["--prompts", "1"], "--prompts: expected at least 2; found 1"),
    (["--method", "papo"], "--method: expected --methods"),
])  # fmt: skip
def test_wrong_input_is_told(flags, message, capsys):
    assert evidence.main(flags) == 2 and message in capsys.readouterr().err


def test_the_overlap_of_boxes_with_themselves_is_whole_and_that_of_the_centre_by_hand(tiny_policy, samples):
    sample = replace(first(samples, "attribute"), boxes=((0.0, 0.0, 42.0, 42.0),))  # 3 × 3 of 6 × 6 tokens
    assert evidence.overlap(tiny_policy, sample, SMALL) == (1.0, 1.0)
    at_centre = evidence.overlap(tiny_policy, sample, replace(SMALL, evidence="centre"))  # 2 × 2, of which one is shared
    assert at_centre == (1 / 12, 1 / 4)
