"""CED of a look: its evidence by the extractor's own facts, its tokens, its gate."""

import random

import pytest
import torch

from config import Config
from studies.evpv_cases import Case, Judged
from studies.evpv_ced import column, gated, look_margins
from toy import roles, steps, world

FACTS = [("count", "circle", 1), ("side", "circle", "right")]


def test_the_evidence_of_a_look_is_the_column_of_the_extractors_fact():
    assert column(FACTS, "circle").tolist() == [[56, 0, 28, 84]]
    assert column([], "circle") is None and column([("side", "circle", "up")], "circle") is None


def test_a_look_that_no_place_is_known_for_has_no_margin_and_a_gate_half_open():
    policy, rng = roles.base(0), random.Random(1)
    scene = steps.make_scene("free", rng)
    question, vision = steps.ask(scene, rng), policy.encode(world.draw_scene(scene, rng))
    ids = roles.encode(policy, steps.demonstrate(question, rng))
    told = [fact for fact in question.facts if fact[:2] != ("side", question.names[1])]
    ones = [Judged(ids, "4", [1, 1, 1], [], [], True), Judged(ids, "", [], [], [], False)]
    margins, log_p = look_margins(policy, Case(question, 0, told, ones), vision, Config(backbone="tiny"))
    assert [len(own) for own in margins] == [2, 0] and margins[0][0] != 0 and margins[0][1] == 0
    with torch.inference_mode():  # the likelihood of the first look's words and claim, on its own
        prefix = policy.read(roles.prompt_of(policy, "policy", question), vision)
        alone = policy.log_probs(prefix, ids[None], 1.0)[0, 0, 1 : int(roles.step_ends(policy, ids)[0])].sum()
    assert log_p[0][0] == pytest.approx(float(alone), abs=1e-4)
    assert gated([[[0.8, 0.8, 0.6], []]], [margins], 0.2)[0][0][1:] == pytest.approx([0.4, 0.6])
