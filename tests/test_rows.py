"""benchmarks/rows.py: what its readers share. Files, cells and images are tried where rows are made of them: test_tasks.py."""

import pytest

from benchmarks.rows import Row, blank, content, parsed


@pytest.mark.parametrize("cell, value", [
    ("['a', 1]", ["a", 1]), ('{"a": null}', {"a": None}), ("[a", "[a"), ("a", "a"), (3, 3),
])  # fmt: skip
def test_lists_and_objects_come_as_texts(cell, value):
    assert parsed(cell) == value


def test_what_is_blank():
    assert all(map(blank, (None, "", " ", "nan", float("nan")))) and not any(map(blank, ("None", "NA", 0, False)))


def test_a_row_lacks_one_thing_at_a_time():
    whole = Row("x", "Why?", "A", "mcq", {"A": "oak"})
    assert whole.lacks == "" and content(whole) == ["Why?"]
    assert Row("x", None, "A", "mcq", {}, (None,)).lacks == "image" and Row("x", "Why?", "A", "mcq", {}).lacks == "options"
