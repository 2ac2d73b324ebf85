"""The plan of a run: parameters counted on the meta device, and memory that grows with what it should."""

from dataclasses import replace

import pytest
import torch
import transformers
from conftest import SHARED
from helpers import random_image, random_policy

import data
import grpo
import models
import train
from config import Config
from support import plan

QWEN = SHARED / "qwen"
COUNTS = {
    "qwen2_5_vl_3b": 3_754_622_976,
    "qwen2_5_vl_7b": 8_292_166_656,
    "qwen3_vl_8b": 8_767_123_696,
    "qwen3_5_9b": 9_409_813_744,
}
TRAINABLE = {"qwen2_5_vl_7b": 5_767_168, "qwen3_vl_8b": 4_849_664, "qwen3_5_9b": 5_409_792}
needs_qwen = pytest.mark.skipif(not QWEN.is_dir(), reason="no ../shared/data/qwen")


@needs_qwen
@pytest.mark.parametrize("name", COUNTS)
def test_parameters(name):
    assert plan.count(plan.meta_model(str(QWEN / name))) == COUNTS[name]


@needs_qwen
@pytest.mark.parametrize("name", TRAINABLE)
def test_dry_run(name, capsys, tmp_path, monkeypatch, real_tokenizer):
    monkeypatch.chdir(tmp_path)
    tokenizer = real_tokenizer(name)  # before the patch, which its own loading would meet
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda _: tokenizer)
    assert train.main(["--backbone", str(QWEN / name), "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert f"{COUNTS[name]:,} parameters, {TRAINABLE[name]:,} of them trainable" in text
    assert list(tmp_path.iterdir()) == []


def test_dry_run_of_the_tiny_backbone_counts_what_is_loaded(tiny_policy, capsys):
    assert train.main(["--dry-run"]) == 0
    text = capsys.readouterr().out
    assert f"{sum(p.numel() for p in tiny_policy.model.parameters()):,} parameters" in text


def test_memory_grows_with_what_it_should():
    text = type("Text", (), dict(num_hidden_layers=4, num_key_value_heads=2, head_dim=16, hidden_size=64, num_attention_heads=4,
                                 intermediate_size=128, vocab_size=1000))  # fmt: skip
    config = Config(group_size=8, max_new_tokens=100, sample_rows=8)
    assert plan.cache_bytes(text) == 4 * 2 * 2 * 16 * 2
    base = plan.memory(config, text, 10**6, 10**4, 300, kept=10**6)
    assert base["KV cache of sampling"] == 8 * 400 * plan.cache_bytes(text)
    assert base["KV cache of the audit"] == (4 * 300 + 2 * 4 * 8 * 400) * plan.cache_bytes(text)
    chunked = plan.memory(replace(config, audit_rows=4, update_rows=2), text, 10**6, 10**4, 300, kept=10**6)
    assert plan.peak(chunked) < plan.peak(base)
    text.layer_types = ["linear_attention"] * 3 + ["full_attention"]
    assert plan.cache_bytes(text) == 2 * 2 * 16 * 2


@pytest.mark.parametrize("family, width, rows", [
    ("qwen2_5_vl", 48, 3), ("qwen2_5_vl", 96, 1), ("qwen3_vl", 48, 3), ("qwen3_5", 48, 3),
])  # fmt: skip
def test_what_an_update_keeps_is_what_autograd_saves(family, width, rows, tmp_path):
    """Counted without storage on the trained layers alone, and measured at the update itself, in bfloat16."""
    policy = random_policy(family, layers=2, width=width)
    trained = plan.meta_model(policy.model.config.save_pretrained(tmp_path) or str(tmp_path), 1).requires_grad_(False)
    grpo.add_lora(trained, 1, 4, 8)
    policy.model.to(torch.bfloat16)
    policy.add_lora(1, 4, 8)
    vision = policy.encode(random_image(90, 60))
    prompt, ids = policy.prompt("?", vision.features[0].shape[1]), torch.arange(12, 12 + rows * 6).view(rows, 6)
    weights, saved = {p.data_ptr() for p in policy.model.parameters()}, {}
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.setdefault(x.untyped_storage().data_ptr(), x), lambda x: x):
        log_probs = policy.log_probs(policy.read(prompt, vision), ids, 1.0)
    measured = sum(x.untyped_storage().nbytes() for address, x in saved.items() if address not in weights)
    assert log_probs.requires_grad and measured > 50_000
    assert plan.kept_bytes(trained, len(prompt), rows, 6) == pytest.approx(measured, rel=0.01)


def test_a_backbone_without_a_configuration(tmp_path):
    with pytest.raises(data.InputError, match="cannot be loaded from .*model_type"):
        plan.meta_model(str(tmp_path))


def test_a_chunk_of_logits_is_all_that_is_ever_in_float32(tiny_policy, monkeypatch):
    """log_probs projects at most LOGIT_CHUNK positions at a time."""
    monkeypatch.setattr(models, "LOGIT_CHUNK", 5)
    seen, apply = [], models.TokenLogProb.apply
    monkeypatch.setattr(models.TokenLogProb, "apply", lambda h, *rest: seen.append(len(h)) or apply(h, *rest))
    vision = tiny_policy.encode(random_image(84, 84))
    prompt = tiny_policy.prompt("?", 36)
    with torch.no_grad():
        tiny_policy.log_probs(tiny_policy.read(prompt, vision), torch.arange(24).view(4, 6) + 12, 1.0)
    assert seen == [5, 5, 5, 5, 4]  # 4 · 6 positions
