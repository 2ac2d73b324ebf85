"""The diagnostics: every one of them from end to end, noise found to be noise, and the command line."""

import json
import math
from dataclasses import replace

import pytest
import torch
from helpers import random_policy

import data
import report
import rollout
from config import Config, InputError
from studies import diagnose
from studies.diagnose import DIAGNOSTICS, markdown
from studies.study import Study
from support.questions import load_samples

CONFIG = Config(data="toy", group_size=2, max_new_tokens=16, eval_prompts=1)
pytestmark = pytest.mark.usefixtures("few_resamples")


# ── from end to end ──
def study_of(what, policy, config, samples, chain=None) -> Study:
    if what == "audit":
        return Study(what, policy, config, samples[:1], "")
    return Study(what, policy, config, report.choose(samples, config.eval_prompts, 0), chain)


@pytest.mark.parametrize("what", DIAGNOSTICS)
def test_every_diagnostic_runs_on_the_embedded_backbone(what, tiny_policy, samples, few_proposals, monkeypatch):
    monkeypatch.setattr(diagnose, "STEPS", (1, 2))
    config = replace(CONFIG, evidence_steps=2)
    rows, figure = DIAGNOSTICS[what](study_of(what, tiny_policy, config, samples))
    assert figure.axes and markdown(rows).startswith("| ")
    diagnose.pictures.plt.close(figure)
    json.dumps([diagnose.plain(row) for row in rows], allow_nan=False)
    if what == "closure":
        assert rows[0]["S"] == "correctness" and rows[0]["bits [95 % of shuffles]"] == {"value": 0, "low": 0, "high": 0}


@pytest.fixture(scope="module")
def noise(coco_mini, tmp_path_factory):
    """A random Qwen2.5-VL and real photographs."""
    policy = random_policy("qwen2_5_vl")
    config = replace(CONFIG, data=str(coco_mini), families=",".join(data.FAMILIES), eval_prompts=3, max_new_tokens=4)
    train, _ = load_samples(config, policy, tmp_path_factory.mktemp("noise"), quiet=True)
    return policy, config, train


def test_a_found_region_is_no_evidence_in_noise(noise):
    """It is chosen where the answer depends on the image, and noise depends on something too: the region beats its nulls, and
    that of a wrong answer does as well."""
    policy, config, samples = noise
    study = study_of("relevance", policy, replace(config, evidence="attributed", evidence_steps=2), samples, chain="")
    rows, figure = DIAGNOSTICS["relevance"](study)
    diagnose.pictures.plt.close(figure)
    shown = next(row for row in rows if (row["image"], row["family"]) == ("shown", "all"))
    assert "signal" not in {row["verdict"] for row in rows}
    assert min(shown["s_ev − mean s_non"], shown["by chance"]) > 0


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
def test_the_command_prints_and_writes_one_json_object(small_world, unlaid, tmp_path, capsys):
    flags = ["--json", "--prompts", "1", "--group-size", "2", "--split", "all", "--out", str(tmp_path / "out")]
    assert diagnose.main(["relevance", *flags]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "out" / "relevance.json").read_text())
    assert printed["config"]["group_size"] == 2 and (tmp_path / "out" / "relevance.png").stat().st_size > 5000
    assert {row["image"] for row in printed["rows"]} == {"shown", "blank"}


@pytest.mark.parametrize("flags, message", [
    (["relevance", "--run", "nowhere"], "nowhere/config.json: expected the configuration of a run"),
    (["relevance", "--run", "x", "--backbone", "tiny"], "--backbone: --run x has its own"),
    (["audit", "--question", "q"], "missing --image, --answer"),
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


def test_ones_own_question_needs_no_box(samples, tmp_path, capsys):
    """Where none is given the region is found; random tokens know no number without one."""
    own = ["--image", str(samples[0].image), "--question", samples[0].question, "--answer", samples[0].answer]
    assert diagnose.main(["audit", *own, "--json", "--out", str(tmp_path)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["config"]["evidence"] == "attributed" and printed["rows"][0]["region"] == "evidence"
    assert diagnose.main(["audit", *own, "--evidence", "random"]) == 2
    assert "--evidence random: as many tokens as a box owns" in capsys.readouterr().err


def test_a_wrong_answer_stands_where_the_right_one_stood(tiny_policy, samples):
    """Chance of a found region: other answers stay, the gold answer is the wrong one."""
    sample = replace(next(s for s in samples if s.family == "counting"), answer="2")
    texts = ["<think> look at the star </think> <answer> 2 </answer>", "<answer> 3 </answer>"]
    config = replace(CONFIG, evidence="attributed")
    group = rollout.given_group(tiny_policy, sample, texts, config)
    study = Study("relevance", tiny_policy, config, [replace(sample, answer=n) for n in ("2", "1")])
    rival = diagnose.rival(study, group)
    assert rival.sample.answer == "1" and rival.texts == [texts[0].replace("2", "1"), texts[1]]
    assert diagnose.rival(replace(study, samples=[sample]), group) is None
