"""Sampling and judging a group: spans, yes/no log-odds, seeds."""

from dataclasses import replace

import pytest
import torch
from helpers import first, naive_log_probs

import ced
import data
import rollout
from config import Config
from models import Vision

CONFIG = Config(**{"group_size": 8, "max_new_tokens": 16})


LOOK = "<think> look at the {} </think> <answer> {} </answer><|im_end|>"
HABIT = "<think> as usual for {} </think> <answer> {} </answer><|im_end|>"


def test_seeds_are_functions_of_their_key():
    draws = [torch.rand(1, generator=rollout.seeded(*key)).item() for key in [(0, "a"), (0, "a"), (1, "a"), (0, "b")]]
    assert draws[0] == draws[1] and len(set(draws)) == 3


def test_prompts_sampled_together_get_the_answers_they_get_alone(tiny_policy, samples):
    """Prompts of five lengths, padded; chunks of two prompts; log π to rounding. The padded prompt audits as the bare one."""
    mixed = [first(samples, family) for family in data.FAMILIES] + [samples[-1]]
    draws = lambda: [rollout.seeded("together", s.id) for s in mixed]  # noqa: E731
    alone = [rollout.sample_group(tiny_policy, s, CONFIG, 8, d) for s, d in zip(mixed, draws())]
    assert len({len(group.prompt) for group in alone}) > 2
    for rows in (40, 16):
        config = replace(CONFIG, sample_rows=rows)
        groups = list(rollout.sample_groups(tiny_policy, mixed, config, 8, draws()))
        for one, own in zip(groups, alone):
            assert one.sample is own.sample and one.texts == own.texts and torch.equal(one.responses.ids, own.responses.ids)
            for name in ("log_probs", "unit_log_probs"):
                torch.testing.assert_close(getattr(one.responses, name), getattr(own.responses, name), atol=1e-5, rtol=0)
            torch.testing.assert_close(
                rollout.judge(tiny_policy, one, config).m, rollout.judge(tiny_policy, own, config).m, atol=1e-4, rtol=0
            )


def test_sensitivities_equal_the_naive_difference(tiny_policy, samples):
    """Eq. 2 from pixels: the audit's clean pass is transformers' own forward, and every edited row its own forward."""
    sample = first(samples, "attribute")
    group = rollout.given_group(tiny_policy, sample, [LOOK.format("star", "red"), HABIT.format("star", "blue")], CONFIG)
    judgement = rollout.judge(tiny_policy, group, CONFIG)
    ids, (a, b) = group.responses.ids[0], group.spans[0]
    assert tiny_policy.decode(ids[a:b]) == "red"
    with torch.no_grad():
        clean = naive_log_probs(tiny_policy, group.prompt, data.open_image(sample.image), ids, 1.0)[a:b].sum()
        for mask, s in zip(judgement.masks, judgement.s[:, 0]):
            maps = [
                ced.intervene(m[0], mask[None], group.vision.grid, "mean", CONFIG.ring, None) for m in group.vision.features
            ]
            edited = tiny_policy.log_probs(tiny_policy.read(group.prompt, group.vision.edited(maps)), ids[None], 1.0)[0, 0]
            torch.testing.assert_close(s, clean - edited[a:b].sum(), atol=1e-5, rtol=0)


def test_yes_no_is_audited_by_its_log_odds(tiny_policy, samples):
    sample = first(samples, "presence")
    yes, no = LOOK.format("star", "yes"), LOOK.format("star", "no")
    texts = [yes, no, yes.replace("yes", "red"), "no"]
    judgement = rollout.judge(tiny_policy, rollout.given_group(tiny_policy, sample, texts, CONFIG), CONFIG)
    assert judgement.audited.tolist() == [True, True, False, False]
    assert judgement.parsed.tolist() == [True, True, True, False]
    torch.testing.assert_close(
        judgement.s[:, 0], -judgement.s[:, 1], atol=1e-5, rtol=0
    )  # the log-odds change sign with the answer
    assert (judgement.m[2:] == 0).all()


def test_flipping_keeps_case_and_context(tiny_policy):
    encode = lambda text: tiny_policy.tokenizer(text, add_special_tokens=False)["input_ids"]  # noqa: E731
    ids = encode("<think> look </think> <answer> yes </answer>")
    flipped, span = rollout.flipped(tiny_policy, ids, (4, 5))
    assert tiny_policy.decode(flipped) == "<think> look </think> <answer> no </answer>" and span == (4, 5)
    assert rollout.flipped(tiny_policy, ids, (1, 2)) == (ids, None) and rollout.flipped(tiny_policy, ids, None) == (ids, None)


@pytest.mark.parametrize("text, expected", [
    ("yes", "no"), ("No.", "Yes."), ("YES", "NO"), ("Y", "N"), ("n", "y"), ("Ｙ", "N"), ("ｙｅｓ！", "no!"),
    ("eyes? yes", "eyes? no"), ("Nobody? No.", "Nobody? Yes."), ("Absolutely.", "no"), ("Not at all.", "yes"),
    ("The answer is not no but yes.", "The answer is not no but no."), ("red", None), ("yes or no", None), ("", None),
    ("There is no image.", None),
])
def test_the_word_that_was_read_is_turned(tiny_policy, monkeypatch, text, expected):
    """The word that decided, not the first letters that look like it; a lone letter stays one; the unreadable stays."""
    assert rollout.opposite(text) == expected
    monkeypatch.setattr(type(tiny_policy), "decode", lambda self, ids: "".join(map(chr, ids)))
    monkeypatch.setattr(tiny_policy, "tokenizer", lambda text, **_: {"input_ids": list(map(ord, text))})
    ids, span = rollout.flipped(tiny_policy, list(map(ord, f"<{text}>")), (1, 1 + len(text)))
    assert "".join(map(chr, ids)) == f"<{expected or text}>" and span == (expected and (1, 1 + len(expected)))


def test_identical_answers_get_identical_judgements(tiny_policy, samples):
    texts = [LOOK.format("star", "red"), HABIT.format("star", "red"), LOOK.format("star", "red")]
    config = replace(CONFIG, method="cot-ced")
    group = rollout.given_group(tiny_policy, first(samples, "attribute"), texts, config)
    judgement = rollout.judge(tiny_policy, group, config)
    assert judgement.m[0] == judgement.m[2] and judgement.m_cot[0] == judgement.m_cot[2]


def test_vision_keeps_its_grid_when_edited(tiny_policy, samples):
    vision = tiny_policy.encode(data.open_image(samples[0].image))
    assert isinstance(vision.edited(vision.features), Vision) and vision.grid == (6, 6) and len(vision.features) == 2
