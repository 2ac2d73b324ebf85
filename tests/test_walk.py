"""The walk: every number of the tutorial is its output, and the words beside them hold."""

import re

import pytest
from conftest import ROOT

from studies import walk

BLOCKS = re.findall(r"```text\n(── \d .*?)\n```", (ROOT / "docs/tutorial.md").read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def walked(tmp_path_factory):
    return walk.Walk(tmp_path_factory.mktemp("walk"))


@pytest.mark.parametrize("name", walk.STAGES)
def test_the_tutorial_shows_what_the_walk_prints(walked, name):
    (text,) = walk.told([name], walked).values()
    assert max(map(len, text.splitlines())) <= 100 or name == "sample"
    assert text in BLOCKS


def test_an_unknown_stage_is_refused(capsys):
    assert walk.main(["nothing"]) == 2
    assert "STAGE: expected some of question, sample, audit" in capsys.readouterr().err


def test_a_table_by_hand():
    assert walk.table(("name", "n"), ("a", 1), ("bc", 23)) == "name   n\na      1\nbc    23"
