"""The study of the toy library: what a response scores, what each run is given, and that parts are kept."""

import random
from dataclasses import replace

import pytest
import torch
from PIL import Image

import methods
from data import Page, PagedSample
from methods import METHODS
from models import Policy
from related import rs_grpo
from rollout import Judgement
from studies import evisrag
from studies.evisrag import HARDER, MISJUDGED, RUNS, SETTINGS, Study, score
from toy import pages, world
from toy.pages import Context, Question

STARS = Context(Question("counting", "star"), ({}, {"star": "2"}, {}))
NONE, SUM = (replace(STARS, facts=facts) for facts in (({}, {}, {}), ({"star": "2"}, {}, {"star": "1"})))
WHOLE = replace(STARS, facts=({"star": "2", "ring": "1"}, {"cross": "1", "circle": "1"}))


def sample_of(context: Context) -> PagedSample:
    lines = ["" if line == pages.NOTHING else line for line in context.gold]
    family = "insufficient" if context.answer == "insufficient" else "sufficient"
    shown = tuple(Page(None, (84, 84), (), line) for line in lines)
    return PagedSample("s", "b", shown, context.question.text, context.answer, family)


@pytest.mark.parametrize("context, looks, follows, expected", [
    (STARS, True, True, {"correct": True, "told": 1, "said": 1, "gold": 1, "follows": True}),
    (STARS, True, False, {"correct": False, "told": 1, "said": 1, "gold": 1, "follows": False}),
    (STARS, False, True, {"correct": False, "told": 0, "said": 1, "gold": 1, "follows": True}),
    (NONE, True, True, {"correct": True, "told": 0, "said": 0, "gold": 0, "follows": True}),
    (NONE, False, True, {"correct": False, "told": 0, "said": 1, "gold": 0, "follows": True}),
    (SUM, True, True, {"correct": True, "told": 2, "said": 2, "gold": 2, "follows": True}),
    (SUM, False, True, {"correct": False, "told": 1, "said": 2, "gold": 2, "follows": True}),
    (SUM, False, False, {"correct": True, "told": 1, "said": 2, "gold": 2, "follows": False}),
    (WHOLE, True, True, {"correct": True, "told": 2, "said": 2, "gold": 2, "follows": True}),
    (WHOLE, False, True, {"correct": False, "told": 1, "said": 2, "gold": 2, "follows": True}),
])  # fmt: skip
def test_a_response_scores_by_stage(context, looks, follows, expected):
    found = score(sample_of(context), pages.respond(context, looks, follows, random.Random(0)))
    assert {key: found[key] for key in expected} == expected and found["format"] and found["record"]


def test_a_chain_without_stages_has_no_record_and_an_answer():
    found = score(sample_of(STARS), pages.conclude(STARS, True))
    assert found["correct"] and not found["record"] and not found["format"] and found["said"] == 0
    assert not score(sample_of(STARS), "nothing at all")["correct"]


def test_a_judge_errs_about_one_channel_and_the_same_way_again():
    group = type("Group", (), {"sample": sample_of(STARS), "texts": [pages.respond(STARS, True, True, random.Random(0))] * 400})
    ones = torch.ones(400)
    judgement = Judgement(ones, ones > 0, ones > 0, ones > 0, None, ones, None, None, None, group)
    config = evisrag.configure({"method": "rs-grpo"})
    for name, channel in {"evidence": 1, "answers": 2}.items():
        told = MISJUDGED[f"rs, {name} misjudged"].reward(judgement, config)
        wrong = 1 - told.rewards
        assert float(wrong[channel].mean()) == pytest.approx(evisrag.ERR, abs=0.07)
        assert wrong.sum() == wrong[channel].sum() and torch.equal(told.scopes, rs_grpo.SCOPES)
        mixed = MISJUDGED[f"mixed, {name} misjudged"].reward(judgement, config)
        assert torch.allclose(mixed, told.rewards.mean(0))


@pytest.fixture
def study(tmp_path, monkeypatch, few_resamples, unlaid):
    """A study that is as small as it gets."""
    monkeypatch.setattr(evisrag, "QUICK", {"steps": 2, "prompts_per_step": 1, "group_size": 3, "max_new_tokens": 12})
    monkeypatch.setattr(evisrag, "BOOKS", {"train": 6, "test": 6, "retriever": 6})
    for name, n in {"TRAINED": 24, "TESTED": 24, "RETRIEVED": 12, "RETRIEVER_UPDATES": 6, "AUDITED": 6, "QUERIES": 2}.items():
        monkeypatch.setattr(evisrag, name, n)
    monkeypatch.setattr(evisrag.retrieve, "QUERIES", 2)
    monkeypatch.setattr(evisrag.retrieve, "LIBRARIES", 1)
    return Study(tmp_path, quick=True)


def test_what_a_run_is_given(study):
    plain, audited = (study.lessons(RUNS[name], 0) for name in ("rs", "rs without gold"))
    assert not any(page.boxes for sample in plain for page in sample.pages) and {sample.gold for sample in plain} == {"exact"}
    assert any(page.boxes for sample in audited for page in sample.pages) and {sample.gold for sample in audited} == {""}
    five, sums, whole = (study.lessons(HARDER[f"rs, {what}"], 0) for what in ("five pages", "sums", "longer records"))
    assert {len(sample.pages) for sample in five} == {5} and all("How many" in sample.question for sample in sums)
    assert {sum(bool(page.evidence) for page in sample.pages) for sample in sums} == {0, 2}
    assert all(page.evidence for sample in whole for page in sample.pages)
    asked = [sample.question for sample in study.lessons(RUNS["mixed"], 0)]
    assert [s.question for s in plain] == asked != [s.question for s in study.lessons(RUNS["rs"], 1)]
    generic = study.lessons(RUNS["generic"], 0)[0]
    assert "Observe" not in generic.template and generic.question == asked[0]


def test_a_setting_of_other_questions_has_a_reader_of_its_own_and_one_of_another_judge_has_not(study, monkeypatch):
    taught, made = [], {}
    monkeypatch.setattr(evisrag.roles, "kept", made.setdefault)
    monkeypatch.setattr(evisrag.reader, "teach", lambda policy, legs, seed: taught.append(legs))
    for name, run in HARDER.items():
        row, backbone = SETTINGS[run.setting], study.config(run, 0, study.out).backbone
        assert (backbone == str(evisrag.reader.EVISRAG)) == (row.leg is None) and bool(row.misjudged) == (run.method == name)
    assert [folder.name for folder in made] == ["reader-sums", "reader-longer-records", "reader-five-pages"]
    made[study.out / "reader-sums"]()
    (legs,) = taught
    assert [*legs] == ["sums", "habit"] and {leg.asked for leg in legs.values()} == {SETTINGS["sums"].asked}
    assert {leg.updates for leg in legs.values()} == {50}  # a sixth
    assert {run.method for run in HARDER.values() if run.method not in METHODS} == MISJUDGED.keys()


def test_a_page_is_encoded_once_for_all_policies_and_as_each_would(study):
    tiny, own = (Policy.load(name) for name in ("tiny", str(evisrag.reader.EVISRAG)))
    page, other = (Image.effect_noise((84, 84), sigma).convert("RGB") for sigma in (20, 60))
    expected = own.encode(page).features[0]
    seen = study.looking_once(tiny).encode(page)
    assert torch.equal(seen.features[0], expected) and study.looking_once(own).encode(page) is seen
    assert not torch.equal(own.encode(other).features[0], expected) and len(study.seen) == 2


def test_pages_in_another_color_are_counted():
    page, other = ([world.Shapes("star", color, [(2, 2, 20, 20)]), world.Shapes("ring", "red", [(60, 2, 20, 20)])]
                   for color in ("red", "blue"))  # fmt: skip
    book = pages.Book("b", [page, other, [other[1], page[1]]], [])
    assert evisrag.in_another_color(book, [0, 1, 2], Question("counting", "star", "red")) == 1
    assert evisrag.in_another_color(book, [0, 2], Question("counting", "star", "red")) == 0


def test_parts_are_made_once_and_told(study, tmp_path, capsys, monkeypatch):
    known = dict(METHODS)
    monkeypatch.setattr(methods, "METHODS", known)
    monkeypatch.setattr(evisrag, "METHODS", known)
    flags = ["--quick", "--out", str(tmp_path), "--seeds", "0", "--runs", "rs", "mixed"]
    assert evisrag.main(flags) == 0
    first = capsys.readouterr().out
    for part in ("## retrieval", "| chance | 0.056 | 0.167 |", "## whose tokens look", "| rs | 0 |", "| rs − mixed |"):
        assert part in first
    assert (tmp_path / "evisrag.png").is_file()
    monkeypatch.setattr(evisrag.train, "train", None)
    monkeypatch.setattr(evisrag, "sample_groups", None)
    assert evisrag.main(flags) == 0 and capsys.readouterr().out == first
    assert evisrag.main([*flags, "better"]) == 2 and "--runs: expected of rs; mixed" in capsys.readouterr().err
