"""The toy task of steps: what is true, what is said, how it is read and labelled."""

import random

import pytest

from studies.evpv_cases import claims_of
from toy import steps
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
