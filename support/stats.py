"""How sure a score is, and the statistics of `studies.diagnose`, as pure functions of arrays. Imports nothing of ours.

Answers to one question are alike, so questions are what intervals are drawn over: `bootstrap` resamples whole questions.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

RESAMPLES = 2000
CERTAINTY = 0.95


def wilson(p: float, n: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's 95 % interval of a share p seen in n questions: it stays inside [0, 1] and has width at p = 1."""
    centre, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, (centre - half) / (1 + z * z / n)), min(1.0, (centre + half) / (1 + z * z / n))


def bootstrap(n: int, statistic: Callable[[np.ndarray], float], seed: int) -> np.ndarray:
    """The statistic (RESAMPLES,) of as many samples of n questions, drawn with replacement: it takes their indices (n,)."""
    draw = np.random.default_rng(seed)
    return np.array([statistic(draw.integers(n, size=n)) for _ in range(RESAMPLES)])


def paired_bootstrap(before: Sequence[float], after: Sequence[float], seed: int) -> np.ndarray:
    """Mean gains (RESAMPLES,) of as many samples of the questions, drawn with replacement.

    Both scores of a question are drawn together: what makes it hard or easy for both falls out of their difference.
    """
    gains = np.subtract(after, before)
    return bootstrap(len(gains), lambda rows: gains[rows].mean(), seed)


def interval(draws: np.ndarray, level: float = CERTAINTY) -> tuple[float, float]:
    """The middle share `level` of the draws. Draws that have no value (NaN) are left out."""
    if np.isnan(draws).all():
        return math.nan, math.nan
    low, high = np.nanquantile(draws, ((1 - level) / 2, (1 + level) / 2))
    return float(low), float(high)


def auc(above: Sequence[float], below: Sequence[float]) -> float:
    """P(a > b) for a drawn from `above` and b from `below`; ties count half. NaN if either is empty."""
    if not len(above) or not len(below):
        return math.nan
    ordered = np.sort(below)
    rank = (np.searchsorted(ordered, above, "left") + np.searchsorted(ordered, above, "right")) / 2
    return float(rank.mean() / len(ordered))


def pearson(x: np.ndarray, y: np.ndarray) -> float:
    """The correlation of x and y, both (n,). NaN if either is constant."""
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan
    return float(np.corrcoef(x, y)[0, 1])


def equal_frequency_bins(values: np.ndarray, bins: int) -> np.ndarray:
    """The bin (n,) of each value, 0 … bins − 1, each with about as many of the values; equal values share a bin."""
    edges = np.quantile(values, np.arange(1, bins) / bins)
    return np.searchsorted(edges, values, "right")


def conditional_mutual_information(s: np.ndarray, g: np.ndarray, z: np.ndarray) -> float:
    """I(S; G | Z) in bits, for labels (n,): the plug-in estimate of Σ p(s, g, z) log₂ (p(s, g | z) / p(s | z) p(g | z)).

    Never negative, and above 0 by chance where strata are small: compare it with that of `shuffled` labels.
    """

    def count(*labels: np.ndarray) -> np.ndarray:
        _, which, counts = np.unique(np.stack(labels), axis=1, return_inverse=True, return_counts=True)
        return counts[which.ravel()]  # (n,)

    return float(np.log2(count(s, g, z) * count(z) / (count(s, z) * count(g, z))).mean())


def shuffled(g: np.ndarray, z: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """The labels g (n,) in a random order within each stratum of z (n,)."""
    out = np.empty_like(g)
    out[np.argsort(z, kind="stable")] = g[np.lexsort((generator.random(len(g)), z))]
    return out


def risk_coverage(confidence: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The share of wrong answers among the c most confident of n, for c = 1 … n: (n,). Its mean is the area under the curve.

    Equally confident answers count as in random order, on average: each has their mean risk.
    """
    _, tied = np.unique(-confidence, return_inverse=True)  # 0 the most confident
    risk = np.bincount(tied, 1 - right) / np.bincount(tied)
    return risk[np.sort(tied)].cumsum() / np.arange(1, len(right) + 1)


# ── cells of a table ────────────────────────────────────────────────────────────────────────────────────────────────
def estimate(value: float, draws: np.ndarray) -> dict:
    """A number and its 95 % interval, as a cell of a table."""
    low, high = interval(draws)
    return {"value": float(value), "low": low, "high": high}


def mean_of(values: np.ndarray, seed: int) -> dict:
    """The mean of one value a question, (n,); questions without a value (NaN) are left out."""
    values = values[np.isfinite(values)]
    if not len(values):
        return {"value": math.nan, "low": math.nan, "high": math.nan}
    return estimate(values.mean(), paired_bootstrap(np.zeros(len(values)), values, seed))


def share(values: np.ndarray) -> dict:
    """The share of questions of which something is true, (n,) of 0 and 1, and Wilson's interval."""
    low, high = wilson(values.mean(), len(values))
    return {"value": float(values.mean()), "low": low, "high": high}


def doubt(rows: int) -> float:
    """How likely one row may be above 0 by luck, if all rows of a table share the certainty of 97.5 % (Bonferroni)."""
    return (1 - CERTAINTY) / 2 / rows


def verdict(draws: np.ndarray, n: int, rows: int) -> str:
    """`signal` if a difference of n questions is above 0 with the certainty of 97.5 % that all rows share (Bonferroni).

    n questions are all above 0 by luck once in 2^n times, so fewer than that certainty needs prove nothing.
    """
    if n == 0 or 2.0**-n > doubt(rows):
        return "too few questions"
    return "signal" if interval(draws, 1 - 2 * doubt(rows))[0] > 0 else "no signal"
