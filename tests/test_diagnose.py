"""The diagnostics: chance by hand, proposals as geometry, noise found to be noise, and every one of them from end to end."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import random_policy

import ced
import data
import rollout
from config import Config, InputError
from studies import diagnose, proposals
from studies.diagnose import DIAGNOSTICS, markdown
from studies.study import Study, against_chance, beats_each, beats_mean, relabelled, verdicts
from support import stats
from support.questions import load_samples

CONFIG = Config(group_size=2, max_new_tokens=16, eval_prompts=2)


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    """For time."""
    monkeypatch.setattr(stats, "RESAMPLES", 100)


@pytest.fixture
def few_proposals(monkeypatch):
    """For time."""
    for name, values in {"IOUS": (0.5,), "SHIFTS": (), "SCALES": ()}.items():
        monkeypatch.setattr(proposals, name, values)


@pytest.fixture(scope="module")
def samples(world, tiny_policy):
    return data.load(world["consistent"], tiny_policy.grid, 0.005, 0.6, 2)[0]


# ── chance ──
def test_chance_by_hand():
    s = torch.tensor([[3.0], [1.0], [2.0], [0.0]])
    assert relabelled(s, beats_mean) == (1.0, 0.5)  # 3 and 2 beat the mean of the others, 1 and 0 do not
    assert relabelled(s, beats_each)[1] == pytest.approx(0.5)
    assert relabelled(torch.tensor([[0.0], [0.0], [0.0], [9.0]]), beats_mean) == (0.0, 0.25)  # skewed: chance is not 1/2
    assert relabelled(torch.full((4, 2), 0.1), beats_mean) == (0.5, 0.5)  # ties count half


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


@pytest.mark.parametrize("statistic", [beats_mean, beats_each, lambda s: ced.evidence_margin(s, 0.1)])
@pytest.mark.parametrize("lift, said", [(0.0, "no signal"), (1.5, "signal")])
def test_skewed_noise_is_no_signal_and_a_lifted_evidence_is(statistic, lift, said):
    draw = np.random.default_rng(0)
    s = torch.tensor(draw.exponential(size=(200, 4, 3)))
    s[:, 0] += lift
    part = [dict(zip(("x", "chance x"), relabelled(one, statistic))) for one in s]
    (row,) = verdicts([{"N": len(part), **against_chance("x", part, seed=0)}])
    assert row["verdict"] == said


# ── proposals ──
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


# ── from end to end ──
def study_of(what, policy, config, samples, chain=None) -> Study:
    if what == "audit":
        return Study(what, policy, config, samples[:1], "")
    return Study(what, policy, config, rollout.choose(samples, config.eval_prompts, 0), chain)


@pytest.mark.parametrize("what", DIAGNOSTICS)
def test_every_diagnostic_runs_on_the_embedded_backbone(what, tiny_policy, samples, few_proposals):
    rows, figure = DIAGNOSTICS[what](study_of(what, tiny_policy, CONFIG, samples))
    assert figure.axes and markdown(rows).startswith("| ")
    diagnose.pictures.plt.close(figure)
    json.dumps([diagnose.plain(row) for row in rows], allow_nan=False)
    if what == "closure":
        assert rows[0]["S"] == "correctness" and rows[0]["bits [95 % of shuffles]"] == {"value": 0, "low": 0, "high": 0}


@pytest.fixture(scope="module")
def noise(coco_mini, tmp_path_factory):
    """A random Qwen2.5-VL and real photographs."""
    policy = random_policy("qwen2_5_vl")
    config = replace(CONFIG, data=str(coco_mini), eval_prompts=3, max_new_tokens=4)
    train, _ = load_samples(config, policy, tmp_path_factory.mktemp("noise"), quiet=True)
    return policy, config, train


@pytest.mark.parametrize("what", ["reward", "relevance", "intervention", "proposal", "confidence"])
def test_no_diagnostic_finds_evidence_in_noise(what, noise, few_proposals):
    """The rest say nothing else: sensitivity is reward under other numbers, closure has no label here, audit no verdict."""
    rows, figure = DIAGNOSTICS[what](study_of(what, *noise, chain=""))
    diagnose.pictures.plt.close(figure)
    said = [row["verdict"] for row in rows if "verdict" in row]
    assert "signal" not in said and any(word.startswith(("no signal", "n/a")) for word in said)


def test_answers_that_cannot_be_audited_name_the_way_out(noise):
    with pytest.raises(InputError, match="--answers given"):
        DIAGNOSTICS["reward"](replace(study_of("reward", *noise), samples=noise[2][:1]))


def test_more_nulls_keep_the_first(tiny_policy, samples):
    """The sweep over K reads every K from one audit."""
    group = rollout.given_group(tiny_policy, samples[0], ["<answer> red </answer>"], CONFIG)
    few, many = (rollout.judge(tiny_policy, group, replace(CONFIG, k=k)) for k in (3, 16))
    assert torch.equal(few.masks, many.masks[:4]) and len(many.null_boxes) == 16
    torch.testing.assert_close(few.s, many.s[:4], atol=1e-5, rtol=0)


# ── the command line ──
def test_the_command_prints_and_writes_one_json_object(small_world, tmp_path, capsys):
    flags = ["--json", "--prompts", "1", "--group-size", "2", "--split", "all", "--out", str(tmp_path / "out")]
    assert diagnose.main(["relevance", *flags]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "out" / "relevance.json").read_text())
    assert printed["config"]["group_size"] == 2 and (tmp_path / "out" / "relevance.png").stat().st_size > 5000
    assert {row["image"] for row in printed["rows"]} == {"shown", "blank"}


@pytest.mark.parametrize("flags, message", [
    (["relevance", "--run", "nowhere"], "nowhere/config.json: expected the configuration of a run"),
    (["relevance", "--run", "x", "--backbone", "tiny"], "--backbone: --run x has its own"),
    (["audit", "--question", "q"], "missing --image, --answer, --box"),
    (["audit", "--image", "none.png", "--question", "q", "--answer", "a", "--box", "0,0,1,1"], "--image none.png"),
])  # fmt: skip
def test_wrong_input_is_told(flags, message, capsys):
    assert diagnose.main(flags) == 2 and message in capsys.readouterr().err


@pytest.mark.parametrize("box, message", [
    ("1,2,3", "found '1,2,3'"),
    ("a,b,c,d", "found 'a,b,c,d'"),
    ("80,0,10,10", "inside the image of 84x84; found 80,0,10,10"),
    ("nan,0,10,10", "inside the image"),
    ("0,0,84,84", "every visual token"),
])  # fmt: skip
def test_bad_boxes_are_told(box, message, samples, capsys):
    flags = ["audit", "--image", str(samples[0].image), "--question", "q", "--answer", "a", f"--box={box}"]
    assert diagnose.main(flags) == 2 and message in capsys.readouterr().err


def test_cells():
    assert diagnose.cell({"value": 0.5, "low": math.nan, "high": 1}) == "0.500 [n/a, 1]"
    assert markdown([{"a": 1, "b": 0.25}, {"a": 2, "b": 0.5}, {"c": "x"}]) == (
        "| a | b |\n| --- | --- |\n| 1 | 0.250 |\n| 2 | 0.500 |\n\n| c |\n| --- |\n| x |"
    )
