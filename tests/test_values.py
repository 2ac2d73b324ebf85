"""The values of a reply: one spelling, and one character for each value."""

import pytest

from values import SURE, VALUE, clean, marked


@pytest.mark.parametrize("text, spelling", [
    ("Ｂ", "B"), ("**A. x < 2**", "A) x < 2"), (r"\\boxed{red}", "answer: red"), ("2½", "2 1⁄2"), ("10³", "10^3"),
    ("the answer’s “3”", "the answer's \"3\""), ("a — b", "a - b"), ("答案是B。", "答案是 B."),
])  # fmt: skip
def test_one_spelling(text, spelling):
    assert clean(text.replace("\\\\", "\\")) == spelling


@pytest.mark.parametrize("kind, options, text, values", [
    ("count", None, "Two cats. A farm of 1,000 dogs.", [{2.0}, {1000.0}]), ("count", None, "2 or 3", [{2.0, 3.0}]),
    ("yesno", None, "yes, not no", [{"yes"}, {"no"}]),
    ("mcq", {"A": "dog", "B": "hot dog"}, "a hot dog", [{"B"}]),  # the longest text first
])  # fmt: skip
def test_each_value_is_one_character(kind, options, text, values):
    found, meaning = marked(text, kind, options)
    assert [set(meaning[c]) for c in found if c in meaning] == values


def test_what_is_sure_is_a_value():
    assert SURE in VALUE
