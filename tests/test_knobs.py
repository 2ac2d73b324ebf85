"""The knobs: one number changed at a time, and a table of what it did."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

import train
from config import configure
from studies import knobs


def test_every_setting_changes_one_knob_and_has_a_folder_of_its_own(tmp_path):
    runs = knobs.runs_of(list(knobs.KNOBS), [0, 1], tmp_path)
    folders = [config.out for configs in runs.values() for config in configs]
    assert len(set(folders)) == len(folders) == 2 * sum(map(len, knobs.KNOBS.values()))
    default = asdict(configure({}))
    for knob, settings in knobs.KNOBS.items():
        for setting in settings:
            (config, _) = runs[knobs.name_of(setting)]
            changed = {name for name, value in asdict(config).items() if value != default[name]} - {"out", "method"}
            assert changed <= {knob} and (changed or knob in ("recipe", "lam"))
            given = train.make_parser().parse_args(knobs.flags_of(setting))
            assert all(getattr(given, name) == value for name, value in setting.items() if name != "method")


def test_a_row_by_hand(tmp_path):
    """Two runs: means over all steps, or over the last ten; accuracy without presence."""
    runs = knobs.runs_of(["recipe"], [0, 1], tmp_path)["recipe"]
    for seed, config in enumerate(runs):
        out = Path(config.out)
        out.mkdir(parents=True)
        (out / "config.json").write_text(json.dumps(asdict(config)))
        scores = {"counting": {"n": 40, "accuracy": 0.5 + 0.5 * seed}, "presence": {"n": 40, "accuracy": 0.0}}
        scores = {f: s | {"look_share": 0, "margin": 0} for f, s in scores.items()} | {"all": {"n": 80}}
        (out / "results.json").write_text(json.dumps({"before": {}, "after": {"conflict": scores}}))
        row = {"zero_variance": 0.5, "advantage": 0.25, "distinct": 4.0, "kl": 0.0, "seconds": {"judge": 1.0, "sample": 2.0}}
        steps = [row | {"response_length": 10.0 if step < 10 else 20.0} for step in range(20)]
        (out / "log.jsonl").write_text("".join(json.dumps(one) + "\n" for one in steps))
    row = knobs.row_of("recipe", runs)
    assert (row["conflict"], row["length"], row["judge / sample"]) == (0.75, 20.0, 0.5)
    assert row["interval"] == pytest.approx((0.6452, 0.8319), abs=1e-4)  # Wilson's of 60 of 80
    line = knobs.markdown([row]).splitlines()[-1]
    assert line == "| recipe | 2 | 0.75 | 0.65–0.83 | 0.50 | 0.25 | 4.0 | 20.0 | 0.00 | 0.50 |"
