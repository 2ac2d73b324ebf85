"""How sure a score is: the interval of a share, and of the difference of two on the same questions. Imports nothing of ours."""

import math
from collections.abc import Sequence

import numpy as np

RESAMPLES = 2000


def wilson(p: float, n: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's 95 % interval of a share p seen in n questions: it stays inside [0, 1] and has width at p = 1."""
    centre, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, (centre - half) / (1 + z * z / n)), min(1.0, (centre + half) / (1 + z * z / n))


def paired_bootstrap(before: Sequence[float], after: Sequence[float], seed: int) -> np.ndarray:
    """Mean gains (RESAMPLES,) of as many samples of the questions, drawn with replacement.

    Both scores of a question are drawn together: what makes it hard or easy for both falls out of their difference.
    """
    gains, draw = np.subtract(after, before), np.random.default_rng(seed)
    return np.array([gains[draw.integers(len(gains), size=len(gains))].mean() for _ in range(RESAMPLES)])


def interval(draws: np.ndarray) -> tuple[float, float]:
    """The middle 95 % of the draws."""
    low, high = np.quantile(draws, (0.025, 0.975))
    return float(low), float(high)
