"""Pictures: the labels they print, and which two answers of a group they show."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from support import pictures


@pytest.mark.parametrize("s, label", [
    (-3.1e-05, "0.00"), (0.0, "0.00"), (-0.0, "0.00"), (0.0049, "0.00"), (-0.0049, "0.00"),
    (0.0051, "0.0051"), (-0.0123, "-0.012"), (0.456, "0.46"), (-9.87, "-9.9"),
])  # fmt: skip
def test_round_off_is_printed_as_nothing(s, label):
    assert pictures.nats(s) == label


def group(texts, rewards, m=None, audited=None) -> SimpleNamespace:
    """What `two_alike` reads of a judged group."""
    n = len(texts)
    texts = [f"<think> look </think> <answer> {text} </answer>" for text in texts]
    m, audited = m or [0.0] * n, audited or [True] * n
    return SimpleNamespace(texts=texts, rewards=torch.tensor(rewards), m=torch.tensor(m), audited=torch.tensor(audited))


@pytest.mark.parametrize("shown, pair", [
    (group(["red", "blue", "red", "red"], [0.5, 0.0, 0.9, 0.6]), (2, 0)),  # the same answer, furthest apart, the higher first
    (group(["red", "red", "red"], [0.9, 0.1, 0.5], audited=[True, False, True]), (0, 2)),  # both were audited
    (group(["red", "blue"], [0.0, 1.0]), (1, 0)),  # none are alike: any two
    (group(["red", "red", "red"], [1.0, 1.0, 1.0], m=[0.2, -0.3, 0.7]), (2, 1)),  # equal rewards: by the margin
])  # fmt: skip
def test_two_alike_are_the_same_answer_with_rewards_furthest_apart(shown, pair):
    assert pictures.two_alike(shown) == pair


def test_what_was_held_out_is_drawn_at_its_step(monkeypatch):
    figures = []
    monkeypatch.setattr(pictures, "save", lambda figure, path: figures.append(figure))
    score = {"all": {"accuracy": 0.75, "look_share": 0.25}}
    rows = [{"reward": 0.5, "accuracy": 1.0, "look_share": 0.5, "kl": None, "margin": {}} for _ in range(4)]
    pictures.learning_curves([*rows, rows[0] | {"held_out": {"val": score, "probe": score}}], "x.png")
    drawn = {line.get_label(): line.get_xydata() for axis in figures[0].axes for line in axis.lines}
    for label, value in {"accuracy on val, held out": 0.75, "look_share on probe, held out": 0.25}.items():
        assert [list(point) for point in drawn[label] if np.isfinite(point[1])] == [[4, value]]
    pictures.plt.close(figures[0])


def test_running_means_leave_out_steps_without_a_value(monkeypatch):
    monkeypatch.setattr(pictures, "SMOOTH", 2)
    found = pictures.running_mean(np.array([1.0, 3.0, np.nan, np.nan, 5.0]))
    assert found == pytest.approx([1.0, 2.0, 3.0, np.nan, 5.0], nan_ok=True)
    row = {"reward": 0.5, "margin": {"counting": 0.25}}
    assert (pictures.lookup(row, "reward"), pictures.lookup(row, "margin.counting")) == (0.5, 0.25)
    assert np.isnan(pictures.lookup(row, "margin.spatial"))
