"""The loop: seeds, updates, chunks, statistics, and numbers that are not finite."""

import json
from dataclasses import replace

import pytest
import torch
from helpers import SMALL, fresh, gradient, trained, weights

import train
from config import InputError


def test_same_seed_same_weights_other_seed_other_weights(samples, tmp_path):
    a = trained(SMALL, samples, tmp_path / "a")
    assert torch.equal(a, trained(SMALL, samples, tmp_path / "b"))
    assert not torch.equal(a, trained(replace(SMALL, seed=1), samples, tmp_path / "c"))
    rows = [[json.loads(line) for line in (tmp_path / run / "log.jsonl").open()] for run in "ab"]
    for a, b in zip(*rows):
        assert {k: v for k, v in a.items() if k != "seconds"} == {k: v for k, v in b.items() if k != "seconds"}
    assert set(a["seconds"]) == {"sample", "judge", "learn", "report"}


def test_more_updates_leave_ratio_one_and_are_clipped(samples, tmp_path):
    config = replace(SMALL, updates_per_step=3, lr=3e-2, steps=1)
    policy, optimizer = fresh(config)
    row = train.train_step(policy, samples[:1], optimizer, config, 0)
    assert row["clip_fraction"] > 0 and row["kl"] > 0


def test_chunks_of_rows_change_nothing(samples):
    """Margins and gradients, to rounding (weights would not do: Adam divides by gradients that are nearly 0)."""
    small = replace(SMALL, audit_rows=3, update_rows=1)
    group = train.sample_group(fresh(SMALL)[0], samples[0], SMALL, 6, train.seeded(0))
    whole, chunked = (train.judge(fresh(config)[0], group, config).s for config in (SMALL, small))
    torch.testing.assert_close(whole, chunked, atol=1e-5, rtol=0)
    whole, chunked = gradient(SMALL, samples[0]), gradient(small, samples[0])
    torch.testing.assert_close(whole, chunked, atol=1e-6 * float(whole.abs().max()), rtol=0)


def test_statistics_of_a_group():
    a, b = "<answer> 4 </answer>", "<answer> 5 </answer>"
    assert train.tells_apart([a, a, b], torch.tensor([0.1, 0.8, 0.0]))
    assert not train.tells_apart([a, a, b], torch.tensor([0.8, 0.8, 0.0]))
    assert not train.tells_apart(["no answer", "none"], torch.tensor([0.1, 0.2]))
    correct = torch.tensor([True, True, False, False])
    assert train.inversions(correct, torch.tensor([1.0, -0.1, 0.0, 0.1])) == 0.5
    assert train.inversions(torch.tensor([True, True]), torch.tensor([1.0, 1.0])) == 0.0


def test_a_gradient_that_is_not_finite_skips_the_step_and_five_in_a_row_stop_the_run(samples, tmp_path, monkeypatch):
    config = replace(SMALL, steps=9, save_every=1)
    policy, _ = fresh(config)
    rewards_of, calls = train.rewards_of, []

    def poisoned(judgement, sample, config):
        calls.append(sample)
        bad = len(calls) in (1, 2) or len(calls) > 2 * 3  # the first step, then every step from the fourth on
        return rewards_of(judgement, sample, config) + (float("nan") if bad else 0)

    monkeypatch.setattr(train, "rewards_of", poisoned)
    with pytest.raises(InputError, match="step 7: the loss or gradient was not finite 5 steps in a row"):
        train.train(policy, samples, config, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").open()]
    assert [row["skipped"] for row in rows] == [True, False, False, True, True, True, True]
    assert weights(policy).isfinite().all()
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert all(w.isfinite().all() for w in state["adapter"].values()) and state["bad_steps"] == 4
