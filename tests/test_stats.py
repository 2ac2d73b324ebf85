"""Intervals: their textbook values, their coverage, and what pairing is for; the statistics of diagnose.py by hand."""

import numpy as np
import pytest

from support.stats import (
    auc,
    bootstrap,
    conditional_mutual_information,
    equal_frequency_bins,
    interval,
    paired_bootstrap,
    pearson,
    risk_coverage,
    shuffled,
    verdict,
    wilson,
)


def test_wilson_interval():
    low, high = wilson(1.0, 40)
    assert 0.9 < low < 0.92 and high == 1.0
    low, high = wilson(0.5, 100)
    assert low == pytest.approx(0.4038, abs=1e-3) and high == pytest.approx(0.5962, abs=1e-3)


def test_paired_bootstrap_is_the_normal_interval_of_the_gains():
    draw = np.random.default_rng(0)
    before = draw.integers(0, 2, 400)
    after = np.where(draw.random(400) < 0.1, 1, before)  # a tenth of the questions is now right
    gains = after - before
    half = 1.96 * gains.std() / 20
    low, high = interval(paired_bootstrap(before, after, seed=1))
    assert (low, high) == pytest.approx((gains.mean() - half, gains.mean() + half), abs=0.004)
    unpaired = 1.96 * np.hypot(before.std(), after.std()) / 20
    assert high - low < unpaired


def test_paired_bootstrap_of_a_constant_gain_has_no_width():
    assert interval(paired_bootstrap([0.0, 0.5], [0.25, 0.75], seed=0)) == (0.25, 0.25)


def test_auc_by_hand():
    assert auc([3, 1], [2, 1]) == pytest.approx((1 + 1 + 0 + 0.5) / 4)
    assert auc([1, 1], [1]) == 0.5 and np.isnan(auc([], [1]))


def test_pearson_by_hand():
    assert pearson(np.array([1, 2, 3]), np.array([1, 3, 2])) == pytest.approx(0.5)
    assert np.isnan(pearson(np.array([1.0, 1.0]), np.array([0.0, 1.0])))


def test_a_cluster_bootstrap_is_wider_than_one_that_takes_alike_answers_for_independent():
    values = np.repeat([0.0, 1.0] * 10, 8).reshape(20, 8)  # 20 questions of 8 equal answers
    low, high = interval(bootstrap(20, lambda rows: values[rows].mean(), seed=0))
    assert (low, high) == pytest.approx((0.5 - 1.96 * 0.5 / 20**0.5, 0.5 + 1.96 * 0.5 / 20**0.5), abs=0.04)
    naive = interval(bootstrap(160, lambda rows: values.ravel()[rows].mean(), seed=0))
    assert high - low > 2 * (naive[1] - naive[0])


def test_conditional_mutual_information_by_hand():
    g, one = np.array([0, 1] * 8), np.zeros(16, dtype=int)
    assert conditional_mutual_information(g, g, one) == pytest.approx(1)  # S = G is one bit
    assert conditional_mutual_information(np.repeat([0, 1], 8), g, one) == pytest.approx(0)  # independent
    assert conditional_mutual_information(g, g, g) == 0  # nothing is left to tell within a stratum
    half = np.array([0, 1] * 4 + [0] * 8)  # S = G in one of two strata of equal size
    assert conditional_mutual_information(half, g, np.repeat([0, 1], 8)) == pytest.approx(0.5)


def test_shuffling_stays_within_strata():
    g, z = np.arange(12), np.array([0, 1, 2] * 4)
    mixed = shuffled(g, z, np.random.default_rng(0))
    assert (mixed % 3 == z).all() and sorted(mixed) == list(g) and (mixed != g).any()


def test_equal_frequency_bins_by_hand():
    assert equal_frequency_bins(np.array([5.0, 1.0, 4.0, 2.0]), 2).tolist() == [1, 0, 1, 0]
    assert equal_frequency_bins(np.array([0.0, 1.0, 1.0, 1.0]), 4).tolist() == [0, 3, 3, 3]


def test_risk_coverage_by_hand():
    right = np.array([1, 0, 1])
    assert risk_coverage(np.array([0.9, 0.1, 0.5]), right) == pytest.approx([0, 0, 1 / 3])
    assert risk_coverage(np.array([0.5, 0.5, 0.1]), right) == pytest.approx([1 / 2, 1 / 2, 1 / 3])  # a tie is half of each


def test_verdicts_need_questions_and_a_difference_above_chance():
    draws = np.linspace(0.01, 0.5, 100)
    assert verdict(draws, 5, rows=1) == "too few questions" and verdict(draws, 6, rows=1) == "signal"
    assert verdict(draws, 6, rows=2) == "too few questions"
    assert verdict(draws - 0.02, 40, rows=1) == "signal"  # 2 of 100 draws are below 0
    assert verdict(draws - 0.02, 40, rows=4) == "no signal" and verdict(-draws, 40, rows=1) == "no signal"
