"""The two-decision model: its gradient against an enumeration by hand, and what it says of scoping."""

import itertools

import pytest
import torch

from studies import credit
from studies.credit import Case


def expected_gradient(method: str, case: Case, group: int) -> list[float]:
    """E[gradient] of look and follow over every outcome of a group, one by one."""
    chances, total = (case.look, case.follow, case.eyes), [0.0, 0.0]
    outcomes = list(itertools.product((0, 1), repeat=3))
    for habit in (0, 1):
        for rows in itertools.product(outcomes, repeat=group):
            weight = case.habit if habit else 1 - case.habit
            for row in rows:
                for chance, bit in zip(chances, row):
                    weight *= chance if bit else 1 - chance
            p = [eyes if look else habit for look, _, eyes in rows]
            d = [own if follow else habit for own, (_, follow, _) in zip(p, rows)]
            both = [a + b for a, b in zip(p, d)]
            for i, rewards in enumerate({"rs": (p, d), "outcome": (d, d), "mixed": (both, both)}[method]):
                mean = sum(rewards) / group
                spread = (sum((r - mean) ** 2 for r in rewards) / group) ** 0.5
                if spread:
                    gains = [(r - mean) / (spread + credit.EPS_ADV) * (row[i] - chances[i]) for r, row in zip(rewards, rows)]
                    total[i] += weight * sum(gains) / group
    return total


@pytest.mark.parametrize("method", ("rs", "mixed", "outcome"))
def test_the_gradient_is_that_of_every_outcome_weighted(method, monkeypatch):
    monkeypatch.setattr(credit, "GROUP", 3)
    case = Case(0.4, 0.7, 0.3, 0.9)
    found = credit.gradients(method, case, credit.start(case, 200_000), torch.Generator().manual_seed(0))
    assert found.mean(-1).tolist() == pytest.approx(expected_gradient(method, case, 3), abs=4e-3)


def test_scoping_is_faster_where_rewards_are_clean_and_slower_where_the_evidence_is_judged_at_random():
    clean, noisy = Case(0.2, 0.2), Case(0.2, 0.2, noise_p=0.3)
    needed = {(m, c): float(credit.updates_needed(m, c, 60, 0).mean()) for m in ("rs", "mixed") for c in (clean, noisy)}
    assert needed["rs", clean] < 0.85 * needed["mixed", clean]
    assert needed["rs", noisy] > needed["mixed", noisy]


def test_the_table_has_a_row_for_every_case(capsys, monkeypatch):
    monkeypatch.setattr(credit, "CASES", (Case(0.5, 0.5),))
    assert credit.main(["--runs", "4"]) == 0
    assert "| 0.5, 0.5 | 0.33 | 0.95 |" in capsys.readouterr().out
