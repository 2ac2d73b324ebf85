"""Intervals: their textbook values, their coverage, and what pairing is for."""

import numpy as np
import pytest

from stats import interval, paired_bootstrap, wilson


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
