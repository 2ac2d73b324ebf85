"""Sampling and judging a group: spans, yes/no log-odds, seeds."""

from dataclasses import replace

import pytest
import torch
from helpers import first, fresh, naive_log_probs

import ced
import data
import rollout
from config import EVIDENCE, Config
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


# ── where the evidence is ──
ATTRIBUTED = replace(CONFIG, evidence="attributed")


def test_the_right_answer_takes_the_place_of_a_wrong_one_and_a_right_one_keeps_its_tokens(tiny_policy, samples):
    sample = replace(first(samples, "counting"), answer="2")
    texts = [LOOK.format("star", "3"), "no answer at all", HABIT.format("star", "2"), LOOK.format("star", "2")]
    ids, spans = rollout.right_rows(tiny_policy, rollout.given_group(tiny_policy, sample, texts, CONFIG))
    ends = [int(span.nonzero().max()) + 1 for span in spans]
    assert [tiny_policy.decode(row[:end]) for row, end in zip(ids, ends)] == [
        LOOK.format("star", "2").split(" </answer>")[0], HABIT.format("star", "2").split(" </answer>")[0],
        LOOK.format("star", "2").split(" </answer>")[0]]  # fmt: skip
    assert [tiny_policy.decode(row[span]) for row, span in zip(ids, spans)] == ["2", "2", "2"]


def test_where_no_response_answers_the_right_answer_follows_the_prompt(tiny_policy, samples):
    sample = first(samples, "attribute")
    ids, spans = rollout.right_rows(tiny_policy, rollout.given_group(tiny_policy, sample, ["star", "blue star"], CONFIG))
    assert tiny_policy.decode(ids[0]) == f"<answer> {sample.answer} </answer>"
    assert tiny_policy.decode(ids[spans]) == sample.answer


@pytest.mark.parametrize("kind", EVIDENCE)
def test_the_regions_of_every_kind_of_evidence(kind, tiny_policy, samples):
    """K + 1 different regions of as many tokens, the same at every visit; no null shares more than a tenth of the evidence."""
    config = replace(CONFIG, evidence=kind)
    for sample in [first(samples, family) for family in data.FAMILIES]:
        texts = [LOOK.format("star", sample.answer), HABIT.format("star", sample.answer)]
        group = rollout.given_group(tiny_policy, sample, texts, config)
        (masks, nulls), again = (rollout.regions_of(tiny_policy, group, config) for _ in range(2))
        assert torch.equal(masks, again[0]) and torch.equal(nulls, again[1])
        assert len({tuple(mask) for mask in masks.tolist()}) == 4 and len(set(masks.sum(-1).tolist())) == 1
        assert (masks[1:] & masks[0]).sum(-1).max() <= 0.1 * masks[0].sum()
        assert len(nulls) <= 3 and nulls.shape[1] == len(rollout.evidence_boxes(sample, config))


def test_attributed_evidence_lies_where_the_boxes_are_which_it_never_sees(tiny_policy, samples):
    chosen = [s for s in samples if s.family in ("attribute", "spatial")][:6]
    overlap = []
    for sample in chosen:
        group = rollout.sample_group(tiny_policy, replace(sample, boxes=()), ATTRIBUTED, 8, rollout.seeded(0, sample.id))
        found = rollout.regions_of(tiny_policy, group, ATTRIBUTED)[0][0]
        truth = ced.region_tokens(torch.tensor(sample.boxes), sample.size, group.vision.grid)
        overlap.append(float((found & truth).sum() / (found | truth).sum()))
    assert sum(overlap) / len(overlap) > 0.5  # random tokens: 0.1


def test_the_reference_chooses_and_the_policy_does_not(samples):
    policy, _ = fresh(ATTRIBUTED)
    group = rollout.given_group(policy, samples[0], [LOOK.format("star", samples[0].answer)], ATTRIBUTED)
    own = replace(ATTRIBUTED, evidence="attributed-policy")
    before = [rollout.regions_of(policy, group, config)[0] for config in (ATTRIBUTED, own)]
    assert torch.equal(*before)
    with torch.no_grad():
        for p in policy.adapter.parameters():
            if p.requires_grad:
                p.add_(0.2 * torch.randn(p.shape, generator=rollout.seeded(0)))
    after = [rollout.regions_of(policy, group, config)[0] for config in (ATTRIBUTED, own)]
    assert torch.equal(before[0], after[0]) and not torch.equal(before[1], after[1])
    with policy.reference():  # nothing switches the adapter on again before its end
        assert torch.equal(rollout.regions_of(policy, group, ATTRIBUTED)[0], before[0])
        assert torch.equal(rollout.regions_of(policy, group, own)[0], before[1])
    assert torch.equal(rollout.regions_of(policy, group, own)[0], after[1])


def test_how_many_rows_are_scored_at_once_changes_no_attribution(tiny_policy, samples):
    group = rollout.sample_group(tiny_policy, samples[0], ATTRIBUTED, 6, rollout.seeded(1))
    alike = [rollout.attributions_of(tiny_policy, group, replace(ATTRIBUTED, evidence_rows=rows)) for rows in (0, 4, 13)]
    for a in alike[1:]:
        torch.testing.assert_close(a, alike[0], atol=1e-4, rtol=1e-3)
