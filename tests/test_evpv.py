"""EVPV's formulas against values worked by hand, and the properties that follow from them."""

import math
import random
from functools import partial

import pytest

from related.evpv import (
    HOW,
    agreement,
    best_of_n,
    corrupt,
    gate,
    macro_f1,
    norm,
    reliability,
    step_rewards,
    support,
    threshold,
    trajectory_score,
    triples,
)

FACTS = triples('[["count", "star", 3], ["color", "star", "red"], ["left of", "star", "circle"]]')
OPTIONS = {"count": (1, 2, 3), "color": ("red", "blue")}
near = partial(pytest.approx, abs=1e-6)


# ── claims and facts ──
@pytest.mark.parametrize("claim, p", [
    ('["count", "star", 2]', 0), ('["count", "star", 3]', 1), ('["Count", "A star", "3"]', 1), ('["count", "ring", 1]', 0.5),
    ('["color", "star", "Red."]', 1), ('["color", "star", "blue"]', 0),
    ('["left of", "star", "circle"]', 1), ('["right of", "circle", "star"]', 1), ('["left_of", "star", "circle"]', 1),
    ('["left of", "circle", "star"]', 0), ('["right of", "star", "circle"]', 0), ('["above", "star", "circle"]', 0.5),
    ('["count", "star", "3 of them"]', 0.5),
])  # fmt: skip
def test_support_of_a_claim(claim, p):
    assert support(triples(claim)[0], FACTS) == p


def test_numbers_are_compared_with_a_tolerance_and_counts_without():
    assert support(("length", "ab", 10.4), [("length", "ab", 10.0)], tolerance=0.05) == 1
    assert support(("length", "ab", 10.6), [("length", "ab", 10.0)], tolerance=0.05) == 0
    assert support(("count", "dots", 21.0), [("count", "dots", 20.0)], tolerance=0.05) == 0


def test_symmetric_relations_have_no_opposite():
    assert agreement(("parallel", "ab", "cd"), ("parallel", "cd", "ab"), 0) == 1
    assert agreement(("parallel", "ab", "cd"), ("parallel", "ab", "ef"), 0) is None


def test_the_best_of_several_facts_counts_and_without_any_it_is_unknown():
    two = [("color", "flag", "red"), ("color", "flag", "white")]
    assert support(("color", "flag", "white"), two) == 1 and support(("color", "flag", "blue"), two) == 0
    assert support(("color", "flag", "white"), []) == support(None, two) == 0.5
    assert support(None, two, unknown=0.3) == 0.3


@pytest.mark.parametrize("value, same", [
    ("3", 3.0), ("1,000", 1000.0), ("90°", 90.0), (" 2.50 ", 2.5), ("−4", -4.0), (True, "true"), (10**400, str(10**400)),
    ("NaN", "nan"), ("Infinity", "infinity"), ("The  Star.", "star"), ("point A", "point a"), ("a", "a"), ("1,2", "1,2"),
    ("right_of", "right of"), ("50%", "50%"),
])  # fmt: skip
def test_norm(value, same):
    assert norm(value) == same and type(norm(value)) is type(same)


@pytest.mark.parametrize("text, found", [
    ('```json\n{"facts": [["count","a star","3"]]}\n```', [("count", "star", 3.0)]), ("[]", []),
    ('[[" count ", " star ", 3 ]]', [("count", "star", 3.0)]), ('see [1]: ["count", "star", 3]', [("count", "star", 3.0)]),
    ('[oops [["count", "star", 3]]', [("count", "star", 3.0)]), ('["open", "gate", true]', [("open", "gate", "true")]),
])  # fmt: skip
def test_triples_are_read_from_text(text, found):
    assert triples(text) == found


@pytest.mark.parametrize("text", [
    "no json", '[["count","star"]]', '[{"a":1}]', '[["count","star",3],["count","ring"]]', '[["count","star",null]]',
    "[1, 2, 3]", "[" * 100_000, '[["", "star", 3]]',
    '[["count","star",[3]]]', '[["count", "star", 3], ["color", "st', '"[["count"',
])  # fmt: skip
def test_what_is_no_list_of_triples_is_refused_whole(text):
    with pytest.raises(ValueError):
        triples(text)


def test_corruption():
    rng = random.Random(0)
    facts = [("count", "star", 3), ("count", "ring", 1), ("color", "star", "red")]
    for kind in ("shuffle", "drop", "perturb"):
        assert corrupt(facts, kind, 0, OPTIONS, rng) == facts
    assert corrupt(facts, "drop", 1, OPTIONS, rng) == []
    assert all(new[2] != old[2] for new, old in zip(corrupt(facts, "perturb", 1, OPTIONS, rng), facts))
    swapped = [("count", "star", 1), ("count", "ring", 3), ("color", "star", "red")]  # a lone fact keeps its value
    assert corrupt(facts, "shuffle", 1, OPTIONS, rng) == swapped
    four = [("count", str(i), i) for i in range(4)]
    assert all(new[2] != old[2] for _ in range(20) for new, old in zip(corrupt(four, "shuffle", 1, OPTIONS, rng), four))
    with pytest.raises(ValueError, match="shuffle"):
        corrupt(facts, "reorder", 1, OPTIONS, rng)


# ── rewards ──
def test_reliability_and_gate():
    assert reliability([1, 1]) == reliability([]) == 1
    assert reliability([1, 0]) == near(math.sqrt(1.001e-3)) == near(0.0316386) and reliability([0.5]) == near(0.501)
    assert (gate(1), gate(0.5), gate(0.0316386)) == near((0.9933071, 0.5, 0.0091608))


def test_padding_dilutes_a_false_claim():
    assert [round(reliability([0] + [1] * n), 2) for n in (1, 3, 5, 9, 17)] == [0.03, 0.18, 0.32, 0.50, 0.68]
    assert reliability([0] + [1] * 9) == pytest.approx(0.5016, abs=1e-4)


@pytest.mark.parametrize("u, p, rewards, score", [
    ([0.9, 0.9, 0.8], [[1], [1], []], [0.7946457, 0.7946457, 0.6], 0.8636328),
    ([0.9, 0.9, 0.8], [[1], [0], []], [0.0073287, 0.0073287, 0.6], 0.5876573),
    ([0.1, 0.9, 0.8], [[1], [1], []], [-0.7946457, 0.7946457, 0.6], 0.4192800),
    ([0.1, 0.9, 0.8], [[0], [1], []], [-0.0073287, 0.0073287, 0.6], 0.5847931),  # a false premise makes a rejection better
])  # fmt: skip
def test_rewards_of_a_trajectory(u, p, rewards, score):
    assert step_rewards(u, p, "trajectory") == near(rewards) and trajectory_score(rewards) == near(score)


def test_every_gate_by_hand():
    a, b = gate(1), gate(0.001)  # of the true and of the false look
    both = gate(reliability([1, 0]))
    expected = {
        "base": [0.8, -0.8], "trajectory": [0.8 * both, -0.8 * both], "positive": [0.8 * both, -0.8],
        "step": [0.8 * a, -0.8 * b], "penalty": [0.8 * both - 1 + both, -0.8 * both - 1 + both],
        "penalty-step": [0.8 * a - 1 + a, -0.8 * b - 1 + b], "direct": [1, -0.998],
    }  # fmt: skip
    assert set(expected) == set(HOW)
    for how, looks in expected.items():
        assert step_rewards([0.9, 0.1, 0.2], [[1], [0], []], how) == near([*looks, -0.6]), how


def test_a_gate_changes_no_sign_so_without_a_threshold_it_does_nothing_for_labels():
    rng = random.Random(0)
    for _ in range(300):
        u, p = [rng.random() for _ in range(4)], [[rng.choice((0, 0.5, 1)) for _ in range(rng.randrange(3))] for _ in range(4)]
        base = step_rewards(u, p, "base")
        for how in ("trajectory", "step", "positive"):
            assert [r > 0 for r in step_rewards(u, p, how, beta=rng.uniform(0, 20), tau=rng.random())] == [r > 0 for r in base]


def test_an_empty_checklist_passes_ungated():
    assert step_rewards([0.9, 0.2], [[], []], "trajectory") == near([0.8, -0.6])


def test_an_unreadable_solution_scores_nothing():
    assert trajectory_score([]) == 0 < trajectory_score([-1, -1])


# ── what it is worth ──
def test_macro_f1():
    assert macro_f1([1, 1, -1, -1, 1], [1, -1, -1, 1, 0]) == near(0.5)
    assert macro_f1([1, 1, 1], [1, 1, -1]) == near(0.4) and macro_f1([], []) == 0


def test_ties_share():
    assert best_of_n([0.5, 0.5, 0.1], [1, 0, 1]) == 0.5 and best_of_n([0.2, 0.9], [1, 0]) == 0


def test_the_threshold_is_the_best_there_is():
    rng = random.Random(0)
    for _ in range(50):
        rewards, gold = [round(rng.uniform(-1, 1), 1) for _ in range(12)], [rng.choice((1, -1, 0)) for _ in range(12)]
        score = lambda kappa: macro_f1([1 if r > kappa else -1 for r in rewards], gold)  # noqa: B023, E731
        assert score(threshold(rewards, gold)) == near(max(score(kappa / 20) for kappa in range(-21, 21)))
    assert threshold([], []) == -2
