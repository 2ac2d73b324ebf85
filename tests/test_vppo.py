"""VPPO: the hook's gradient against naive forwards over both images, and its arithmetic on hand-worked numbers."""

import math
from dataclasses import replace
from itertools import product

import pytest
import torch
from helpers import FAMILIES, RELATED, adapter_gradient, answered, both_images, learnt, naive_logits

import grpo
from related.vppo import divergence, token_dependency, token_filter, token_weights, trajectory_scale

REWARDS = torch.tensor([1.0, 0.0, 0.5])


@pytest.fixture(scope="module", params=FAMILIES)
def setting(request, tmp_path_factory):
    return answered(request.param, tmp_path_factory.mktemp("image") / "image.png")


def test_vppo_s_gradient_is_that_of_naive_forwards_over_both_images(setting):
    policy, group = setting
    images, ids, mask = both_images(group, "vppo", RELATED.vppo_mask), group.responses.ids, group.responses.mask
    logits = [[naive_logits(policy, group.prompt, image, row) / RELATED.temperature for row in ids] for image in images]
    s = [
        [((p.softmax(0) * (p.log_softmax(0) - q.log_softmax(0))).sum()).item() for p, q in zip(*pair)] for pair in zip(*logits)
    ]
    lengths = mask.sum(-1).tolist()
    means = [sum(row[:n]) / n for row, n in zip(s, lengths)]
    s_hat = [(x - min(means)) / (max(means) - min(means)) for x in means]
    top = 0.9 + 0.1 / (sum(s_hat) / 3)
    advantages, loss = grpo.group_advantages(REWARDS, RELATED.eps_adv).tolist(), 0.0
    for i, n in enumerate(lengths):
        log_p = logits[0][i].log_softmax(-1)
        for t in sorted(range(n), key=lambda t: -s[i][t])[: math.ceil(0.4 * n)]:
            loss = loss - advantages[i] * (0.9 + s_hat[i] * (top - 0.9)) * log_p[t, ids[i, t]] / n / 3
    found, expected = learnt(setting, replace(RELATED, method="vppo"), REWARDS), adapter_gradient(policy, loss)
    scale = float(expected.abs().max())
    assert scale > 1e-3
    torch.testing.assert_close(found, expected, atol=1e-4 * scale, rtol=0)

    with torch.no_grad():
        both = group.vision.edited(
            [torch.cat([m, policy.encode(images[1]).features[i]]) for i, m in enumerate(group.vision.features)]
        )
        prefix = policy.read(group.prompt, both)
        for rows, length in product((0, 1, 2, 3), (5, 1)):
            dependency = token_dependency(policy, prefix, ids[:, :length], RELATED.temperature, rows)
            torch.testing.assert_close(dependency, torch.tensor(s)[:, :length], atol=1e-5, rtol=1e-4)
    assert not token_weights(policy, group, None, RELATED).requires_grad


# ── hand-worked numbers ──
def test_divergence_of_two_coins():
    logits = torch.tensor([[0.5, 0.5], [0.9, 0.1]]).log()
    assert float(divergence(logits, 1.0)) == pytest.approx(0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1))
    assert float(divergence(2 * logits, 2.0)) == pytest.approx(float(divergence(logits, 1.0)))


def test_the_filter_keeps_the_most_dependent_tokens_of_each_response():
    dependency = torch.tensor([[0.1, 0.5, 0.3, 0.2, 0.9], [0.3, 0.1, 0.2, 9.0, 9.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0]]).bool()
    kept = token_filter(dependency, mask, 0.4)  # ⌈2.0⌉, ⌈1.2⌉ and ⌈0.4⌉ tokens; padding never counts
    assert kept.int().tolist() == [[0, 1, 0, 0, 1], [1, 0, 1, 0, 0], [1, 0, 0, 0, 0]]
    assert token_filter(dependency, mask, 1.0).equal(mask)


def test_shaping_has_mean_one_and_spares_groups_without_a_spread():
    dependency = torch.tensor([[0.1, 0.1], [0.2, 9.0], [0.4, 0.4], [0.3, 0.5]])
    mask = torch.tensor([[1, 1], [1, 0], [1, 1], [1, 1]]).bool()  # s = 0.1, 0.2, 0.4, 0.4; ŝ = 0, 1/3, 1, 1, mean 7/12
    scale = trajectory_scale(dependency, mask, 0.9)
    assert scale.tolist() == pytest.approx([0.9, 0.9 + 0.4 / 7, 0.9 + 1.2 / 7, 0.9 + 1.2 / 7])
    assert float(scale.mean()) == pytest.approx(1.0)
    assert trajectory_scale(dependency * 1e-6, mask, 0.9).tolist() == [1.0] * 4
