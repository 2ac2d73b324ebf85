"""benchmarks/sums.py: every sum by hand, and the figures of VLMEvalKit's and lmms-eval's scorers on the same verdicts."""

import math

import pytest
from test_tasks import RAW, rolled

from benchmarks import harness, score
from benchmarks.sums import Metric, interval, summary
from support.stats import wilson


def test_a_missing_copy_is_not_missed():
    """Two questions in four copies; of the second one copy is missing. Both harnesses give the second its verdict: 0.5."""
    raws = rolled(n=2, copies=3)[:-1]
    replies = [raw["answer"] for raw in raws]
    replies[1] = "A" if replies[1] != "A" else "B"
    result = score("mmbench", raws, replies)
    assert (result["metric"], result["value"], result["n"]) == ("circular", 0.5, 2)
    without = score("mmbench", raws[1:], replies[1:])  # whose unrolled copy is missing is no question, there too
    assert (without["metrics"]["circular"]["n"], without["value"]) == (1, 1.0)


def test_parts_add_up_to_the_score():
    """MMBench: 8 rows of 2 questions, one reply wrong: 0.5 of the questions, not 7 of 8 rows."""
    raws = [RAW["mmbench"] | dict(zip("ABCD", "abcd"[k:] + "abcd"[:k])) | {"index": i + 1_000_000 * k, "answer": "DCBA"[k]}
            for i in range(2) for k in range(4)]  # fmt: skip
    replies = [raw["answer"] for raw in raws]
    replies[2] = "A"
    result = score("mmbench", raws, replies)
    assert result["value"] == 0.5 and result["parts"] == {"nature": result["metrics"]["circular"]}
    assert result["metrics"]["vanilla"]["value"] == 1


def test_freaks_parts_leave_out_free_form_rows():
    free = {"id": 8, "type": "fib", "options": None}
    result = score("freak", [RAW["freak"], RAW["freak"] | free], ["A"] * 6 + ["a yew"])
    assert result["parts"]["shape"]["n"] == 1 and result["parts"]["shape"]["value"] == pytest.approx(1 / 3)


def test_the_task_mean_is_over_tasks_of_which_both_grids_are_one():
    """Lines 1 of 2; grids 1 of 1 and 0 of 3, together 1 of 4; circles 1 of 1: (0.5 + 0.25 + 1) / 3."""
    tasks = ["Line Plot Intersections"] * 2 + ["Counting Grid - Blank Grids"] + ["Counting Grid - Word Grids"] * 3
    raws = [RAW["vlmsareblind"] | {"task": task} for task in [*tasks, "Touching Circles"]]
    metrics = score("vlmsareblind", raws, ["4", "5", "4", "5", "5", "5", "4"])["metrics"]
    assert metrics["task_mean"]["value"] == pytest.approx(1.75 / 3) and metrics["task_mean"]["n"] == 7
    assert metrics["accuracy"]["value"] == pytest.approx(3 / 7)
    shares = ((0.5, 2), (0.25, 4), (1.0, 1))
    below = math.sqrt(sum((p - wilson(p, n)[0]) ** 2 for p, n in shares)) / 3
    above = math.sqrt(sum((wilson(p, n)[1] - p) ** 2 for p, n in shares)) / 3
    assert metrics["task_mean"]["interval"] == pytest.approx((1.75 / 3 - below, 1.75 / 3 + above))


def test_an_interval_is_as_wide_as_its_units_vary():
    assert interval([1.0] * 9 + [0.0]) == pytest.approx((0.5958, 0.9821), abs=1e-4)  # Wilson's textbook value
    assert summary([[1.0] * 9 + [0.0]])["interval"] == pytest.approx(interval([1.0] * 9 + [0.0]))
    sixths = [0.5, 4 / 6, 5 / 6, 0.5]  # mean 0.625; s² = (2 · 0.125² + (1/24)² + (5/24)²) / 3 = 0.025463
    assert interval(sixths) == pytest.approx((0.625 - 1.96 * math.sqrt(0.025463 / 4), 0.625 + 1.96 * math.sqrt(0.025463 / 4)),
                                             abs=1e-5)  # fmt: skip
    assert interval([0.25]) == wilson(0.25, 1)  # one unit has no variance


def test_mc2_has_the_interval_of_probabilities():
    targets = {"choices": ["a", "b"], "labels": [1, 0]}
    odds = [0.4, 0.5, 0.6, 0.5]
    raws = [RAW["truthfulqa_mc2"] | {"mc2_targets": targets}] * 4
    result = score("truthfulqa_mc2", raws, [[math.log(p), math.log(1 - p)] for p in odds])
    half = 1.96 * math.sqrt(0.02 / 3 / 4)
    assert result["interval"] == pytest.approx((0.5 - half, 0.5 + half))


def test_an_unclear_reply_is_officially_excused_where_no_figure_is_given():
    blind = RAW["hallusionbench"] | {"visual_input": "0", "figure_id": "0"}
    raws = [RAW["hallusionbench"], blind, blind | {"question_id": "3"}]
    metrics = score("hallusionbench", raws, ["No.", "It is unclear.", "Yes."])["metrics"]
    assert (metrics["aAcc"]["value"], metrics["aAcc"]["n"]) == (1.0, 1)  # of the figure that is shown
    assert (metrics["aAcc_official"]["value"], metrics["aAcc_official"]["n"]) == (pytest.approx(2 / 3), 3)
    assert metrics["qAcc_official"]["value"] == 0.5 and metrics["fAcc"]["n"] == 1
    assert score("hallusionbench", raws[:1], ["It is unclear."])["metrics"]["aAcc_official"]["value"] == 0


def test_mathvista_by_task_and_by_skill_in_either_table():
    told = [{"task": "figure question answering", "skills": ["arithmetic reasoning", "statistical reasoning"]},
            {"task": "geometry problem solving", "skills": ["geometry reasoning", "arithmetic reasoning"]}]  # fmt: skip
    hub = [RAW["mathvista"] | {"pid": str(i), "metadata": one} for i, one in enumerate(told)]
    table = [RAW["mathvista"] | one | {"pid": str(i), "skills": str(one["skills"])} for i, one in enumerate(told)]
    by = score("mathvista", hub, ["14", "15"])["by"]
    assert by == score("mathvista", table, ["14", "15"])["by"]
    assert {part: (m["value"], m["n"]) for part, m in by["skill"].items()} == {
        "arithmetic reasoning": (0.5, 2), "geometry reasoning": (0.0, 1), "statistical reasoning": (1.0, 1)}
    assert by["task"]["figure question answering"]["value"] == 1 and len(by["task"]) == 2
    printed = harness.table_rows(score("mathvista", hub, ["14", "15"]) | {"revision": "x", "not_asked": 0}).splitlines()
    assert "| mathvista | task: geometry problem solving | 0.00 | 0.00–79.35 | 1 |" in printed[2] + printed[3]
    assert {line.count("|") for line in [*printed, *harness.HEADER.splitlines()]} == {13}
    assert score("mathvista", [RAW["mathvista"]], ["14"])["by"] == {"task": {}, "skill": {}}


def test_mmmu_by_discipline():
    ids = ["validation_Art_1", "validation_Music_2", "validation_Math_3"]
    result = score("mmmu", [RAW["mmmu"] | {"id": one} for one in ids], ["A", "B", "B"])
    assert {part: (m["value"], m["n"]) for part, m in result["by"]["discipline"].items()} == {
        "Art and Design": (0.5, 2), "Science": (1.0, 1)}
    assert list(result["parts"]) == ["Art", "Math", "Music"]


def test_a_metric_without_its_rows_has_no_units():
    assert Metric(needs=lambda row: False).units([object()], [{"correct": True}]) == {}
