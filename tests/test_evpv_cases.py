"""The arithmetic of the EVPV study on one question that was judged by hand."""

import random

import numpy as np
import pytest
import torch

from related.evpv import macro_f1
from studies.evpv import flattered, padded, silenced
from studies.evpv_cases import Case, Judged, cell, f1, outcomes, picked, rewards_of, votes
from toy.steps import Question

TRUTH = {"star": {"count": 3, "color": "red", "side": "left"}, "circle": {"count": 1, "color": "blue", "side": "right"}}
TOTAL = Question("total", ("star", "circle"), TRUTH)


def judged(labels, u, answer="4", truth=True) -> Judged:
    looks = [("count", "star", 3.0 if labels[0] > 0 else 2.0), ("count", "circle", 1.0 if labels[1] > 0 else 2.0)]
    return Judged(torch.zeros(1), answer, labels, [[looks[0]], [looks[1]], []], u, answer == "4")


CASE = Case(TOTAL, 0, list(TOTAL.facts), [
    judged([1, 1, 1], [0.6, 0.6, 0.9]), judged([-1, 1, 1], [0.9, 0.9, 0.9], "3"), Judged(torch.zeros(1), "", [], [], [], False),
])  # fmt: skip


def test_best_of_n_by_the_verifier_and_with_its_premises_checked():
    by = {how: [[sum(own) for own in rewards] for rewards in rewards_of([CASE], how)] for how in ("base", "direct")}
    assert picked([CASE], by["base"], 3, "right") == [0] and picked([CASE], by["direct"], 3, "right") == [1]
    assert votes([CASE], 3) == [[1, 1, 0]] and CASE.responses[0].sound and not CASE.responses[2].sound


def test_f1_is_that_of_the_pure_function():
    rewards = rewards_of([CASE], "direct")
    gold = [label for one in CASE.responses for label in one.labels]
    called = [1 if r > 0 else -1 for own in rewards[0] for r in own]
    assert f1(outcomes([CASE], rewards, 0)) == pytest.approx(macro_f1(called, gold)) == 1
    assert outcomes([CASE], rewards, 0, looks=True).sum() < outcomes([CASE], rewards, 0).sum()


def test_checklists_that_leave_out_and_pad():
    one = CASE.responses[1]
    assert silenced(CASE, one, 1, random.Random(0)) == flattered(CASE, one)[:1] + [[], []]
    assert flattered(CASE, one) == [[], one.claims[1], []]
    assert [len(own) for own in padded(CASE, one, 16)] == [1, 1, 16] and padded(CASE, CASE.responses[2], 4) == []


def test_a_cell_has_an_interval():
    found = cell(np.array([0.0, 1.0, 1.0, 1.0]))
    assert found["value"] == 0.75 and found["low"] < 0.75 < found["high"]
