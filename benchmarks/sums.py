"""How verdicts add up: a score is a mean over units, and a unit is what becomes of the rows with one key.

    rows, verdicts ──Metric──▶ units, {key: a number in [0, 1]} ──summary──▶ value, n, 95 % interval
                                                 └─────────────parts────────▶ the same of each part: a subject, a task, a skill

    unit                      its rows                          it is                 where
    a question                one                               right or wrong        most
    a figure, a question      all questions of one figure, ...  right if all are      HallusionBench's fAcc and qAcc
    a question, in copies     its copies, options rolled        right if all are      MMBench's circular
    an item, in 6 orders      its orders                        the share right       FREAK

A breakdown divides the *score's* units, so that its parts add up to the score: MMBench's are of questions, not of copies, and
FREAK's leave out the free-form rows, as the score does.

The interval of units that are 0 or 1 is Wilson's. Sixths of a question (FREAK) and probabilities (MC2) vary less than 0 and 1
with the same mean would: theirs is mean ± 1.96 s / √n, from the sample variance s². A mean over tasks (VLMsAreBlind) has
Newcombe's: the tasks are fixed, the questions drawn, and the distances of the tasks' own limits add up in squares.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from benchmarks.rows import Row
from support.stats import wilson

Verdict = dict[str, Any]  # "value", "by" (the reading of answers.py that found it), "correct", and what else a metric needs
Units = dict[Hashable, float]
NORMAL = 1.96  # the standard normal's 97.5 %


@dataclass(frozen=True)
class Metric:
    """Which rows are one unit, and what `fold` makes of their verdicts."""

    key: Callable[[Row], Any] = lambda row: row.id  # a row whose key is None has no part in it
    fold: Callable[[Sequence[float]], float] = fmean  # min: all of its rows must be right
    of: str = "correct"  # the field of the verdicts
    anchor: Callable[[Row], bool] = lambda row: True  # a unit counts if one of its rows is such a row
    needs: Callable[[Row], bool] = lambda row: True  # and there are none if no row is such a row
    stratum: Callable[[Row], Any] = lambda row: None  # the score is the mean of the strata's means

    def units(self, rows: Sequence[Row], verdicts: Sequence[Verdict]) -> Units:
        """Key → unit, in the order of the rows."""
        if not any(map(self.needs, rows)):
            return {}
        groups, counted = defaultdict(list), {self.key(row) for row in rows if self.anchor(row)}
        for row, v in zip(rows, verdicts):
            if self.key(row) is not None and self.key(row) in counted:
                groups[self.key(row)].append(float(v[self.of]))
        return {key: self.fold(right) for key, right in groups.items()}

    def divided(self, rows: Sequence[Row], units: Units, labels: Callable[[Row], Iterable]) -> dict[Any, list[float]]:
        """The units by the labels of their first row; a unit may have several labels, or none."""
        first = {self.key(row): row for row in reversed(rows)}
        parts = defaultdict(list)
        for key, unit in units.items():
            for label in labels(first[key]):
                parts[label].append(unit)
        return parts

    def score(self, rows: Sequence[Row], units: Units) -> dict:
        """Value, n and 95 % interval of the mean of the strata, which is the plain mean where there is one stratum."""
        return summary(list(self.divided(rows, units, lambda row: [self.stratum(row)]).values()))


def only(keep: Callable[[Row], bool], key: Callable[[Row], Any] = lambda row: row.id) -> Callable[[Row], Any]:
    """A key that leaves rows out."""
    return lambda row: key(row) if keep(row) else None


def interval(units: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of a mean. One unit alone has no sample variance: it has Wilson's, which is on the safe side."""
    mean, n = fmean(units), len(units)
    if n == 1 or set(units) <= {0.0, 1.0}:
        return wilson(mean, n)
    half = NORMAL * stdev(units) / math.sqrt(n)
    return max(0.0, mean - half), min(1.0, mean + half)


def summary(strata: Sequence[Sequence[float]]) -> dict:
    """The mean of the strata's means, the number of units, and the 95 % interval.

    Newcombe's: with limits l_t and u_t of each of T means p_t, from p̄ - √Σ(p_t - l_t)² / T to p̄ + √Σ(u_t - p_t)² / T.
    """
    means, limits = [fmean(units) for units in strata], [interval(units) for units in strata]
    below = math.hypot(*(p - low for p, (low, _) in zip(means, limits))) / len(means)
    above = math.hypot(*(high - p for p, (_, high) in zip(means, limits))) / len(means)
    mean = fmean(means)
    return {"value": mean, "n": sum(map(len, strata)), "interval": (mean - below, mean + above)}


def parts(metric: Metric, rows: Sequence[Row], units: Units, labels: Callable[[Row], Iterable]) -> dict[str, dict]:
    """The score of each part of the rows, by its label."""
    return {part: summary([own]) for part, own in sorted(metric.divided(rows, units, labels).items())}
