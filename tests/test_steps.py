"""The toy task of steps: what is true, what is said, how it is read and labelled; and the verifier's one forward."""

import random

import pytest
import torch
from helpers import naive_logits

from related.evpv import triples
from studies.evpv import cell, flattered, padded, silenced
from studies.evpv_cases import Case, Judged, claims_of, f1, outcomes, picked, rewards_of, votes
from studies.evpv_ced import column
from toy import roles, steps, world
from toy.steps import Question, conclude, label_steps, read_solution, write_facts, write_solution

TRUTH = {"star": {"count": 3, "color": "red", "side": "left"}, "circle": {"count": 1, "color": "blue", "side": "right"}}
TOTAL = Question("total", ("star", "circle"), TRUTH)


def said(first: int, second: int, conclusion: str, answer: str = "4") -> steps.Solution:
    return read_solution(write_solution("total", ("star", "circle"), (first, second), conclusion, answer))


# ── words and labels ──
@pytest.mark.parametrize("kind, text, answer", [
    ("total", "How many stars and circles are there?", "4"), ("more", "Are there more stars than circles?", "yes"),
    ("same", "Are the stars the same color as the circles?", "no"), ("order", "Are the stars left of the circles?", "yes"),
])  # fmt: skip
def test_a_question_and_its_answer(kind, text, answer):
    question = Question(kind, ("star", "circle"), TRUTH)
    assert (question.text, question.answer) == (text, answer)


@pytest.mark.parametrize("solution, labels", [
    (said(3, 1, "3 + 1 = 5", "5"), [1, 1, -1]), (said(2, 1, "2 + 1 = 3", "3"), [-1, 1, 1]),
    (said(3, 1, "3 + 1 = 4"), [1, 1, 1]),
    (said(2, 2, "2 + 2 = 5", "5"), [-1, -1, -1]),
    (said(3, 1, "3 is more than 1", "yes"), [1, 1, -1]),
])  # fmt: skip
def test_a_look_is_judged_by_the_scene_and_a_conclusion_by_the_looks(solution, labels):
    assert label_steps(TOTAL, solution) == labels


def test_labels_read_the_words_and_not_the_claim():
    looks = 'there are 3 stars ["count", "star", 2] . there are 1 circles null .'
    solution = read_solution(f"<think> {looks} 3 + 1 = 4 null . </think> <answer> 4 </answer>")
    assert label_steps(TOTAL, solution) == [1, 1, 1]
    assert claims_of(solution.claims) == [[("count", "star", 2.0)], [], []]


def test_every_demonstration_can_be_read_and_every_conclusion_is_right_or_wrong_as_asked():
    rng = random.Random(0)
    wrong = looks = 0
    for _ in range(400):
        question = steps.ask(steps.make_scene("free", rng), rng)
        solution = read_solution(steps.demonstrate(question, rng))
        labels = label_steps(question, solution)
        wrong, looks = wrong + (labels[2] < 0), looks + (labels[0] > 0)
        assert all(None not in own for own in claims_of(solution.claims))
    assert 70 < wrong < 130 and 200 < looks < 330  # a quarter; half, and what is usual by chance
    for kind in steps.QUESTION:
        x, y = {"total": (3, 1), "more": (3, 1), "same": ("red", "blue"), "order": ("left", "right")}[kind]
        made = {conclude(kind, x, y, right, slip) for right in (True, False) for slip in (1, 2, 3, 4)}
        assert len(made) == (5 if kind == "total" else 2)


@pytest.mark.parametrize("text", [
    "", "4", "<think> there are 3 stars . </think> <answer> 4 </answer>", write_facts(TOTAL),
    write_solution("total", ("star", "circle"), (3, 1), "3 + 1 = 4", "<|image_pad|>"),
    write_solution("total", ("star", "circle"), (3, 1), "3 + <|image_pad|> = 4", "4"),
    write_solution("total", ("star", "circle"), (3, 1), "3 + 1 = 4", "."),
    write_solution("total", ("star", "circle"), (3, 1), "3 + 1 = 4", "4") + " <|image_pad|>",
    write_solution("total", ("star", "circle"), (3, 1), "3 + 1 = 4", "4").replace("</answer>", ""),
    write_solution("total", ("star", "circle"), (3, 1), "3 + 1 = 4 . 4 = 4", "4"),
])  # fmt: skip
def test_what_has_not_the_form_is_unreadable(text):
    assert read_solution(text) is None


def test_a_claim_that_cannot_be_read_is_none_and_null_is_no_claim():
    text = write_solution("total", ("star", "circle"), (3, 1), "3 + 1 = 4", "4").replace('"star", 3]', '"star", ]')
    assert claims_of(read_solution(text).claims) == [[None], [("count", "circle", 1.0)], []]
    assert claims_of(read_solution(text.replace("null", "")).claims)[2] == [None]


def test_the_tokenizer_says_and_reads_all_of_it():
    policy, rng = roles.base(0), random.Random(0)
    assert len(policy.tokenizer) == len(roles.base(1).tokenizer) == policy.head.weight.shape[0] == 107
    for mode in ("free", "prior", "conflict"):
        for _ in range(30):
            question = steps.ask(steps.make_scene(mode, rng), rng)
            text, facts = steps.demonstrate(question, rng), write_facts(question)
            for said in (text, facts):
                ids = roles.encode(policy, said)
                assert policy.tokenizer.unk_token_id not in ids and len(ids) <= roles.MAX_NEW_TOKENS
            spelled, written = read_solution(policy.decode(roles.encode(policy, text))), read_solution(text)
            assert spelled.words == written.words and claims_of(spelled.claims) == claims_of(written.claims)
            assert triples(policy.decode(roles.encode(policy, facts))) == question.facts
            for role in roles.PROMPTS:
                assert policy.tokenizer.unk_token_id not in roles.prompt_of(policy, role, question)


# ── the verifier ──
def test_u_is_read_at_the_points_and_equals_a_naive_forward():
    policy, rng = roles.base(0), random.Random(3)
    scene = steps.make_scene("free", rng)
    image, question = world.draw_scene(scene, rng), steps.ask(scene, rng)
    rows = [roles.encode(policy, steps.demonstrate(question, rng)) for _ in range(3)]
    prompt = roles.prompt_of(policy, "verifier", question)
    u = roles.step_probabilities(policy, policy.encode(image), prompt, rows)
    yes, no = policy.tokenizer.convert_tokens_to_ids(["yes", "no"])
    for ids, own in zip(rows, u):
        assert [policy.decode(ids[i]) for i in roles.step_ends(policy, ids)] == [".", ".", "."]
        with torch.no_grad():
            logits = naive_logits(policy, prompt, image, ids)
        expected = [float((logits[i + 1, yes] - logits[i + 1, no]).sigmoid()) for i in roles.step_ends(policy, ids)]
        assert own == pytest.approx(expected, abs=1e-5)


def test_a_role_is_trained_once_and_a_half_written_one_again(tmp_path):
    made = []

    def make():
        made.append(1)
        return roles.base(0)

    (tmp_path / "policy-0.partial").mkdir()
    for _ in range(2):
        assert len(roles.kept(tmp_path / "policy-0", make).tokenizer) == 107
    assert len(made) == 1


# ── the study's arithmetic ──
def judged(labels, u, answer="4", truth=True) -> Judged:
    looks = [("count", "star", 3.0 if labels[0] > 0 else 2.0), ("count", "circle", 1.0 if labels[1] > 0 else 2.0)]
    return Judged(torch.zeros(1), answer, labels, [[looks[0]], [looks[1]], []], u, answer == "4")


CASE = Case(TOTAL, 0, list(TOTAL.facts), [
    judged([1, 1, 1], [0.6, 0.6, 0.9]), judged([-1, 1, 1], [0.9, 0.9, 0.9], "3"), Judged(torch.zeros(1), "", [], [], [], False),
])  # fmt: skip


def test_best_of_n_by_the_verifier_and_with_its_premises_checked():
    by = {how: [[sum(own) for own in rewards] for rewards in rewards_of([CASE], how)] for how in ("base", "direct")}
    assert picked([CASE], by["base"], 3, "right") == [0] and picked([CASE], by["direct"], 3, "right") == [1]
    assert votes([CASE], 3) == [[1, 1, 0]] and CASE.responses[0].sound and not CASE.responses[2].sound


def test_f1_is_that_of_the_pure_function():
    from related.evpv import macro_f1

    rewards = rewards_of([CASE], "direct")
    gold = [label for one in CASE.responses for label in one.labels]
    called = [1 if r > 0 else -1 for own in rewards[0] for r in own]
    assert f1(outcomes([CASE], rewards, 0)) == pytest.approx(macro_f1(called, gold)) == 1
    assert outcomes([CASE], rewards, 0, looks=True).sum() < outcomes([CASE], rewards, 0).sum()


def test_checklists_that_leave_out_and_pad():
    one = CASE.responses[1]
    assert silenced(CASE, one, 1, random.Random(0)) == flattered(CASE, one)[:1] + [[], []]
    assert flattered(CASE, one) == [[], one.claims[1], []]
    assert [len(own) for own in padded(CASE, one, 16)] == [1, 1, 16] and padded(CASE, CASE.responses[2], 4) == []


def test_the_evidence_of_a_look_is_the_column_of_the_extractors_fact():
    assert column(TOTAL.facts, "circle").tolist() == [[56, 0, 28, 84]]
    assert column([], "circle") is None and column([("side", "circle", "up")], "circle") is None


def test_a_cell_has_an_interval():
    import numpy as np

    found = cell(np.array([0.0, 1.0, 1.0, 1.0]))
    assert found["value"] == 0.75 and found["low"] < 0.75 < found["high"]
