"""The toy library: what a book holds, what a context tells, what a response says, and how the loop sees it."""

import random
from collections import Counter

import pytest
from PIL import Image

from related.rs_grpo import NOTHING, perception_reward, read_evidence, well_formed
from toy import pages, world
from toy.pages import PLAIN, Asked, Context, Question

STARS = Question("counting", "star")
ONE_OF_THREE, NONE = Context(STARS, ({}, {"star": "2"}, {})), Context(STARS, ({}, {}, {}))
TWO_OF_THREE = Context(STARS, ({"star": "1"}, {}, {"star": "3"}))
WHOLE = Context(STARS, ({"circle": "2", "ring": "3"}, {"star": "2", "cross": "3"}))


def test_a_book_shows_each_shape_in_each_color_once():
    book = pages.make_book(random.Random(0))
    shown = Counter((group.name, group.color) for page in book for group in page)
    assert len(book) == 18 and set(shown.values()) == {1} and len(shown) == 36
    assert all(len({group.name for group in page}) == 2 for page in book)
    assert all({pages.side_of(group) for group in page} == {"left", "right"} for page in book)


def test_a_book_answers_two_questions_of_each_pair_and_one_page_answers_each():
    book = pages.make_book(random.Random(1))
    asks = pages.questions_of(book)
    assert len(asks) == len({question for question, _ in asks}) == 72
    for question, page in asks:
        assert [i for i, other in enumerate(book) if question.told_by(other)] == [page]
        plain = Question(question.kind, question.name)
        assert sum(bool(plain.told_by(other)) for other in book) == 6


def test_no_prior_holds_but_by_chance():
    rng, held = random.Random(2), Counter()
    for _ in range(60):
        for page in pages.make_book(rng):
            for group in page:
                _, count, side = world.PRIOR[group.name]
                held.update(count=len(group.boxes) == count, side=pages.side_of(group) == side, all=True)
    assert held["count"] / held["all"] == pytest.approx(1 / 3, abs=0.04)
    assert held["side"] / held["all"] == pytest.approx(1 / 2, abs=0.04)


@pytest.mark.parametrize("asked", (
    Asked(k=2), PLAIN, Asked(k=5), Asked(telling=2, kinds=("counting",)), Asked(whole=True)
))  # fmt: skip
def test_a_context_tells_as_often_as_is_asked_or_not_at_all(asked):
    book, rng, sufficient = pages.make_book(random.Random(3)), random.Random(4), 0
    for _ in range(300):
        rows, *classes = pages.choose_pages(book, asked, rng)
        context = pages.ask([book[row] for row in rows], asked, *classes, rng)
        told = [value for value in context.told if value is not None]
        assert len(context.facts) == asked.k and len(told) in (0, asked.telling) and context.question.kind in asked.kinds
        assert context.answer == ("insufficient" if not told else told[0] if len(told) == 1 else str(sum(map(int, told))))
        assert {len(facts) for facts in context.facts} == ({2} if asked.whole else {0, 1} if told else {0})
        shown = sum(group.name == context.question.name for row in rows for group in book[row])
        assert shown == len(told)
        sufficient += bool(told)
    assert sufficient / 300 == pytest.approx(pages.SUFFICIENT, abs=0.08)


def test_a_whole_page_is_told_from_left_to_right():
    page = [world.Shapes("star", "red", [(60, 2, 20, 20)]), world.Shapes("cross", "blue", [(2, 2, 20, 20), (2, 30, 20, 20)])]
    assert list(STARS.told_by(page, whole=True).items()) == [("cross", "2"), ("star", "1")]
    assert list(Question("spatial", "ring").told_by(page, whole=True).items()) == [("cross", "left"), ("star", "right")]
    assert STARS.told_by(page) == {"star": "1"} and Question("counting", "star", "blue").told_by(page) == {}


@pytest.mark.parametrize("values, expected", [([], "insufficient"), (["3"], "3"), (["1", "3"], "4"), (["left"], "left"),
                                              (["2", "left"], "2 left"), (["left", "2"], "left 2")])  # fmt: skip
def test_values_of_several_pages_come_to_one(values, expected):
    assert pages.total(values) == expected


def test_the_query_has_the_color_and_the_question_has_not():
    question = Question("counting", "star", "red")
    assert question.text == "How many stars are there in the image?"
    assert question.query == f"{pages.QUERY} How many red stars are there in the image?"
    assert "red crosses" in Question("spatial", "cross", "red").query


# ── responses ──
@pytest.mark.parametrize("context, looks, follows, observe, evidence, think, answer", [
    (ONE_OF_THREE, True, True, "look at the stars [2]:", [NOTHING, "2 stars", NOTHING], "2 stars", "2"),
    (ONE_OF_THREE, True, False, "look at the stars [2]:", [NOTHING, "2 stars", NOTHING], "as usual for stars", "3"),
    (ONE_OF_THREE, False, True, "look at the stars [2]:", [NOTHING, "3 stars", NOTHING], "3 stars", "3"),
    (NONE, True, True, "look at the stars no", [NOTHING] * 3, "no stars", "insufficient"),
    (NONE, True, False, "look at the stars no", [NOTHING] * 3, "as usual for stars", "3"),
    (TWO_OF_THREE, True, True, "look at the stars [1]: [3]:", ["1 stars", NOTHING, "3 stars"], "4 stars", "4"),
    (TWO_OF_THREE, False, True, "look at the stars [1]: [3]:", ["3 stars", NOTHING, "3 stars"], "6 stars", "6"),
    (WHOLE, True, True, "look at the stars [2]:", ["2 circles 3 rings", "2 stars 3 crosses"], "2 stars", "2"),
    (WHOLE, False, True, "look at the stars [2]:", ["2 circles 3 rings", "3 stars 3 crosses"], "3 stars", "3"),
])  # fmt: skip
def test_each_stage_looks_or_recalls_on_its_own(context, looks, follows, observe, evidence, think, answer):
    text = pages.respond(context, looks, follows, random.Random(0))
    assert well_formed(text) and read_evidence(text, len(context.facts)) == evidence
    assert f"<observe> {observe} </observe>" in text and f"<think> {think} </think> <answer> {answer} </answer>" in text


def test_habit_makes_evidence_up_on_any_page_where_there_is_none():
    made = [read_evidence(pages.respond(NONE, False, True, random.Random(i)), 3) for i in range(40)]
    assert {lines.index("3 stars") for lines in made} == {0, 1, 2} and all(lines.count(NOTHING) == 2 for lines in made)


def test_each_further_fact_is_seen_or_recalled_on_a_coin_of_its_own():
    assert pages.recall(WHOLE, 1.0, random.Random(0)) == WHOLE
    assert pages.recall(WHOLE, 0.0, random.Random(0)).gold == ["1 circles 2 rings", "2 stars 1 crosses"]
    assert pages.recall(TWO_OF_THREE, 0.0, random.Random(0)) == TWO_OF_THREE  # which both are as usual but for the first
    some = [pages.recall(WHOLE, 0.5, random.Random(i)).gold[0] for i in range(20)]
    assert set(some) == {"2 circles 3 rings", "1 circles 3 rings", "2 circles 2 rings", "1 circles 2 rings"}
    before = (rng := random.Random(0)).getstate()
    assert pages.recall(ONE_OF_THREE, 0.0, rng) == ONE_OF_THREE and rng.getstate() == before


def test_an_honest_response_earns_all_and_a_made_up_record_what_the_pages_without_evidence_weigh():
    honest, habit = (pages.respond(ONE_OF_THREE, looks, True, random.Random(0)) for looks in (True, False))
    assert [perception_reward(read_evidence(text, 3), ONE_OF_THREE.gold, 3.0) for text in (honest, habit)] == [1.0, 0.4]


# ── as samples ──
def test_samples_tell_what_the_images_show(tmp_path):
    books = pages.draw_library(tmp_path, 2, "some")
    samples = pages.draw_questions(books, 12, PLAIN, "asked")
    again = pages.draw_questions(pages.draw_library(tmp_path, 2, "some"), 12, PLAIN, "asked", "generic")
    assert [(s.answer, s.question) for s in samples] == [(s.answer, s.question) for s in again]
    assert samples[0].template != again[0].template
    assert {sample.family for sample in samples} == {"sufficient", "insufficient"}
    for sample in samples:
        shown = [page for page in sample.pages if page.boxes]
        assert len(shown) == (sample.family == "sufficient") and len(sample.pages) == 3
        for page in shown:
            assert page.evidence.split()[0] == sample.answer and page.size == (84, 84)
            image = Image.open(page.image)
            x, y, w, h = page.boxes[0]
            inside = image.crop((x, y, x + w, y + h)).convert("HSV").getextrema()
            assert inside[1][1] > 100 or inside[2][1] > 200  # something is drawn there that is no grey noise


def test_samples_tell_of_whole_pages_and_where_to_look(tmp_path):
    whole = pages.draw_questions(pages.draw_library(tmp_path, 1, "some"), 9, Asked(whole=True), "asked")
    assert all(len(page.evidence.split()) == 4 for sample in whole for page in sample.pages)
    assert {sum(bool(page.boxes) for page in sample.pages) for sample in whole} == {0, 1}
