"""docs/trainers.md, as printed: the audit for answers that another trainer has sampled."""

import json
import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT
from helpers import FAMILIES, SMALL, random_image, random_policy

import data
import methods
import models
from config import Config, InputError
from models import Policy
from rollout import judge, judge_given, sample_group, seeded
from studies import trainers

PAGE = (ROOT / "docs/trainers.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def block(word: str) -> str:
    """The one code block of the page that holds a word."""
    (found,) = [text for text in BLOCKS if word in text]
    return found


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
    monkeypatch.setattr(trainers.importlib.util, "find_spec", lambda name: None)
    assert trainers.main([]) == 0 and capsys.readouterr().out.startswith("skipped: TRL is not installed")
    assert trainers.main(["--steps", "0"]) == 2 and "--steps: expected at least 1; found 0" in capsys.readouterr().err


def test_the_study_s_table_by_hand():
    rows = trainers.table({"train.py": [(0.25, 0.5, 10.0), (0.35, 0.7, 30.0)]}).splitlines()
    assert rows[-1] == "| train.py | 0.30 | **0.60** | 0.50, 0.70 | 20 |"


def test_two_steps_of_trl(tmp_path, small_world, samples):
    """As printed: rewards are the project's own, the optimizer has something to move, and moves it."""
    trl = pytest.importorskip("trl", reason="TRL is in requirements-dev.txt")
    from datasets import Dataset
    from peft import LoraConfig

    import grpo
    from studies.speed import ImageProcessor

    base = Policy.load("tiny")
    some = [s for s in samples if s.family == "counting"][:2]
    config = replace(SMALL, group_size=4)
    processor = ImageProcessor(base.image_processor, base.tokenizer, base.tokenizer.chat_template)
    rows = [{"prompt": [{"role": "user", "content": [{"type": "image"}, {"type": "text",
             "text": f"{s.question} {config.instruction}"}]}], "image": data.open_image(s.image), "row": i}
            for i, s in enumerate(some)]  # fmt: skip
    settings = trl.GRPOConfig(
        output_dir=str(tmp_path), per_device_train_batch_size=8, num_generations=4, max_completion_length=16, max_steps=2,
        learning_rate=1e-3, beta=0.0, gradient_checkpointing=False, use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        disable_tqdm=True, log_level="error", logging_steps=1,
    )  # fmt: skip
    lora = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, target_modules=grpo.lora_targets(base.model, 2))
    names = {"model": base.model, "processor": processor, "samples": some, "config": config, "settings": settings,
             "dataset": Dataset.from_list(rows), "lora": lora, "GRPOTrainer": trl.GRPOTrainer}  # fmt: skip
    exec(block("GRPOTrainer"), names)
    trainer, policy, judged = names["trainer"], names["policy"], []
    reward, own = names["evidence_reward"], models.evaluating

    def watched(**given):
        found = reward(**given)
        with own(policy.model):
            picture = given["image"][0].convert("RGB")
            again = judge_given(policy, some[given["row"][0]], given["completion_ids"][:4], config, picture)
        judged.append((found[:4], methods.rewards_of(again, some[given["row"][0]], config).tolist(), policy.model.training))
        return found

    trainer.reward_funcs = [watched]
    trained = [p for p in trainer.model.parameters() if p.requires_grad]
    before = [p.detach().clone() for p in trained]
    trainer.train()
    assert trained and any(not torch.equal(a, b) for a, b in zip(before, trained))
    assert len(judged) == 2 and all(found == pytest.approx(again, abs=1e-4) and mode for found, again, mode in judged)
