"""Integrated gradients against closed forms and transformers' own model; regions against hand-worked ones."""

from dataclasses import replace

import pytest
import torch
from helpers import FAMILIES, naive_log_probs, random_image, random_policy

import data
import rollout
from attribution import integrated_gradients, region_of
from config import Config

CONFIG = Config(group_size=4, evidence="attributed", evidence_steps=6)


def maps_of(*shape: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for _ in range(2)]


# ── integrated gradients ──
def test_a_linear_score_is_shared_out_exactly():
    """One step is enough: a_i = (h − h')_i · w_i, over both maps; a token without a weight gets nothing."""
    maps, weights = maps_of(5, 3), maps_of(5, 3, seed=1)
    baselines = [m.mean(0) for m in maps]
    weights = [w.index_fill(0, torch.tensor([2]), 0.0) for w in weights]
    a = integrated_gradients(lambda x: sum((m * w).sum((1, 2)) for m, w in zip(x, weights)), maps, baselines, 1, 1)
    expected = sum(((m - b) * w).sum(-1) for m, b, w in zip(maps, baselines, weights))
    torch.testing.assert_close(a, expected)
    assert a[2] == 0


def test_a_product_is_halved_between_its_factors():
    """F = x y from 0 to (2, 3): ∂F/∂x = 3α and ∂F/∂y = 2α, so each factor is owed ½ · 6. The midpoint rule is exact for it."""
    a = integrated_gradients(lambda x: x[0][:, 0, 0] * x[0][:, 1, 0], [torch.tensor([[2.0], [3.0]])], [torch.zeros(1)], 1, 1)
    assert a.tolist() == [3.0, 3.0]


def test_a_saturated_score_is_explained_by_the_path_and_not_by_its_end():
    """F = 1 − e^(−20 x) has a gradient of 4e-8 at x = 1; what x has brought is 1. The error falls with the step's square."""

    def error(steps: int) -> float:
        score, one, nothing = lambda x: 1 - (-20 * x[0]).exp(), [torch.ones(1, 1)], [torch.zeros(1)]
        return abs(1 - float(integrated_gradients(score, one, nothing, steps, steps)))

    assert error(10) < 0.2 and error(20) < error(10) / 3 and error(40) < error(20) / 3


@pytest.mark.parametrize("at_once", [1, 4, 6, 99])
def test_how_many_points_are_walked_at_once_changes_nothing(at_once):
    maps = maps_of(4, 2)
    a = [integrated_gradients(lambda x: x[0].tanh().prod(-1).sum(-1) * x[1].sum((1, 2)), maps, [torch.ones(2)] * 2, 6, n)
         for n in (2, at_once)]  # fmt: skip
    torch.testing.assert_close(*a)


def test_halves_are_walked_in_full_precision_and_shown_to_the_score_as_they_are():
    seen = []
    maps = [m.bfloat16() for m in maps_of(4, 2)]
    a = integrated_gradients(lambda x: (seen.append(x[0].dtype), x[0].sum((1, 2)) + x[1].sum((1, 2)))[1], maps,
                             [m.float().mean(0) for m in maps], 3, 2)  # fmt: skip
    assert a.dtype == torch.float32 and seen == [torch.bfloat16] * 2


# ── regions ──
@pytest.mark.parametrize("attributions, mass, least, most, expected", [
    ([5, 3, 1, 1], 0.8, 1, 4, [0, 1]),  # 8 of 10 are reached, not passed
    ([5, 3, 1, 1], 0.81, 1, 4, [0, 1, 2]),
    ([1, -9, 5, 0], 0.8, 1, 4, [2]),  # what speaks against the answer is left out, and is no part of the sum
    ([1, -9, 5, 0], 1.0, 1, 4, [0, 2]),
    ([1, -9, 5, 0], 0.1, 3, 4, [0, 2, 3]),  # the least
    ([1, 1, 1, 1], 1.0, 1, 2, [0, 1]),  # the most
    ([1, 1, 1, 1], 0.5, 3, 2, [0, 1]),  # goes first
    ([-3, -1, -2, -4], 0.8, 2, 4, [1, 2]),  # nothing is positive
    ([0, 0, 0], 0.8, 1, 1, [0]),
])  # fmt: skip
def test_regions(attributions, mass, least, most, expected):
    region = region_of(torch.tensor(attributions, dtype=torch.float32), mass, least, most)
    assert region.dtype == torch.bool and region.nonzero().flatten().tolist() == expected


def test_a_region_is_the_smallest_that_holds_the_mass():
    """Against every set of tokens."""
    generator = torch.Generator().manual_seed(0)
    sets = torch.tensor([[i >> n & 1 for n in range(8)] for i in range(256)]).bool()
    for _ in range(50):
        a = torch.randn(8, generator=generator)
        held = (sets * a.clamp(min=0)).sum(-1)
        smallest = int(sets[held >= 0.8 * a.clamp(min=0).sum() - 1e-6].sum(-1).min())
        assert int(region_of(a, 0.8, 1, 8).sum()) == max(1, smallest)


# ── on policies ──
LOOK = "<think> look at the star </think> <answer> {} </answer><|im_end|>"


@pytest.fixture
def asked(tmp_path) -> data.Sample:
    """A question about an image of 6 × 6 visual tokens for every random policy."""
    random_image(96, 96).save(tmp_path / "image.png")
    return data.Sample("s", "1", tmp_path / "image.png", (96, 96), "what color is the star ?", "red", "attribute", ())


@pytest.mark.parametrize("family", FAMILIES)
def test_attributions_add_up_to_what_the_image_brings(family, asked):
    """Completeness, through DeepStack maps and the linear-attention cache: Σ a = log π with the image − with its mean token.

    In bfloat16 they say nearly the same. No weight is left with a gradient.
    """
    policy = random_policy(family)
    policy.add_lora(layers=2, rank=2, alpha=4)
    group = rollout.given_group(policy, asked, [LOOK.format("blue"), "no answer", LOOK.format("red")], CONFIG)
    attributions = rollout.attributions_of(policy, group, replace(CONFIG, evidence_steps=16))
    ids = policy.tokenizer(LOOK.format("red"), return_tensors="pt")["input_ids"][0]
    a, b = rollout.answers.answer_span(ids.tolist(), policy.decode)
    nothing = group.vision.edited([m.mean(1, keepdim=True).expand_as(m) for m in group.vision.features])
    with torch.no_grad():
        with_image = naive_log_probs(policy, group.prompt, data.open_image(asked.image), ids, 1.0)[a:b].sum()
        without = policy.log_probs(policy.read(group.prompt, nothing), ids[None], 1.0)[0, 0, a:b].sum()
    assert float(attributions.sum()) == pytest.approx(2 * float(with_image - without), rel=0.01)
    assert all(p.grad is None for p in policy.adapter.parameters())
    policy.model.bfloat16()
    short = rollout.given_group(policy, asked, group.texts, CONFIG)
    both = torch.stack([attributions, rollout.attributions_of(policy, short, CONFIG)])
    assert torch.corrcoef(both)[0, 1] > 0.9
