"""The tables of the study: shares, intervals and differences, by hand."""

import pytest

from studies import evisrag_report as report


def row(sufficient: bool, correct: bool, told: int = 0, said: int = 0, record: bool = True) -> dict:
    return {"sufficient": sufficient, "correct": correct, "format": True, "told": told, "said": said, "gold": int(sufficient),
            "record": record, "follows": correct}  # fmt: skip


SEEDS = [[row(True, True, 1, 1), row(True, False, 0, 1), row(False, True)],
         [row(True, True, 1, 2), row(True, True, 1, 1), row(False, False, 0, 1)]]  # fmt: skip


@pytest.mark.parametrize("metric, share", [
    ("overall", 4 / 6), ("accuracy, sufficient", 3 / 4), ("abstention, insufficient", 1 / 2), ("evidence F1", 2 * 3 / (6 + 4)),
    ("format", 1.0),
])  # fmt: skip
def test_shares_are_pooled_over_seeds(metric, share):
    assert report.ratio(report.counts(metric, SEEDS)) == pytest.approx(share)


def test_follows_counts_responses_that_record_something():
    assert report.ratio(report.counts("follows", [[row(True, True), row(True, False, record=False)]])) == 1.0


def test_differences_are_paired(few_resamples):
    half, whole = ([[row(True, right) for right in rights]] for rights in ([1, 0] * 20, [1, 1] * 20))
    before, after = report.counts("overall", half), report.counts("overall", whole)
    both = report.gain(before, after)
    assert both["value"] == 0.5 and 0.3 < both["low"] < 0.5 < both["high"] < 0.7
    assert report.gain(after, after) == {"value": 0.0, "low": 0.0, "high": 0.0}
    assert report.signed(both).startswith("+0.50 [+0.")


def test_what_is_compared_with_rs_grpo_is_of_its_setting():
    names = ["rs", "mixed", "rs without gold", "rs, five pages", "mixed, five pages"]
    assert report.pairs(names) == [("mixed", "rs"), ("rs without gold", "rs"), ("mixed, five pages", "rs, five pages")]


def test_an_empty_share_is_a_dash():
    assert report.show(report.cell(report.counts("abstention, insufficient", [[row(True, True)]]))) == "–"
    assert report.smooth([0.0, 1.0]).tolist() == [0.5]
