"""The loop: seeds, updates, chunks, statistics, and numbers that are not finite."""

import json
from dataclasses import replace

import pytest
import torch
from helpers import SMALL, first, fresh, gradient, trained, weights

import train
from config import InputError
from rollout import sample_group
from support import pictures


def test_same_seed_same_weights_other_seed_other_weights(samples, plain_run, tmp_path):
    run, a = plain_run
    assert torch.equal(a, trained(SMALL, samples, tmp_path / "b"))
    assert not torch.equal(a, trained(replace(SMALL, seed=1), samples, tmp_path / "c"))
    rows = [[json.loads(line) for line in (one / "log.jsonl").open()] for one in (run, tmp_path / "b")]
    for a, b in zip(*rows):
        assert {k: v for k, v in a.items() if k != "seconds"} == {k: v for k, v in b.items() if k != "seconds"}
    assert set(a["seconds"]) == {"sample", "judge", "learn", "report"}


def test_what_is_measured_and_drawn_on_the_way_moves_nothing(samples, plain_run, tmp_path, monkeypatch):
    """And a run that goes on has each measurement once."""
    drawn = []
    for picture in ("learning_curves", "audit_sheet"):  # matplotlib's part of it is test_evaluate.py's
        monkeypatch.setattr(pictures, picture, lambda shown, path: drawn.append((path.name, len(shown))))
    held_out = {"val": [first(samples, family) for family in ("attribute", "presence")]}
    watched, run = replace(SMALL, eval_every=2, save_every=1), tmp_path / "watched"
    assert torch.equal(plain_run[1], trained(watched, samples, run, held_out))
    assert drawn == [("learning_curves.png", 1), ("audit_sheet.png", 4)]  # of one step, and an answer for each family
    before = [json.loads(line) for line in (run / "log.jsonl").open()]
    assert ["held_out" in row for row in before] == [False, True]
    assert before[1]["held_out"]["val"]["all"]["n"] == 2
    (run / "state.pt").unlink()  # as after a kill within the second step
    assert torch.equal(plain_run[1], trained(watched, samples, run, held_out))
    again = [json.loads(line) for line in (run / "log.jsonl").open()]
    assert [row | {"seconds": 0} for row in again] == [row | {"seconds": 0} for row in before]


def test_more_updates_leave_ratio_one_and_are_clipped(samples, tmp_path):
    config = replace(SMALL, updates_per_step=3, lr=3e-2, steps=1)
    policy, optimizer = fresh(config)
    row = train.train_step(policy, samples[:1], optimizer, config, 0)
    assert row["clip_fraction"] > 0 and row["kl"] > 0


def test_chunks_of_rows_change_nothing(samples):
    """Margins and gradients, to rounding (weights would not do: Adam divides by gradients that are nearly 0)."""
    small = replace(SMALL, audit_rows=3, update_rows=1)
    group = sample_group(fresh(SMALL)[0], samples[0], SMALL, 6, train.seeded(0))
    whole, chunked = (train.judge(fresh(config)[0], group, config).s for config in (SMALL, small))
    torch.testing.assert_close(whole, chunked, atol=1e-5, rtol=0)
    whole, chunked = gradient(SMALL, samples[0]), gradient(small, samples[0])
    torch.testing.assert_close(whole, chunked, atol=1e-6 * float(whole.abs().max()), rtol=0)


def step_gradient(samples, config, monkeypatch) -> torch.Tensor:
    """The gradient by which one step on these prompts descends, before it is clipped."""
    found = []

    def descend(optimizer, grad_clip: float) -> float:
        found.append(torch.cat([p.grad.flatten() for p in optimizer.param_groups[0]["params"]]))
        optimizer.zero_grad()
        return float(found[-1].norm())

    with monkeypatch.context() as patch:
        patch.setattr(train, "descend", descend)
        policy, optimizer = fresh(config)
        train.train_step(policy, samples, optimizer, config, 0)
    return found[0].clone()


def test_a_step_s_gradient_is_the_mean_over_its_prompts(samples, monkeypatch):
    """Adam does not mind a factor, the clip and the reader do."""
    a, b = (first(samples, family) for family in ("attribute", "counting"))
    one, other = (step_gradient([sample], SMALL, monkeypatch) for sample in (a, b))
    assert min(one.norm(), other.norm(), (one - other).norm()) > 1e-3  # both say something, and not the same
    both = step_gradient([a, b], SMALL, monkeypatch)
    torch.testing.assert_close(both, (one + other) / 2, atol=1e-5 * float(both.abs().max()), rtol=1e-4)


def test_a_prompt_s_share_is_its_gradient_over_their_number(samples, monkeypatch):
    """`learn` alone: a group's loss over n, for n = 1 and 2 and chunks of rows."""
    sample, found = first(samples, "attribute"), []
    for n in (1, 2):
        policy, optimizer = fresh(SMALL)
        group = sample_group(policy, sample, SMALL, 6, train.seeded(0))
        judgement = train.judge(policy, group, SMALL)
        train.learn(policy, group, judgement, torch.arange(6.0), SMALL, 0, n)
        found.append(torch.cat([p.grad.flatten() for p in optimizer.param_groups[0]["params"]]))
    assert found[0].norm() > 0
    torch.testing.assert_close(found[0], 2 * found[1], atol=0, rtol=1e-6)


def test_numbers_that_are_not_finite_are_null_in_the_log(samples, tmp_path, monkeypatch):
    monkeypatch.setattr(train, "train_step", lambda *_: {
        "step": 0, "reward": float("nan"), "accuracy": 0.5, "look_share": 0.0, "kl": float("inf"),
        "margin": {"counting": -float("inf")}, "grad_norm": float("nan"), "skipped": True,
        "response_length": float("nan"), "seconds": {"sample": 0.5},
    })  # fmt: skip
    train.train(fresh(SMALL)[0], samples, replace(SMALL, steps=1), tmp_path)
    (line,) = (tmp_path / "log.jsonl").read_text().splitlines()
    row = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert row["reward"] is row["kl"] is row["grad_norm"] is None and row["margin"] == {"counting": None}
    assert row["accuracy"] == 0.5


def test_a_gradient_that_is_not_finite_skips_the_step_and_five_in_a_row_stop_the_run(samples, tmp_path, monkeypatch, undrawn):
    config = replace(SMALL, steps=9, save_every=1, prompts_per_step=1)
    policy, _ = fresh(config)
    rewards_of, calls = train.rewards_of, []

    def poisoned(judgement, sample, config):
        calls.append(sample)
        bad = len(calls) == 1 or len(calls) > 3  # the first step, then every step from the fourth on
        return rewards_of(judgement, sample, config) + (float("nan") if bad else 0)

    monkeypatch.setattr(train, "rewards_of", poisoned)
    with pytest.raises(InputError, match="step 7: the loss or gradient was not finite 5 steps in a row"):
        train.train(policy, samples, config, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").open()]
    assert [row["skipped"] for row in rows] == [True, False, False, True, True, True, True]
    assert weights(policy).isfinite().all()
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert all(w.isfinite().all() for w in state["adapter"].values()) and state["bad_steps"] == 4
