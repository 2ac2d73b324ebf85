"""The three roles of the toy task: their words, the verifier's one forward, and that a role is trained once."""

import random

import pytest
import torch
from helpers import naive_logits

from related.evpv import triples
from studies.evpv_cases import claims_of
from toy import roles, steps, world
from toy.steps import read_solution, write_facts


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
