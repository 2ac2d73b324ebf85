"""PAPO: the hook's gradient against naive forwards over both images, and its arithmetic on hand-worked numbers."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import FAMILIES, RELATED, adapter_gradient, answered, both_images, learnt, naive_log_probs
from PIL import Image

from related.papo import blacken, papo_loss
from rollout import seeded


@pytest.fixture(scope="module", params=FAMILIES)
def setting(request, tmp_path_factory):
    return answered(request.param, tmp_path_factory.mktemp("image") / "image.png")


@pytest.mark.parametrize("detach", (False, True))
def test_papo_s_gradient_is_that_of_naive_forwards_over_both_images(setting, detach):
    policy, group = setting
    (seen, masked), loss = both_images(group, "papo", RELATED.papo_mask), 0.0
    for ids, mask in zip(group.responses.ids, group.responses.mask):
        log_p, log_q = (naive_log_probs(policy, group.prompt, image, ids, RELATED.temperature) for image in (seen, masked))
        for p, q in zip(log_p[mask], log_q[mask].detach() if detach else log_q[mask]):
            kl = (q - p).exp() - (q - p) - 1
            loss = loss + (-RELATED.papo_gamma * kl - RELATED.papo_eta * (p + q)) / mask.sum() / 3
    config = replace(RELATED, method="papo", papo_detach=detach)
    equal = learnt(setting, config, torch.ones(3))  # equal rewards: nothing but the extra loss is left
    expected = adapter_gradient(policy, loss)
    scale = float(expected.abs().max())
    assert scale > 1e-3
    torch.testing.assert_close(equal, expected, atol=1e-4 * scale, rtol=0)
    chunked = learnt(setting, replace(config, update_rows=1), torch.ones(3))  # adds up over rows, under one mask
    torch.testing.assert_close(chunked, expected, atol=1e-4 * scale, rtol=0)


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
