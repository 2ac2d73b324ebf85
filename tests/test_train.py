"""The loop: seeds, resume, hooks, statistics, the command line and wrong input."""

import json
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
import torch

import data
import train
from models import Policy
from train import METHODS, Config

SMALL = Config(**(train.TINY_RECIPE | {"steps": 3, "prompts_per_step": 2, "group_size": 4, "eval_prompts": 2, "eval_group": 2}))


@pytest.fixture(scope="module")
def samples(world, tiny_policy):
    return data.load(world["consistent"], tiny_policy.grid, 0.005, 0.6, 2)[0]


def fresh(config: Config) -> tuple[Policy, torch.optim.Optimizer]:
    policy = Policy.load("tiny")
    torch.manual_seed(config.seed)
    parameters = policy.add_lora(config.lora_layers, config.lora_rank, config.lora_alpha)
    return policy, torch.optim.AdamW(parameters, lr=config.lr)


def weights(policy: Policy) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in policy.adapter.parameters() if p.requires_grad])


def trained(config: Config, samples, out: Path) -> torch.Tensor:
    policy, _ = fresh(config)
    out.mkdir(exist_ok=True)
    train.train(policy, samples, config, out)
    return weights(policy)


def test_same_seed_same_weights_other_seed_other_weights(samples, tmp_path):
    a = trained(SMALL, samples, tmp_path / "a")
    assert torch.equal(a, trained(SMALL, samples, tmp_path / "b"))
    assert not torch.equal(a, trained(replace(SMALL, seed=1), samples, tmp_path / "c"))
    rows = [[json.loads(line) for line in (tmp_path / run / "log.jsonl").open()] for run in "ab"]
    for a, b in zip(*rows):
        assert {k: v for k, v in a.items() if k != "seconds"} == {k: v for k, v in b.items() if k != "seconds"}
    assert set(a["seconds"]) == {"sample", "judge", "learn", "report"}


def test_a_resumed_run_equals_an_uninterrupted_one(samples, tmp_path):
    whole = trained(replace(SMALL, steps=4), samples, tmp_path / "whole")
    trained(replace(SMALL, steps=2), samples, tmp_path / "halves")
    assert torch.equal(whole, trained(replace(SMALL, steps=4), samples, tmp_path / "halves"))
    assert len((tmp_path / "halves" / "log.jsonl").read_text().splitlines()) == 4


@pytest.mark.parametrize("method", METHODS)
def test_every_method_moves_the_adapter(samples, tmp_path, method):
    policy, _ = fresh(SMALL)
    start = weights(policy)
    assert (trained(replace(SMALL, method=method, steps=2), samples, tmp_path / "run") - start).abs().max() > 0
    row = json.loads((tmp_path / "run" / "log.jsonl").read_text().splitlines()[-1])
    assert {"reward", "r_ans", "margin", "zero_variance", "non_constant", "same_answer_different_reward", "kl", "clip_fraction",
            "grad_norm", "response_length", "inversions", "seconds"} <= row.keys()  # fmt: skip


def test_more_updates_leave_ratio_one_and_are_clipped(samples, tmp_path):
    config = replace(SMALL, updates_per_step=3, lr=3e-2, steps=1)
    policy, optimizer = fresh(config)
    row = train.train_step(policy, samples[:1], optimizer, config, 0)
    assert row["clip_fraction"] > 0 and row["kl"] > 0


def test_hooks_reach_the_gradient(samples, monkeypatch):
    """token_weights scales the surrogate's gradient; extra_loss adds its own."""

    def gradient(method: train.Method) -> torch.Tensor:
        monkeypatch.setitem(METHODS, "answer-ced", method)
        policy, _ = fresh(SMALL)
        group = train.sample_group(policy, samples[0], SMALL, 6, train.seeded(0))
        judgement = train.judge(policy, group, SMALL)
        rewards = torch.arange(6.0)
        loss, _ = train.group_loss(policy, group, judgement, rewards, replace(SMALL, beta=0.0), first=True)
        loss.backward()
        return torch.cat([p.grad.flatten() for p in policy.adapter.parameters() if p.requires_grad])

    plain = train.Method(METHODS["correctness"].reward)
    base = gradient(plain)
    assert base.abs().max() > 0
    half = gradient(plain._replace(token_weights=lambda policy, group, j, log_probs, c: torch.full_like(log_probs, 0.5)))
    torch.testing.assert_close(half, base / 2)
    both = gradient(plain._replace(extra_loss=lambda policy, group, j, log_probs, c: log_probs.mean()))
    assert (both - base).abs().max() > 1e-6


def test_statistics_of_a_group():
    a, b = "<answer> 4 </answer>", "<answer> 5 </answer>"
    assert train.tells_apart([a, a, b], torch.tensor([0.1, 0.8, 0.0]))
    assert not train.tells_apart([a, a, b], torch.tensor([0.8, 0.8, 0.0]))
    assert not train.tells_apart(["no answer", "none"], torch.tensor([0.1, 0.2]))
    correct = torch.tensor([True, True, False, False])
    assert train.inversions(correct, torch.tensor([1.0, -0.1, 0.0, 0.1])) == 0.5
    assert train.inversions(torch.tensor([True, True]), torch.tensor([1.0, 1.0])) == 0.0


# ── the command line ──
def test_every_field_of_config_is_a_flag_with_help(capsys):
    with pytest.raises(SystemExit):
        train.main(["--help"])
    text = capsys.readouterr().out
    for f in fields(Config):
        assert train.flag(f.name) + " " in text and f.metadata["help"]


def test_the_paper_s_numbers_are_the_defaults():
    c = Config()
    assert (c.group_size, c.steps, c.k, c.tau_g, c.eps_tie, c.lam, c.eps_margin) == (32, 2000, 3, 0.2, 0.1, 0.1, 0.1)
    assert (c.lora_rank, c.lora_alpha, c.lora_layers, c.lr, c.beta, c.temperature) == (16, 32, 4, 1e-5, 0.01, 1.0)


def test_tiny_brings_its_recipe_and_flags_override_it(capsys):
    config, _ = train.parse(["--lr", "0.5"])
    assert config.lr == 0.5 and config.steps == train.TINY_RECIPE["steps"]
    assert "--steps 150" in capsys.readouterr().out
    config, _ = train.parse(["--backbone", "qwen2.5-vl-7b"])
    assert config.steps == 2000 and config.out == "runs/qwen2.5-vl-7b-answer-ced-0"


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--backbone", "gpt"], "--backbone: expected one of tiny, qwen2.5-vl-3b"),
        (["--method", "sft"], "--method: expected one of correctness, additive"),
        (["--group-size", "1"], "--group-size: expected at least 2; found 1"),
        (["--k", "0"], "--k: expected at least 1; found 0"),
        (["--tau-g", "0"], "--tau-g: expected a number above 0"),
        (["--intervention", "blur"], "--intervention: expected one of mean, zero, noise"),
        (["--data", "nowhere"], "nowhere: expected a COCO folder"),
        (["--max-prompt-tokens", "40"], "--max-prompt-tokens allows 40, and an image is never cut"),
        (["--lora-layers", "9"], "--lora-layers: LoRA on the last 9 decoder layers: the model has 4"),
        (["--resume", "nowhere"], "nowhere/config.json: expected the configuration of a run"),
        (["--steps", "many"], "--steps"),
    ],
)
def test_bad_input_ends_with_two_and_leaves_nothing(tmp_path, monkeypatch, capsys, flags, message):
    monkeypatch.chdir(tmp_path)
    try:
        code = train.main(flags)
    except SystemExit as end:  # argparse's own
        code = end.code
    assert code == 2 and message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_out_that_holds_a_run_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    train.claim(Path("runs/x"), replace(SMALL, out="runs/x", seed=5))
    flags = [part for name, value in asdict(replace(SMALL, out="runs/x")).items() for part in (train.flag(name), str(value))]
    assert train.main(flags) == 2
    assert "seed 5, not 0" in capsys.readouterr().err
    assert [p.name for p in Path("runs/x").iterdir()] == ["config.json"]


def test_the_whole_command(tmp_path, monkeypatch, capsys):
    """`python train.py`, shortened: everything a run promises is there, and evaluate.py reads it."""
    monkeypatch.chdir(tmp_path)
    flags = ["--steps", "2", "--eval-prompts", "2", "--eval-group", "2", "--group-size", "4"]
    assert train.main(flags) == 0
    out, text = Path("runs/tiny-answer-ced-0"), capsys.readouterr().out
    files = ("config.json", "log.jsonl", "state.pt", "adapter", "results.json", "learning_curves.png", "audit_sheet.png")
    assert {p.name for p in out.iterdir()} == set(files)
    assert "| conflict | all |" in text and "--prompts-per-step 4" in text and "--steps 150" not in text

    assert evaluate.main(["--run", str(out), "--split", "conflict", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)["conflict"]
    assert scores["all"]["n"] == 8 and scores == json.loads((out / "results.json").read_text())["after"]["conflict"]
    assert evaluate.main(["--compare", str(out)]) == 0 and "| answer-ced | 0 |" in capsys.readouterr().out
    assert evaluate.main(["--run", str(out), "--split", "nowhere"]) == 2

    assert train.main(flags) == 2 and "holds this run; continue it with --resume" in capsys.readouterr().err


def test_evaluate_refuses_what_is_not_there(tmp_path, capsys):
    assert evaluate.main(["--run", str(tmp_path)]) == 2
    assert evaluate.main(["--compare", str(tmp_path)]) == 2
    assert "results.json is missing" in capsys.readouterr().err
