"""docs/trainers.md, as printed: the audit for answers that another trainer has sampled."""

import json
import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from helpers import FAMILIES, SMALL, code_block, random_image, random_policy

import data
import methods
from config import Config, InputError
from models import Policy
from rollout import judge, judge_given, sample_group, seeded
from studies import trainers, trl

block = partial(code_block, "docs/trainers.md")


@pytest.fixture
def given(tmp_path):
    """A sample and a random policy of each family, by name."""
    path = tmp_path / "image.png"
    random_image(90, 60).save(path)
    return data.Sample("s", "1", path, (90, 60), "How many ?", "2", "counting", ((0.0, 0.0, 30.0, 30.0),))


def test_a_policy_changes_nothing_about_its_model(tiny_policy):
    """Around another trainer's model it leaves what is trained, and the mode, as they are; what is loaded is frozen."""
    model = random_policy("qwen3_vl").model
    model.train().requires_grad_(True)
    policy = Policy(model, tiny_policy.tokenizer, tiny_policy.image_processor)
    assert model.training and all(p.requires_grad for p in policy.model.parameters())
    loaded = Policy.load("tiny").model
    assert not loaded.training and not any(p.requires_grad for p in loaded.parameters())


def test_given_ids_are_judged_as_sampled_ones(tiny_policy, samples):
    """In training mode, with a dropout that would show, of an image in memory and a prompt of one's own."""
    sample = next(s for s in samples if s.family == "counting")
    group = sample_group(tiny_policy, sample, SMALL, 6, seeded(0))
    own = judge(tiny_policy, group, SMALL)
    rows = [ids[:n] for ids, n in zip(group.responses.ids.tolist(), group.responses.mask.sum(-1).tolist())]
    model, dropout = tiny_policy.model, torch.nn.Dropout(0.9)
    model.lm_head.register_forward_pre_hook(lambda module, args: (dropout(args[0]),))
    model.add_module("dropout", dropout)
    try:
        model.train()
        found = judge_given(tiny_policy, sample, rows, SMALL, data.open_image(sample.image), group.prompt)
        assert model.training and dropout.training
    finally:
        model.lm_head._forward_pre_hooks.clear()
        del model.dropout
        model.eval()
    torch.testing.assert_close(found.m, own.m, atol=1e-5, rtol=0)
    assert torch.equal(found.correct, own.correct) and torch.equal(found.r_ans, own.r_ans)


def test_an_image_of_another_size_is_refused(tiny_policy, samples):
    with pytest.raises(ValueError, match="expected the image of size"):
        judge_given(tiny_policy, samples[0], [[5]], SMALL, random_image(40, 40))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_hook_finds_what_the_cached_audit_finds(family, given):
    policy, config = random_policy(family), Config(max_new_tokens=4, data="toy")
    prompt = policy.prompt(given.question, len(policy.encode(data.open_image(given.image)).features[0][0]))
    answer = policy.tokenizer("<answer> 2 </answer>", add_special_tokens=False)["input_ids"]
    judgement = judge_given(policy, given, [answer, answer], config, prompt=prompt)
    (a, b) = judgement.group.spans[0] if judgement.group else (1, 2)
    batch = policy.image_processor(images=[data.open_image(given.image)], return_tensors="pt")
    ids = torch.cat([prompt, torch.tensor(answer)])[None]
    inputs = {"input_ids": ids, "mm_token_type_ids": (ids == policy.image_token).int(), **batch}
    names: dict = {}
    exec(block("def sensitivities"), names)  # as printed
    policy.trunk.rope_deltas = None
    span = (len(prompt) + a, len(prompt) + b)
    s = names["sensitivities"](policy.model, inputs, span, judgement.masks, policy.grid(given.size), config.ring)
    torch.testing.assert_close(s, judgement.s[:, 0], atol=2e-5, rtol=0)


def test_a_method_of_one_s_own(monkeypatch):
    monkeypatch.setattr(methods, "METHODS", dict(methods.METHODS))
    exec(block('METHODS["mine"]'), {})
    judgement = SimpleNamespace(r_ans=torch.tensor([1.0, 1.0]), m=torch.tensor([0.5, -0.5]))
    assert methods.METHODS["mine"].reward(judgement, SMALL).tolist() == [1, 0]


def test_an_instruction_that_nobody_can_read_is_refused():
    with pytest.raises(InputError, match="--instruction: expected one that asks for the final answer"):
        replace(SMALL, instruction="Answer briefly.").check()
    assert replace(SMALL, instruction="Say only <answer> </answer>.").check()


def test_curves_for_tensorboard(tmp_path, monkeypatch):
    (tmp_path / "log.jsonl").write_text(json.dumps({"step": 3, "reward": 0.5, "margin": {"counting": 1.0}}) + "\n")
    seen = []
    writer = SimpleNamespace(add_scalar=lambda *args: seen.append(args))

    class Summary:
        def __init__(self, run):
            self.run = run

        def __enter__(self):
            return writer

        def __exit__(self, *args):
            pass

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Summary))
    exec(block("SummaryWriter"), {"run": str(tmp_path)})
    assert seen == [("reward", 0.5, 3)]


def test_ones_own_data_py_beside_this_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.py").write_text("mine = 7")
    names: dict = {}
    exec(block("my_data"), names)
    assert names["my_data"].mine == 7 and data.__file__ != names["my_data"].__file__


def test_without_trl_the_study_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(trl, "installed", lambda: False)
    assert trainers.main([]) == 0 and capsys.readouterr().out.startswith("skipped: TRL is not installed")
    assert trainers.main(["--steps", "0"]) == 2 and "--steps: expected at least 1; found 0" in capsys.readouterr().err


def test_the_study_s_table_by_hand():
    rows = trainers.table({"train.py": [(0.25, 0.5, 10.0), (0.35, 0.7, 30.0)]}).splitlines()
    assert rows[-1] == "| train.py | 0.30 | **0.60** | 0.50, 0.70 | 20 |"
