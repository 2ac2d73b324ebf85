"""docs/trainers.md's recipe for TRL, as printed, and the peer of the studies."""

from dataclasses import replace

import pytest
import torch
from helpers import SMALL, code_block, random_policy

import data
import grpo
from methods import rewards_of
from models import Policy, evaluating
from rollout import judge_given
from studies import speed, trl

needs_trl = pytest.mark.skipif(not trl.installed(), reason="TRL is in requirements-dev.txt")
CONFIG = replace(SMALL, group_size=4)


def test_a_row_says_which_sample_it_is(samples):
    """And its picture stands upright, as the boxes do."""
    rows = trl.rows_of(samples[:2], CONFIG)
    (message,) = rows[1]["prompt"]
    assert [row["row"] for row in rows] == [0, 1] and rows[1]["image"].size == samples[1].size
    assert message["content"][1]["text"] == f"{samples[1].question} {CONFIG.instruction}"


def recipe(policy: Policy, samples: list[data.Sample], folder) -> dict:
    """The names of docs/trainers.md's block after it has run."""
    from datasets import Dataset
    from peft import LoraConfig
    from trl import GRPOConfig, GRPOTrainer

    settings = GRPOConfig(
        output_dir=str(folder), per_device_train_batch_size=8, num_generations=4, max_completion_length=16, max_steps=2,
        learning_rate=1e-3, beta=0.0, gradient_checkpointing=False, use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        disable_tqdm=True, log_level="error", logging_steps=1000,
    )  # fmt: skip
    lora = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, target_modules=grpo.lora_targets(policy.model, 2))
    names = {"model": policy.model, "processor": trl.processor_of(policy), "samples": samples, "config": CONFIG, "lora": lora,
             "settings": settings, "dataset": Dataset.from_list(trl.rows_of(samples, CONFIG)),
             "GRPOTrainer": GRPOTrainer}  # fmt: skip
    exec(code_block("docs/trainers.md", "GRPOTrainer"), names)
    return names


@needs_trl
@pytest.mark.parametrize("family", ["tiny", "qwen2_5_vl"])
def test_two_steps_of_trl(family, tmp_path, samples):
    """Rewards are the project's own, also to a policy made around the trainer's model while it trains; the optimizer has
    something to move, and moves it. Random weights say nothing worth a reward, so answers are put into their mouths."""
    base = Policy.load("tiny") if family == "tiny" else random_policy(family)
    some = [s for s in samples if s.family == "counting"][:2]
    names = recipe(base, some, tmp_path)
    trainer, policy, reward, judged = names["trainer"], names["policy"], names["evidence_reward"], []
    said = base.tokenizer([f"<answer> {i} </answer>" for i in "1234" * 2], add_special_tokens=False)["input_ids"]

    def watched(**given) -> list[float]:
        given["completion_ids"] = given["completion_ids"] if family == "tiny" else said
        found, mode = reward(**given), policy.model.training
        with evaluating(policy.model):
            own = Policy(policy.model, policy.tokenizer, policy.image_processor)
            again = judge_given(own, sample := some[given["row"][0]], given["completion_ids"][:4], CONFIG)
        judged.append((found[:4], rewards_of(again, sample, CONFIG).tolist(), mode))
        return found

    trainer.reward_funcs = [watched]
    trained = [p for p in trainer.model.parameters() if p.requires_grad]
    before = [p.detach().clone() for p in trained]
    trl.train_quietly(trainer)
    assert trained and any(not torch.equal(a, b) for a, b in zip(before, trained))
    assert len(judged) == 2 and all(found == pytest.approx(again, abs=1e-4) and mode for found, again, mode in judged)
    assert any(len(set(found)) > 1 for found, _, _ in judged)


@needs_trl
def test_the_peer_s_sampling_is_timed_and_nothing_after_it(tmp_path, monkeypatch):
    """On the smallest model: three calls of its `generate`, after one that is not counted, for two prompts of two answers."""
    calls = []
    monkeypatch.setattr(speed, "make_policy", lambda size, device: random_policy("qwen2_5_vl"))
    sample = speed.make_sample(tmp_path, (96, 64))
    config = replace(speed.settings_of(2, t=2), prompts_per_step=2, lora_layers=1)
    monkeypatch.setattr(trl, "make_trainer", lambda *args, make=trl.make_trainer: calls.append(make(*args)) or calls[-1])
    assert speed.trl_sampling_seconds("46m", "cpu", sample, config, tmp_path) > 0
    assert calls[0].state.global_step == 0
