"""PAPO and VPPO: the hooks' gradients against naive forwards over both images, and their arithmetic on hand-worked numbers."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from helpers import FAMILIES, naive_log_probs, naive_logits, random_image, random_policy
from PIL import Image

import data
import grpo
import train
from config import Config, InputError, flag
from methods import METHODS
from models import Responses
from related.papo import blacken, papo_loss
from related.vppo import divergence, token_dependency, token_filter, token_weights, trajectory_scale
from rollout import Group, seeded

CONFIG = Config(group_size=3, beta=0.0, temperature=0.7, papo_gamma=0.7, papo_eta=0.2)
REWARDS = torch.tensor([1.0, 0.0, 0.5])


@pytest.fixture(scope="module", params=FAMILIES)
def setting(request, tmp_path_factory):
    """A random policy whose adapter has something to say, and a group of three answers of 5, 3 and 5 tokens."""
    policy = random_policy(request.param)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in policy.add_lora(layers=2, rank=4, alpha=8):
            p.copy_(torch.randn(p.shape, generator=generator) * 0.1)
    path = tmp_path_factory.mktemp("image") / "image.png"
    random_image(90, 60).save(path)
    sample = data.Sample("s", "1", path, (90, 60), "What color?", "red", "attribute", ((0.0, 0.0, 30.0, 30.0),))
    vision = policy.encode(data.open_image(path))
    ids = torch.randint(12, 70, (3, 5), generator=generator)
    ids[2] = ids[0]  # a duplicate, measured once and scattered back
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
    prompt = policy.prompt(sample.question, vision.features[0].shape[1])
    return policy, Group(sample, vision, prompt, None, Responses(ids, mask, *torch.zeros(2, 3, 5)), ["a", "b", "a"], [None] * 3)


def gradient(policy, loss=None) -> torch.Tensor:
    """The adapter's gradient, of a loss or as it lies there; cleared for the next one."""
    if loss is not None:
        loss.backward()
    grads = torch.cat([p.grad.flatten() for p in policy.adapter.parameters() if p.requires_grad])
    policy.adapter.zero_grad()
    return grads


def learnt(setting, config: Config, rewards: torch.Tensor) -> torch.Tensor:
    """The gradient that step 3 of the loop gives the group."""
    policy, group = setting
    train.learn(policy, group, None, rewards, config, update=0, n=1)
    return gradient(policy)


def both_images(group, name: str, p: float) -> tuple[Image.Image, Image.Image]:
    image = data.open_image(group.sample.image)
    return image, blacken(image, CONFIG.mask_patch, p, seeded(CONFIG.seed, name, "s", "a", "b", "a"))


@pytest.mark.parametrize("detach", (False, True))
def test_papo_s_gradient_is_that_of_naive_forwards_over_both_images(setting, detach):
    policy, group = setting
    (seen, masked), loss = both_images(group, "papo", CONFIG.papo_mask), 0.0
    for ids, mask in zip(group.responses.ids, group.responses.mask):
        log_p, log_q = (naive_log_probs(policy, group.prompt, image, ids, CONFIG.temperature) for image in (seen, masked))
        for p, q in zip(log_p[mask], log_q[mask].detach() if detach else log_q[mask]):
            kl = (q - p).exp() - (q - p) - 1
            loss = loss + (-CONFIG.papo_gamma * kl - CONFIG.papo_eta * (p + q)) / mask.sum() / 3
    config = replace(CONFIG, method="papo", papo_detach=detach)
    equal = learnt(setting, config, torch.ones(3))  # equal rewards: nothing but the extra loss is left
    expected = gradient(policy, loss)
    scale = float(expected.abs().max())
    assert scale > 1e-3
    torch.testing.assert_close(equal, expected, atol=1e-4 * scale, rtol=0)
    chunked = learnt(setting, replace(config, update_rows=1), torch.ones(3))  # adds up over rows, under one mask
    torch.testing.assert_close(chunked, expected, atol=1e-4 * scale, rtol=0)


def test_vppo_s_gradient_is_that_of_naive_forwards_over_both_images(setting):
    policy, group = setting
    images, ids, mask = both_images(group, "vppo", CONFIG.vppo_mask), group.responses.ids, group.responses.mask
    logits = [[naive_logits(policy, group.prompt, image, row) / CONFIG.temperature for row in ids] for image in images]
    s = [
        [((p.softmax(0) * (p.log_softmax(0) - q.log_softmax(0))).sum()).item() for p, q in zip(*pair)] for pair in zip(*logits)
    ]
    lengths = mask.sum(-1).tolist()
    means = [sum(row[:n]) / n for row, n in zip(s, lengths)]
    s_hat = [(x - min(means)) / (max(means) - min(means)) for x in means]
    top = 0.9 + 0.1 / (sum(s_hat) / 3)
    advantages, loss = grpo.group_advantages(REWARDS, CONFIG.eps_adv).tolist(), 0.0
    for i, n in enumerate(lengths):
        log_p = logits[0][i].log_softmax(-1)
        for t in sorted(range(n), key=lambda t: -s[i][t])[: math.ceil(0.4 * n)]:
            loss = loss - advantages[i] * (0.9 + s_hat[i] * (top - 0.9)) * log_p[t, ids[i, t]] / n / 3
    found, expected = learnt(setting, replace(CONFIG, method="vppo"), REWARDS), gradient(policy, loss)
    scale = float(expected.abs().max())
    assert scale > 1e-3
    torch.testing.assert_close(found, expected, atol=1e-4 * scale, rtol=0)

    with torch.no_grad():
        both = group.vision.edited(
            [torch.cat([m, policy.encode(images[1]).features[i]]) for i, m in enumerate(group.vision.features)]
        )
        prefix = policy.read(group.prompt, both)
        for rows, length in product((0, 1, 2, 3), (5, 1)):
            dependency = token_dependency(policy, prefix, ids[:, :length], CONFIG.temperature, rows)
            torch.testing.assert_close(dependency, torch.tensor(s)[:, :length], atol=1e-5, rtol=1e-4)
    assert not token_weights(policy, group, None, CONFIG).requires_grad


# ── hand-worked numbers ──
def test_papo_loss_by_hand():
    log_probs, masked = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.0, -2.0 + math.log(3)]])
    # k3 = 0 and 3 − ln 3 − 1; H_ori + H_mask = 2 and 4 − ln 3
    loss = papo_loss(log_probs, masked, torch.tensor([[0.5, 0.5]]), gamma=0.1, eta=0.01, bound=10.0)
    assert float(loss) == pytest.approx(-0.1 * (2 - math.log(3)) / 2 + 0.01 * (6 - math.log(3)) / 2, abs=1e-6)


@pytest.mark.parametrize("masked", (-500.0, 0.0))
def test_papo_counts_no_token_more_than_the_bound_and_stays_finite(masked):
    """Without a bound, e⁵⁰⁰ is infinite; where the bound holds, only the entropies still pull."""
    log_probs = torch.tensor([[-500.0 - masked]], requires_grad=True)
    masked = torch.tensor([[masked]], requires_grad=True)
    loss = papo_loss(log_probs, masked, torch.ones(1, 1), gamma=0.1, eta=0.01, bound=10.0)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(-0.1 * 10 + 0.01 * 500)
    assert float(log_probs.grad) == float(masked.grad) == pytest.approx(-0.01)


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


def test_blacken_takes_whole_patches_and_about_p_of_them():
    white = Image.new("RGB", (14 * 40 + 5, 14 * 30 + 1), "white")
    pixels = np.array(blacken(white, 14, 0.6, seeded(0)))
    assert pixels.shape == (14 * 30 + 1, 14 * 40 + 5, 3)
    black = [pixels[y : y + 14, x : x + 14] == 0 for y in range(0, pixels.shape[0], 14) for x in range(0, pixels.shape[1], 14)]
    assert len(black) == 31 * 41 and all(b.all() or not b.any() for b in black)
    assert np.mean([b.all() for b in black]) == pytest.approx(0.6, abs=0.05)
    assert np.array(white).min() == 255  # the image itself stays as it is
    assert (np.array(blacken(white, 14, 0.6, seeded(0))) == pixels).all()
    assert (np.array(blacken(white, 14, 0.6, seeded(1))) != pixels).any()
    assert [int(np.array(blacken(white, 14, p, seeded(0))).max()) for p in (0.0, 1.0)] == [255, 0]


@pytest.mark.parametrize("name, value, expected", [
    ("papo_mask", 1.5, "at most 1"), ("vppo_ratio", 0.0, "above 0"), ("vppo_beta_min", -0.1, "at least 0"),
    ("mask_patch", 0, "at least 1"), ("papo_bound", 0.0, "above 0"),
])  # fmt: skip
def test_numbers_out_of_range_are_refused(name, value, expected):
    with pytest.raises(InputError, match=f"{flag(name)}: expected .*{expected}; found {value}"):
        replace(CONFIG, **{name: value}).check()


def test_the_help_names_every_method():
    (text,) = (action.help for action in train.make_parser()._actions if action.dest == "method")
    assert text.split(":")[0].replace(" or ", ", ").split(", ") == list(METHODS)
