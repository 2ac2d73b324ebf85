"""How long ranks wait: the simulation against what can be counted by hand."""

import json

import numpy as np
import pytest

from studies import idle


def test_efficiency_is_the_mean_over_the_expected_slowest():
    """Seconds 1 or 3, evenly: of two ranks the slower takes 3 in three of four cases."""
    draw, seconds = np.random.default_rng(0), np.array([1.0, 3.0])
    assert idle.simulated(seconds, 2, 1, draw, steps=100_000) == pytest.approx(2 / (0.75 * 3 + 0.25), abs=0.005)
    assert idle.simulated(seconds, 1, 4, draw) == 1 and idle.simulated(np.array([2.0]), 64, 2, draw) == 1
    assert idle.simulated(seconds, 512, 1, draw) == pytest.approx(2 / 3, abs=0.01)  # someone always takes 3
    assert idle.simulated(seconds, 8, 8, draw) > idle.simulated(seconds, 8, 1, draw) + 0.1


def test_a_group_s_seconds_leave_out_the_first_step_and_the_report(tmp_path):
    rows = [{"seconds": {"sample": 1.0, "judge": 2.0, "learn": s, "report": 9.0}} for s in (100.0, 3.0, 4.0)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert idle.group_seconds(tmp_path).tolist() == [6.0, 7.0]


def test_the_table_has_a_row_for_each_number_of_prompts():
    text = idle.tables({1: 0.1, 8: 0.04}, np.array([1.0, 1.0, 2.0]))
    assert "(3 groups)" in text and "| 8 | 4% |" in text and text.count("\n") == 5


def test_a_job_that_fails_is_wrong_input(tmp_path):
    (tmp_path / "broken.py").write_text("raise SystemExit('no')")
    with pytest.raises(idle.InputError, match="broken.py: ended with 1"):
        idle.launch(1, str(tmp_path / "broken.py"))
