"""RS-GRPO: spans, rewards, Eqs. 7–10 and the released code's advantages on numbers worked by hand."""

import math
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from helpers import FAMILIES, adapter_gradient, answered, learnt, naive_log_probs, random_image

import grpo
from config import Config
from models import Responses
from related import rs_grpo
from related.rs_grpo import (
    HELD_TRUE,
    NOTHING,
    SCOPES,
    contained,
    perception_reward,
    read_evidence,
    scoped_rewards,
    stages_of,
    token_advantages,
    well_formed,
)

GOOD = (
    "<observe> look at the stars [2]: </observe> <evidence> [1]: no relevant information [2]: 3 stars "
    "[3]: no relevant information </evidence> <think> 3 stars </think> <answer> 3 </answer><|im_end|>"
)
# G = 3: the first recorded the evidence and answered wrongly; the other two the reverse.
REWARDS = torch.tensor([[1, 1, 1], [1, 0.25, 0.25], [0, 1, 1]])  # format, perception, derivation: (M, G)
STAGES = torch.tensor([[1, 2, 3, 4], [2, 4, 4, 4], [2, 4, 4, 4]])
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 0, 0]]).bool()
ROOT2 = math.sqrt(2)


# ── Eqs. 7–10 ──
def test_eq_8_averages_the_channels_in_scope():
    outside, observe, evidence, think, answer = scoped_rewards(REWARDS, SCOPES).tolist()
    assert outside == [1, 1, 1] and observe == evidence == [1, 0.625, 0.625] and think == answer == [0.5, 1, 1]


def test_eq_9_normalises_a_stage_over_the_group():
    found = token_advantages(REWARDS, STAGES, SCOPES, 0.0)
    expected = torch.tensor([[ROOT2, ROOT2, -ROOT2, -ROOT2], [-ROOT2 / 2, ROOT2 / 2, 0, 0], [-ROOT2 / 2, ROOT2 / 2, 0, 0]])
    torch.testing.assert_close(found * MASK, expected)


def test_equal_rewards_in_a_scope_give_exactly_zero():
    rewards = torch.tensor([[0.1] * 3, [0.7] * 3, [0.0, 1.0, 0.3]])
    found = token_advantages(rewards, torch.tensor([[0, 1, 2, 3]] * 3), SCOPES, 1e-4)
    assert (found[:, :3] == 0).all() and (found[:, 3] != 0).all()


def test_one_advantage_a_response_blames_right_evidence_for_a_wrong_answer():
    mixed = grpo.group_advantages(rs_grpo.Scoped(REWARDS, SCOPES).mean(), 0.0)
    torch.testing.assert_close(mixed, torch.tensor([-ROOT2, ROOT2 / 2, ROOT2 / 2]))


def test_eq_10_clips_each_token_on_its_own_side():
    """ρ = 1.5 at (1, 1) with A > 0 counts 1.28; ρ = 0.5 at (2, 1) with A < 0 counts 0.8; the mean is over 8 tokens."""
    advantages = token_advantages(REWARDS, STAGES, SCOPES, 0.0)
    old = torch.full((3, 4), -2.0)
    new = old.clone()
    new[0, 0] += math.log(1.5)
    new[1, 0] += math.log(0.5)
    shares = grpo.token_shares(MASK, "token")
    loss, stats = grpo.grpo_loss(new, old, new, advantages, shares, 0.2, 0.28, 0.0)
    by_hand = -(1.28 * ROOT2 + ROOT2 - 2 * ROOT2 - 0.8 * ROOT2 / 2 + ROOT2 / 2 - ROOT2 / 2 + ROOT2 / 2) / 8
    assert float(loss) == pytest.approx(by_hand, abs=1e-6) and by_hand == pytest.approx(-0.067175, abs=1e-6)
    assert stats["clip_fraction"] == pytest.approx(2 / 8)


def test_advantages_of_a_response_and_of_its_tokens_give_one_loss():
    generator = torch.Generator().manual_seed(0)
    new, old = torch.randn(2, 3, 4, generator=generator)
    a = torch.tensor([1.0, -0.3, 0.2])
    for one, other in zip(grpo.clipped_surrogate(new, old, a, 0.2, 0.3), grpo.clipped_surrogate(
            new, old, a[:, None].expand(3, 4), 0.2, 0.3)):  # fmt: skip
        assert torch.equal(one, other)


def test_the_released_advantages_normalise_each_channel_alone():
    """Sample std, ε = 1e-6, no averaging: (x − mean) / std of (1, ¼, ¼) is 2/√3, and of (0, 1, 1) is −2/√3, whatever the weight
    3. Of two channels that are not 0, a token's loss holds half."""
    channel = lambda r: (r - r.mean()) / (r.std(correction=1) + 1e-6)  # noqa: E731
    for weight in (1.0, 3.0):
        perception, derivation = (channel(weight * REWARDS[m])[0] for m in (1, 2))
        assert float(perception) / 2 == pytest.approx(0.57735, abs=1e-5) == -float(derivation) / 2
    ours = token_advantages(REWARDS, STAGES, SCOPES, 0.0)[0]
    assert float(ours[0]) == pytest.approx(ROOT2, abs=1e-5) and float(ours[2]) == pytest.approx(-ROOT2, abs=1e-5)


def test_without_gold_evidence_derivation_speaks_on_the_evidence_too():
    """A record that depends on the image (g = 1) and leads to a wrong answer earns no more than one that does neither harm."""
    rewards = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    looks = scoped_rewards(rewards, HELD_TRUE)[2].tolist()
    assert looks[0] == looks[1] < looks[2]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_on_two_pages_is_the_gradient_of_naive_forwards(family, tmp_path, monkeypatch):
    """Every token with the advantage worked out above, in a mean over the group's 8 tokens, without KL."""
    policy, group = answered(family, tmp_path / "page.png")
    images = [random_image(90, 60), random_image(48, 64, seed=1)]
    visions = [policy.encode(image) for image in images]
    prompt = policy.prompt_of_pages("What color?", [v.features[0].shape[1] for v in visions], "{pages} {question}")
    responses = Responses(group.responses.ids[:, :4], MASK, *torch.zeros(2, 3, 4))
    group = replace(group, visions=visions, prompt=prompt, responses=responses)
    rows = iter(STAGES.tolist())
    monkeypatch.setattr(rs_grpo, "stages_of", lambda ids, decode: next(rows)[: len(ids)])
    scoped = rs_grpo.Scoped(REWARDS, SCOPES)
    config = Config(method="rs-grpo", average="token", beta=0.0, temperature=1.2)
    found = learnt((policy, group), config, scoped)
    advantages, loss = [[1, 1, -1, -1], [-0.5, 0.5], [-0.5, 0.5]], 0.0
    for ids, own in zip(responses.ids, advantages):
        log_p = naive_log_probs(policy, prompt, images, ids[: len(own)], 1.2)
        loss = loss - (log_p * ROOT2 * torch.tensor(own)).sum() / 8
    expected = adapter_gradient(policy, loss)
    scale = float(expected.abs().max())
    assert scale > 1e-3
    torch.testing.assert_close(found, expected, atol=1e-3 * scale, rtol=0)  # ε of the advantage is 1e-4


# ── spans ──
def characters(ids):
    return "".join(chr(i) for i in ids)


def test_stages_by_the_character():
    text = "ab<observe>c</observe><evidence>d</evidence><think>e</think><answer>f</answer>$"
    stages = stages_of([ord(c) for c in text], characters)
    begins = [text.index(f"<{tag}>") for tag in rs_grpo.STAGES]
    for stage, (a, b) in enumerate(pairwise([0, *begins, len(text)])):
        assert stages[a:b] == [stage] * (b - a)


WORDS = {0: "<think> a", 1: " b </think", 2: "><answer", 3: "> c", 4: "</answer>", 5: "</s>", 6: "<", 7: "evidence", 8: "> d"}


@pytest.mark.parametrize("ids, stages", [
    ([0, 1, 2, 3, 4, 5], [3, 3, 4, 4, 4, 4]),  # tokens straddle both sides of two tags; the end falls to the answer
    ([6, 7, 8, 0, 8], [2, 2, 2, 3, 3]),  # the token with the first character of the tag
    ([3, 0, 1, 6, 7, 8], [0, 3, 3, 2, 2, 2]),  # a wrong order: what came last counts; before any tag 0
    ([0, 1, 2, 3, 0, 3], [3, 3, 4, 4, 4, 4]),  # a repeated tag counts where it first stands
    ([3, 4], [0, 0]),
    ([], []),
])  # fmt: skip
def test_stages_of_tokens_that_straddle_tags(ids, stages):
    assert stages_of(ids, lambda some: "".join(WORDS[i] for i in some)) == stages


@pytest.mark.parametrize("text, right", [
    (GOOD, True),
    (GOOD.removesuffix("<|im_end|>"), True),
    (f" \n{GOOD}<|im_end|>\n", True),
    (GOOD.replace("</think> ", "</think> so "), False),
    (GOOD.replace("<observe>", ""), False),
    (GOOD + GOOD, False),
    (GOOD.replace(" 3 stars </think>", " 3 <answer> stars </think>"), False),
    (GOOD.replace("<think> 3 stars </think> <answer> 3 </answer>", "<answer> 3 </answer> <think> 3 stars </think>"), False),
    ("<think> 3 stars </think> <answer> 3 </answer>", False),
    ("", False),
])  # fmt: skip
def test_the_format_is_four_stages_in_order_each_once(text, right):
    assert well_formed(text) is right


def test_evidence_is_read_a_page_at_a_time():
    assert read_evidence(GOOD, 3) == [NOTHING, "3 stars", NOTHING]
    assert read_evidence(GOOD, 2) == [NOTHING, "3 stars"]  # what it says of a page that is not there is not heard
    assert read_evidence(GOOD.replace("[3]:", "[2]:"), 3) == [NOTHING, None, None]  # twice, and never
    assert read_evidence(GOOD.replace("</evidence>", ""), 3) == [None] * 3
    assert read_evidence("<evidence>\n[12]: a\n b\n[0]: c </evidence>", 12) == [None] * 11 + ["a b"]


GOLD = [NOTHING, "3 stars", NOTHING]


@pytest.mark.parametrize("said, reward", [
    (GOLD, 1.0),
    ([NOTHING, "2 stars", NOTHING], 0.4),
    (["3 stars", NOTHING, NOTHING], 0.2),
    ([None, "3 stars", None], 0.6),
    ([None] * 3, 0.0),
])  # fmt: skip
def test_perception_by_hand(said, reward):
    assert perception_reward(said, GOLD, 3.0) == pytest.approx(reward)


def test_real_records_are_compared_by_containment():
    said = ["No relevant information.", "The chart shows 3 red stars, in 2019.", NOTHING]
    assert perception_reward(said, [NOTHING, "3 red stars", NOTHING], 3.0, contained) == 1
    assert perception_reward(said, [NOTHING, "3 red star", NOTHING], 3.0, contained) == pytest.approx(0.4)  # whole words
    assert not contained("no relevant information but 3", NOTHING)


def test_the_rewards_of_the_rows():
    """One response of each kind, and what every method makes of them."""
    bad = GOOD.replace("3 stars [3]", "2 stars [3]").replace("<answer> 3", "<answer> 2")
    sample = SimpleNamespace(gold="exact", pages=[SimpleNamespace(evidence=e) for e in ("", "3 stars", "")])
    judgement = SimpleNamespace(group=SimpleNamespace(texts=[GOOD, bad, "3"], sample=sample), r_ans=torch.tensor([1.0, 0, 0]),
                                m=torch.tensor([1.0, -1.0, 0.0]), audited=torch.tensor([True, True, False]))  # fmt: skip
    config = SimpleNamespace(evidence_weight=3.0, step_weight=0.1, tau_g=0.2)
    scoped = rs_grpo.rewards(judgement, config)
    torch.testing.assert_close(scoped.rewards, torch.tensor([[1, 1, 0], [1, 0.4, 0], [1, 0, 0]]))
    torch.testing.assert_close(rs_grpo.mixed(judgement, config), torch.tensor([1, 1.4 / 3, 0]))
    torch.testing.assert_close(rs_grpo.outcome(judgement, config), torch.tensor([1, 0.5, 0]))
    torch.testing.assert_close(rs_grpo.step(judgement, config), torch.tensor([2.1, 1 + 0.2 / 3, 0]))
    gate = rs_grpo.ced_rewards(judgement, config).rewards[1]
    assert gate.tolist() == pytest.approx([1, 0, 0], abs=1e-4)
    sample.gold = ""
    assert (rs_grpo.rewards(judgement, config).rewards[1] == 0).all()
