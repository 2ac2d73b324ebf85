"""The table of methods: its hooks reach the loss, the router and the floor hold in every row."""

import json
from dataclasses import replace

import pytest
import torch
from helpers import SMALL, first, fresh, gradient, trained, weights

import data
import train
from config import Config
from methods import COMPARED, METHODS, Method, rewards_of
from rollout import Judgement

CONFIG = Config(**{"group_size": 8, "max_new_tokens": 16})


@pytest.fixture(scope="module")
def unusual(world, tiny_policy):
    """Questions that the frozen backbone often gets wrong: groups whose answers are all right teach correctness nothing."""
    return data.load(world["conflict"], tiny_policy.grid, 0.005, 0.6, 2)[0]


@pytest.mark.parametrize("method", COMPARED)
def test_every_method_moves_the_adapter(unusual, tmp_path, method):
    policy, _ = fresh(SMALL)
    start = weights(policy)
    assert (trained(replace(SMALL, method=method, steps=1), unusual, tmp_path / "run") - start).abs().max() > 0
    (line,) = (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    assert (row := json.loads(line))["grad_norm"] > 0  # weight decay alone would move it too
    assert {"reward", "r_ans", "margin", "zero_variance", "non_constant", "same_answer_different_reward", "kl", "clip_fraction",
            "grad_norm", "response_length", "inversions", "placed", "null_tokens", "seconds"} <= row.keys()  # fmt: skip


def test_hooks_reach_the_gradient(samples, monkeypatch):
    """token_weights scales the surrogate's gradient; extra_loss adds its own."""

    def of(method: Method) -> torch.Tensor:
        monkeypatch.setitem(METHODS, "answer-ced", method)
        return gradient(SMALL, samples[0])

    plain = Method(METHODS["correctness"].reward)
    base = of(plain)
    assert base.abs().max() > 0
    half = of(plain._replace(token_weights=lambda policy, group, j, c: torch.full(group.responses.ids.shape, 0.5)))
    torch.testing.assert_close(half, base / 2)
    both = of(plain._replace(extra_loss=lambda policy, group, rows, log_probs, shares, c: (log_probs * shares).sum()))
    assert (both - base).abs().max() > 1e-6


def judgement_of(r_ans, m, parsed) -> Judgement:
    r, m, parsed = torch.tensor(r_ans), torch.tensor(m), torch.tensor(parsed)
    return Judgement(r, r > 0, parsed, parsed, m[None], m, -m, parsed[None], m)


def test_presence_is_rewarded_by_correctness_alone(samples):
    judgement = judgement_of([1.0, 0.0], [0.9, -0.9], [True, True])
    assert rewards_of(judgement, first(samples, "presence"), CONFIG).tolist() == [1.0, 0.0]
    assert rewards_of(judgement, first(samples, "counting"), CONFIG).tolist() == pytest.approx([1.09, -0.09], abs=1e-3)


@pytest.mark.parametrize("r_wrong", [0.0, -0.25, 0.5])
@pytest.mark.parametrize("lam, eps_tie", [(0.1, 0.1), (0.4, 0.05), (0.0, 0.0)])
@pytest.mark.parametrize("method", COMPARED)
def test_no_wrong_answer_falls_below_an_unreadable_one(samples, method, r_wrong, lam, eps_tie):
    """Whatever its margin and the weights; at the paper's numbers the floor is r_wrong - eps_tie."""
    m = torch.linspace(-1, 1, 101).tolist()
    config = Config(method=method, r_wrong=r_wrong, lam=lam, eps_tie=eps_tie)
    rewards = rewards_of(judgement_of([r_wrong] * 102, m + [0.0], [True] * 101 + [False]), first(samples, "counting"), config)
    assert (rewards[:-1] >= rewards[-1] - 1e-6).all()
    if r_wrong <= 0 and lam == eps_tie:
        assert rewards[-1] == pytest.approx(r_wrong - config.eps_tie)


def test_the_help_names_every_method():
    (text,) = (action.help for action in train.make_parser()._actions if action.dest == "method")
    assert text.split(":")[0].replace(" or ", ", ").split(", ") == list(METHODS)
