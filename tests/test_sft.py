"""Supervised fine-tuning: the loss by hand, the deadline schedule, and what is trained meanwhile."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from helpers import naive_logits, random_image, random_policy
from torch import nn

import sft


def test_the_loss_is_a_weighted_mean():
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    first, second = (-F.log_softmax(row, -1)[0] for row in logits)
    assert sft.response_loss(logits, torch.tensor([0, 0]), torch.tensor([3.0, 1.0])) == pytest.approx((3 * first + second) / 4)


@pytest.mark.parametrize("family", ("qwen2_5_vl", "qwen3_vl", "qwen3_5"))
def test_rows_of_different_length_cost_what_each_costs_alone(family):
    """The batch is read at once, padded on the right; alone, each goes through transformers' own model, from the pixels."""
    policy, image = random_policy(family), random_image(32, 32)
    vision = policy.encode(image)
    n = vision.features[0].shape[1]
    examples, expected, total = [], 0.0, 0.0
    for question, response, weight in (("how many circles", "<answer> 2 </answer>", 1.0), ("is it", "red", 4.0)):
        prompt = policy.prompt(question, n)
        ids = policy.tokenizer(response, add_special_tokens=False, return_tensors="pt")["input_ids"][0]
        examples.append(sft.example(prompt, ids, torch.full((len(ids),), weight)))
        log_p = naive_logits(policy, prompt, image, ids).float().log_softmax(-1).gather(1, ids[:, None])
        expected, total = expected - weight * log_p.sum(), total + weight * len(ids)
    both = vision.edited([m.expand(2, -1, -1) for m in vision.features])
    with torch.no_grad():
        loss, shown = sft.language_loss(policy, both, *sft.batch_of(examples, policy.pad_id))
    assert loss == pytest.approx(float(expected / total), abs=1e-5) and 0 <= shown["right"] <= 1


def losses(weight: nn.Parameter):
    return lambda batch: ((weight - 3) ** 2, {})


def test_training_moves_the_parameters_and_freezes_them_again():
    weight = nn.Parameter(torch.tensor(0.0), requires_grad=False)
    assert sft.train([weight], itertools.repeat(0), losses(weight), 200, 0.1, "fit") == 200
    assert abs(float(weight) - 3) < 0.1 and not weight.requires_grad


def test_a_deadline_that_is_not_reached_changes_nothing():
    ends = []
    for deadline in (float("inf"), 1e6):
        weight = nn.Parameter(torch.tensor(0.0))
        sft.train([weight], itertools.repeat(0), losses(weight), 30, 0.1, "fit", deadline)
        ends.append(float(weight))
    assert ends[0] == ends[1]


def test_a_deadline_ends_a_run_early_and_annealed(monkeypatch):
    clock = itertools.count()  # a second between two looks at the clock
    monkeypatch.setattr(sft.time, "monotonic", lambda: float(next(clock)))
    weight, rates = nn.Parameter(torch.tensor(0.0)), []
    step = torch.optim.AdamW.step
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self: (rates.append(self.param_groups[0]["lr"]), step(self))[1])
    assert sft.train([weight], itertools.repeat(0), losses(weight), 1000, 0.1, "fit", deadline=20.0) == 20
    assert max(rates) > 0.09 and rates[-1] < 0.01 and rates.index(max(rates)) <= 3
