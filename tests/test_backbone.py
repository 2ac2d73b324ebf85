"""The embedded backbone as shipped: small, right when it looks, and in the habit of not looking."""

from collections import defaultdict
from statistics import fmean

import pytest
import torch

import data
import rollout
from answers import is_correct
from config import TINY_RECIPE
from models import TINY
from toy.world import looks


@pytest.fixture(scope="module")
def answers_on_conflict(world, tiny_policy):
    """(looked, correct) of every sampled answer, by family: all questions of the split, 4 answers each."""
    samples = data.load(world["conflict"], tiny_policy.grid, 0.005, 0.6, 2)[0]
    visions = {image: tiny_policy.encode(data.open_image(image)) for image in {s.image for s in samples}}
    found = defaultdict(list)
    for start in range(0, len(samples), 128):
        batch = samples[start : start + 128]
        with torch.inference_mode():
            prefix = tiny_policy.read_batch([(tiny_policy.prompt(s.question, 36), [visions[s.image]]) for s in batch])
        draws = [rollout.seeded("tiny", start + b) for b in range(len(batch))]
        responses = tiny_policy.sample(prefix, 4, TINY_RECIPE["max_new_tokens"], 1.0, draws)
        for i, (ids, mask) in enumerate(zip(responses.ids, responses.mask)):
            sample, text = batch[i // 4], tiny_policy.decode(ids[mask])
            found[sample.family].append((looks(text), is_correct(text, sample.answer, sample.kind)))
    return found


def test_it_fits_in_four_megabytes():
    assert sum(p.stat().st_size for p in TINY.iterdir()) <= 4_000_000


@pytest.mark.parametrize("family", data.FAMILIES)
def test_looking_is_right_on_conflict_and_habit_is_wrong(answers_on_conflict, family):
    looked = [right for look, right in answers_on_conflict[family] if look]
    habit = [right for look, right in answers_on_conflict[family] if not look]
    assert len(looked) > 100 and fmean(looked) >= 0.95
    assert fmean(habit) <= 0.02


def test_it_looks_at_a_third_of_the_questions(answers_on_conflict):
    assert 0.3 <= fmean(look for rows in answers_on_conflict.values() for look, _ in rows) <= 0.5
