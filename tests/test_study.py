"""What the diagnostics share: chance by hand, and noise that is found to be noise."""

import numpy as np
import pytest
import torch

import ced
from studies.study import against_chance, beats_each, beats_mean, relabelled, verdicts

pytestmark = pytest.mark.usefixtures("few_resamples")


def test_chance_by_hand():
    s = torch.tensor([[3.0], [1.0], [2.0], [0.0]])
    assert relabelled(s, beats_mean) == (1.0, 0.5)  # 3 and 2 beat the mean of the others, 1 and 0 do not
    assert relabelled(s, beats_each)[1] == pytest.approx(0.5)
    assert relabelled(torch.tensor([[0.0], [0.0], [0.0], [9.0]]), beats_mean) == (0.0, 0.25)  # skewed: chance is not 1/2
    assert relabelled(torch.full((4, 2), 0.1), beats_mean) == (0.5, 0.5)  # ties count half


@pytest.mark.parametrize("statistic", [beats_mean, beats_each, lambda s: ced.evidence_margin(s, 0.1)])
@pytest.mark.parametrize("lift, said", [(0.0, "no signal"), (1.5, "signal")])
def test_skewed_noise_is_no_signal_and_a_lifted_evidence_is(statistic, lift, said):
    draw = np.random.default_rng(0)
    s = torch.tensor(draw.exponential(size=(200, 4, 3)))
    s[:, 0] += lift
    part = [dict(zip(("x", "chance x"), relabelled(one, statistic))) for one in s]
    (row,) = verdicts([{"N": len(part), **against_chance("x", part, seed=0)}])
    assert row["verdict"] == said
