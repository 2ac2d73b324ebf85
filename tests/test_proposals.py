"""Proposals as geometry: boxes that are what their names say, null regions off the evidence, evidence of another question."""

from dataclasses import replace

import pytest
import torch

import ced
import data
import rollout
from config import Config
from studies import proposals

CONFIG = Config(data="toy", group_size=2, max_new_tokens=16, eval_prompts=2)


def test_evidence_of_another_question_is_as_alike_as_there_is():
    """Same family and answer first, never the same image, at the same place of an image of another size."""

    def one(image: str, family: str, answer: str, size=(100, 100), box=(10.0, 20.0, 30.0, 40.0)) -> data.Sample:
        return data.Sample(f"{image}-{family}", image, None, size, "?", answer, family, (box,))

    asked = one("a", "spatial", "left", box=(0.0, 0.0, 20.0, 20.0))
    left, right = one("b", "spatial", "left", size=(200, 50)), one("c", "spatial", "right", box=(60.0, 0.0, 20.0, 20.0))
    whole = one("d", "spatial", "left", box=(0.0, 0.0, 100.0, 100.0))
    same_image, number = one("a", "spatial", "left"), one("e", "counting", "2", box=(50.0, 50.0, 20.0, 20.0))

    def other(*samples):
        found = proposals.with_evidence_of_another(asked, samples, lambda size: (10, 10), CONFIG)
        return found and found.boxes

    assert other(asked, same_image, number, right, left, whole) == ((5.0, 40.0, 15.0, 80.0),)  # left's, stretched
    assert other(same_image, number, right, whole) == right.boxes
    assert other(number, whole) == number.boxes and other(asked, same_image, whole) is None


def test_proposals_are_what_their_names_say(samples):
    sample = next(s for s in samples if len(s.boxes) == 1)
    made, truth = dict(proposals.proposals(sample, (6, 6), CONFIG)), torch.tensor(sample.boxes)
    for iou in proposals.IOUS:
        assert float(ced.box_iou(truth, made[f"IoU {iou}"])) == pytest.approx(iou, abs=1e-4)
    step = made["shifted by 0.25 of the short side"] - truth
    assert step[0].norm() == pytest.approx(0.25 * 84) and (step[0, 2:] == 0).all()
    assert made["scaled x0.5"][0, 2:].tolist() == [w / 2 for w in sample.boxes[0][2:]]
    assert float(ced.box_iou(truth, made["random box"])) <= CONFIG.max_iou
    assert made["another object"] is None or tuple(made["another object"][0].tolist()) not in sample.boxes
    for boxes in (boxes for boxes in made.values() if boxes is not None):
        assert (boxes[:, :2] >= 0).all() and (boxes[:, :2] + boxes[:, 2:] <= 84 + 1e-9).all()


def test_another_object_is_of_another_class(samples):
    sample = next(s for s in samples if proposals.other_object(s, rollout.seeded(0)) is not None)
    chosen = tuple(proposals.other_object(sample, rollout.seeded(0))[0].tolist())
    classes = {box: name for name, box in proposals.annotations(sample)}
    assert classes[chosen] not in {classes[box] for box in sample.boxes}
    assert proposals.other_object(replace(sample, image_id="line-1"), rollout.seeded(0)) is None


def test_nulls_off_the_evidence_leave_it_alone(samples, few_proposals):
    for sample in samples[:5]:
        boxes = dict(proposals.proposals(sample, (6, 6), CONFIG))["random box"]
        if boxes is not None:
            masks = proposals.nulls_off_evidence(boxes, sample, (6, 6), CONFIG)
            truth = ced.region_tokens(torch.tensor(sample.boxes), sample.size, (6, 6))
            assert masks.shape == (3, 36) and masks.any(1).all() and not (masks & truth).any()


def test_one_null_of_three_on_the_evidence_is_a_margin_of_minus_061():
    assert float(ced.evidence_margin(torch.tensor([0.0, 6.0, 0.0, 0.0]), 1e-6)) == pytest.approx(-0.6089, abs=1e-4)


def test_iou_of_regions_counts_overlaps_once():
    a, b = torch.tensor([[0.0, 0, 2, 2], [1.0, 0, 2, 2]]), torch.tensor([[2.0, 0, 2, 2]])
    assert proposals.region_iou(a, b) == pytest.approx(2 / 8)  # (0..3) x 2 against (2..4) x 2
