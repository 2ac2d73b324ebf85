"""GRPO against double loops and hand-worked numbers."""

import pytest
import torch
from helpers import FAMILIES, random_policy

import grpo


def test_advantages_by_hand_use_the_population_std():
    a = grpo.group_advantages(torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0]), 0.0)  # mean 0.6, variance 0.24
    torch.testing.assert_close(a, torch.tensor([0.4, -0.6, -0.6, 0.4, 0.4]) / 0.24**0.5)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, -0.3333333])
def test_equal_rewards_give_exactly_zero(value):
    assert (grpo.group_advantages(torch.full((7,), value), 1e-4) == 0).all()


def test_a_group_of_one_is_refused():
    with pytest.raises(ValueError, match="at least 2 responses"):
        grpo.group_advantages(torch.tensor([1.0]), 1e-4)


def test_mask_includes_the_first_eos_and_nothing_after():
    ids = torch.tensor([[5, 9, 5, 9], [5, 5, 5, 5], [8, 5, 9, 9], [5, 5, 5, 9]])  # 8 and 9 both end; 9 also pads
    expected = [[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 1, 1]]
    assert grpo.response_mask(ids, torch.tensor([8, 9])).tolist() == [[bool(x) for x in row] for row in expected]


def test_k3_is_zero_iff_equal_and_positive_otherwise():
    a, b = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    assert (grpo.k3(a, a) == 0).all() and (grpo.k3(a, b) > 0).all()
    assert float(grpo.k3(torch.tensor(0.0), torch.tensor(0.5))) == pytest.approx(2.718281828**0.5 - 1.5, abs=1e-6)


@pytest.mark.parametrize("average", grpo.AVERAGES)
def test_loss_equals_a_double_loop(average):
    generator = torch.Generator().manual_seed(0)
    new, old, ref = (torch.randn(4, 6, generator=generator, dtype=torch.float64) * 0.4 - 1 for _ in range(3))
    weights = torch.rand(4, 6, generator=generator, dtype=torch.float64)
    advantages, lengths, low, high, beta = (
        torch.tensor([1.2, -0.7, 0.0, -0.5], dtype=torch.float64),
        [6, 3, 1, 4],
        0.2,
        0.28,
        0.04,
    )
    mask = torch.arange(6) < torch.tensor(lengths)[:, None]
    shares = grpo.token_shares(mask.double(), average)
    loss, stats = grpo.grpo_loss(new, old, ref, advantages, shares, low, high, beta, weights)

    per_response, tokens, clipped = [], [], 0
    for i, n in enumerate(lengths):
        values = []
        for t in range(n):
            ratio = float((new[i, t] - old[i, t]).exp())
            free, bound = ratio * float(advantages[i]), min(max(ratio, 1 - low), 1 + high) * float(advantages[i])
            clipped += (bound < free) / (n * 4 if average == "response" else sum(lengths))
            log_r = float(ref[i, t] - new[i, t])
            values.append(-min(free, bound) * float(weights[i, t]) + beta * (2.718281828459045**log_r - log_r - 1))
        per_response.append(sum(values) / n)
        tokens += values
    expected = sum(per_response) / 4 if average == "response" else sum(tokens) / len(tokens)
    assert float(loss) == pytest.approx(expected, abs=1e-12)
    assert stats["clip_fraction"] == pytest.approx(clipped, abs=1e-6)
    assert 0 < stats["clip_fraction"] < 1


def test_gradient_is_not_zero_at_ratio_one_although_the_loss_is():
    new = torch.full((2, 3), -1.0, requires_grad=True)
    mask = torch.ones(2, 3, dtype=torch.bool)
    shares = grpo.token_shares(mask, "response")
    loss, stats = grpo.grpo_loss(new, new.detach(), new.detach(), torch.tensor([1.0, -1.0]), shares, 0.2, 0.2, 0.01)
    loss.backward()
    assert float(loss.detach()) == 0 and stats["clip_fraction"] == 0
    torch.testing.assert_close(new.grad, torch.tensor([[-1.0] * 3, [1.0] * 3]) / 6)  # −A / (T · G)


@pytest.mark.parametrize("average", grpo.AVERAGES)
def test_shares_sum_to_one_and_an_empty_response_counts_nothing(average):
    mask = torch.tensor([[True] * 3, [True, False, False]])
    assert float(grpo.token_shares(mask, average).sum()) == pytest.approx(1)
    mask[1] = False
    assert (grpo.token_shares(mask, average)[1] == 0).all() and grpo.token_shares(mask, average).isfinite().all()
    assert (grpo.token_shares(mask & False, average) == 0).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_lora_lands_on_the_last_layers_of_the_language_model_only(family):
    policy = random_policy(family)
    policy.add_lora(layers=2, rank=4, alpha=8)
    names = [name for name, p in policy.adapter.named_parameters() if p.requires_grad]
    assert names and all("lora_" in name for name in names)
    assert all(".language_model.layers.2." in name or ".language_model.layers.3." in name for name in names)
    for part in ("self_attn", "mlp"):
        assert any(part in name for name in names)
    assert any("linear_attn" in name for name in names) == (family == "qwen3_5")


def test_reference_is_the_adapter_switched_off():
    policy = random_policy("qwen3_vl")
    parameters = policy.add_lora(layers=2, rank=4, alpha=8)
    ids, prompt = torch.tensor([[20, 30, 40]]), torch.tensor([15, 16, 17])

    def hidden():
        with torch.no_grad():
            return policy.trunk(input_ids=torch.cat([prompt, ids[0]])[None], use_cache=False).last_hidden_state

    base = hidden()
    with torch.no_grad():
        for p in parameters:
            p.add_(0.3)
    assert (hidden() - base).abs().max() > 1e-3
    with policy.reference():
        torch.testing.assert_close(hidden(), base, atol=0, rtol=0)


@pytest.mark.parametrize("layers", [0, 5])
def test_lora_on_layers_that_do_not_exist_is_refused(layers):
    with pytest.raises(ValueError, match=f"last {layers} decoder layers: the model has 4"):
        random_policy("qwen3_vl").add_lora(layers, 4, 8)
