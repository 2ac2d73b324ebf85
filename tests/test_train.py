"""The loop: seeds, resume, hooks, statistics, the command line and wrong input."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
import torch
from conftest import ROOT

import data
import evaluate
import train
from config import TINY_RECIPE, Config, InputError, configure, flag
from methods import METHODS, Method
from models import Policy
from support import ranks
from support.checkpoint import claim

SMALL = Config(**(TINY_RECIPE | {"steps": 2, "prompts_per_step": 2, "group_size": 4, "eval_prompts": 2, "eval_group": 2}))


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
            "grad_norm", "response_length", "inversions", "placed", "null_tokens", "seconds"} <= row.keys()  # fmt: skip


def test_more_updates_leave_ratio_one_and_are_clipped(samples, tmp_path):
    config = replace(SMALL, updates_per_step=3, lr=3e-2, steps=1)
    policy, optimizer = fresh(config)
    row = train.train_step(policy, samples[:1], optimizer, config, 0)
    assert row["clip_fraction"] > 0 and row["kl"] > 0


def gradient(config: Config, sample) -> torch.Tensor:
    """The gradient of one group's loss, for rewards 0 … 5."""
    policy, _ = fresh(config)
    group = train.sample_group(policy, sample, config, 6, train.seeded(0))
    judgement = train.judge(policy, group, config)
    train.learn(policy, group, judgement, torch.arange(6.0), replace(config, beta=0.0), update=0, n=1)
    return torch.cat([p.grad.flatten() for p in policy.adapter.parameters() if p.requires_grad])


def test_hooks_reach_the_gradient(samples, monkeypatch):
    """token_weights scales the surrogate's gradient; extra_loss adds its own."""

    def of(method: Method) -> torch.Tensor:
        monkeypatch.setitem(METHODS, "answer-ced", method)
        return gradient(SMALL, samples[0])

    plain = Method(METHODS["correctness"].reward)
    base = of(plain)
    assert base.abs().max() > 0
    half = of(plain._replace(token_weights=lambda policy, group, j, c: torch.full(group.responses.ids.shape, 0.5)))
    torch.testing.assert_close(half, base / 2)
    both = of(plain._replace(extra_loss=lambda policy, group, rows, log_probs, shares, c: (log_probs * shares).sum()))
    assert (both - base).abs().max() > 1e-6


def test_chunks_of_rows_change_nothing(samples):
    """Margins and gradients, to rounding (weights would not do: Adam divides by gradients that are nearly 0)."""
    small = replace(SMALL, audit_rows=3, update_rows=1)
    group = train.sample_group(fresh(SMALL)[0], samples[0], SMALL, 6, train.seeded(0))
    whole, chunked = (train.judge(fresh(config)[0], group, config).s for config in (SMALL, small))
    torch.testing.assert_close(whole, chunked, atol=1e-5, rtol=0)
    whole, chunked = gradient(SMALL, samples[0]), gradient(small, samples[0])
    torch.testing.assert_close(whole, chunked, atol=1e-6 * float(whole.abs().max()), rtol=0)


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
        assert flag(f.name) + " " in text and f.metadata["help"]


def test_the_paper_s_numbers_are_the_defaults():
    c = Config()
    assert (c.group_size, c.steps, c.k, c.tau_g, c.eps_tie, c.lam, c.eps_margin) == (32, 2000, 3, 0.2, 0.1, 0.1, 0.1)
    assert (c.lora_rank, c.lora_alpha, c.lora_layers, c.lr, c.beta, c.temperature) == (16, 32, 4, 1e-5, 0.01, 1.0)


def test_tiny_brings_its_recipe_and_flags_override_it():
    config = configure({"lr": 0.5})
    assert config.lr == 0.5 and config.steps == TINY_RECIPE["steps"]
    config = configure({"backbone": "qwen2.5-vl-7b"})
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
        (["--r-correct", "0"], "--r-correct: expected more than --r-wrong, 0.0; found 0.0"),
        (["--clip-low", "-0.1"], "--clip-low: expected at least 0; found -0.1"),
        (["--beta", "-1"], "--beta: expected at least 0; found -1.0"),
        (["--eps-tie", "-1"], "--eps-tie: expected at least 0; found -1.0"),
    ],
)
def test_bad_input_ends_with_two_and_leaves_nothing(tmp_path, monkeypatch, capsys, small_world, flags, message):
    monkeypatch.chdir(tmp_path)
    try:
        code = train.main(flags)
    except SystemExit as end:  # argparse's own
        code = end.code
    assert code == 2 and message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_out_that_holds_a_run_is_refused(tmp_path, monkeypatch, capsys, small_world):
    monkeypatch.chdir(tmp_path)
    claim(Path("runs/x"), replace(SMALL, out="runs/x", seed=5))
    flags = [part for name, value in asdict(replace(SMALL, out="runs/x")).items()
             if not isinstance(value, bool) for part in (flag(name), str(value))]  # fmt: skip
    assert train.main(flags) == 2
    assert "seed 5, not 0" in capsys.readouterr().err
    assert [p.name for p in Path("runs/x").iterdir()] == ["config.json"]


def test_the_whole_command(tmp_path, monkeypatch, capsys, small_world):
    """`python train.py`, shortened: everything a run promises is there, and evaluate.py reads it."""
    monkeypatch.chdir(tmp_path)
    flags = ["--steps", "1", "--eval-prompts", "1", "--eval-group", "2", "--group-size", "4"]
    assert train.main(flags) == 0
    out, text = Path("runs/tiny-answer-ced-0"), capsys.readouterr().out
    files = ("config.json", "before.json", "log.jsonl", "state.pt", "adapter", "results.json", "learning_curves.png")
    files = (*files, "audit_sheet.png")
    assert {p.name for p in out.iterdir()} == set(files)
    assert "| conflict | all |" in text and "--prompts-per-step 4" in text and f"--steps {TINY_RECIPE['steps']}" not in text

    assert evaluate.main(["--run", str(out), "--split", "conflict", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)["conflict"]
    assert scores["all"]["n"] == 4 and scores == json.loads((out / "results.json").read_text())["after"]["conflict"]
    assert evaluate.main(["--compare", str(out)]) == 0 and "| answer-ced | 0 |" in capsys.readouterr().out
    assert evaluate.main(["--run", str(out), "--split", "nowhere"]) == 2

    assert train.main(flags) == 2 and "holds this run; continue it with --resume" in capsys.readouterr().err


def test_evaluate_refuses_what_is_not_there(tmp_path, capsys):
    assert evaluate.main(["--run", str(tmp_path)]) == 2
    assert evaluate.main(["--compare", str(tmp_path)]) == 2
    assert "results.json is missing" in capsys.readouterr().err


# ── interruptions, damaged checkpoints, numbers that are not finite ──
def test_stop_after_is_an_interruption_that_resume_continues_bit_for_bit(tmp_path, monkeypatch, capsys, small_world):
    monkeypatch.chdir(tmp_path)
    for picture in ("learning_curves", "audit_sheet"):  # drawn elsewhere, and slowly
        monkeypatch.setattr(train.pictures, picture, lambda *_: None)
    flags = ["--steps", "3", "--eval-prompts", "1", "--eval-group", "2", "--group-size", "4", "--prompts-per-step", "2"]
    assert train.main([*flags, "--out", "whole"]) == 0
    assert train.main([*flags, "--out", "halves", "--stop-after", "2"]) == 0
    assert "stopped; continue with --resume halves" in capsys.readouterr().out
    assert not Path("halves/adapter").exists()
    assert train.main(["--resume", "halves"]) == 0
    states = [torch.load(f"{run}/state.pt", weights_only=True) for run in ("whole", "halves")]
    assert all(torch.equal(states[0]["adapter"][n], states[1]["adapter"][n]) for n in states[0]["adapter"])
    assert json.loads(Path("whole/results.json").read_text()) == json.loads(Path("halves/results.json").read_text())
    assert train.main(["--resume", "halves", "--lr", "0.5", "--seed", "0"]) == 2
    error = capsys.readouterr().err
    assert f"the run has its own configuration: lr {TINY_RECIPE['lr']}, not 0.5" in error and "seed" not in error


def test_sigterm_finishes_the_step_and_saves(samples, tmp_path, monkeypatch):
    policy, _ = fresh(SMALL)
    step = train.train_step

    def interrupted(*args):
        os.kill(os.getpid(), signal.SIGTERM)
        return step(*args)

    monkeypatch.setattr(train, "train_step", interrupted)
    assert train.train(policy, samples, SMALL, tmp_path) is False
    assert torch.load(tmp_path / "state.pt", weights_only=True)["step"] == 1
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 1


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_offered(samples, tmp_path):
    config = replace(SMALL, save_every=1)
    trained(config, samples, tmp_path)
    state = tmp_path / "state.pt"
    state.write_bytes(state.read_bytes()[:1000])
    with pytest.raises(
        InputError, match=r"state.pt: the checkpoint is damaged .*remove it to continue from .*state.previous.pt"
    ):
        trained(config, samples, tmp_path)
    state.unlink()
    assert torch.equal(trained(config, samples, tmp_path), trained(config, samples, tmp_path / "again"))


def test_a_gradient_that_is_not_finite_skips_the_step_and_five_in_a_row_stop_the_run(samples, tmp_path, monkeypatch):
    config = replace(SMALL, steps=9, save_every=1)
    policy, _ = fresh(config)
    rewards_of, calls = train.rewards_of, []

    def poisoned(judgement, sample, config):
        calls.append(sample)
        bad = len(calls) in (1, 2) or len(calls) > 2 * 3  # the first step, then every step from the fourth on
        return rewards_of(judgement, sample, config) + (float("nan") if bad else 0)

    monkeypatch.setattr(train, "rewards_of", poisoned)
    with pytest.raises(InputError, match="step 7: the loss or gradient was not finite 5 steps in a row"):
        train.train(policy, samples, config, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").open()]
    assert [row["skipped"] for row in rows] == [True, False, False, True, True, True, True]
    assert weights(policy).isfinite().all()
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert all(w.isfinite().all() for w in state["adapter"].values()) and state["bad_steps"] == 4


# ── several processes ──
def test_two_ranks_give_the_weights_of_one(tmp_path, world, monkeypatch):
    """Three prompts a step do not divide by two ranks."""
    monkeypatch.chdir(tmp_path)
    flags = ["--data", str(world["consistent"]), "--steps", "2", "--prompts-per-step", "3", "--group-size", "4"]
    flags += ["--eval-prompts", "1", "--eval-group", "2", "--lr", "1e-4"]  # AdamW magnifies rounding to a share of lr
    assert train.main([*flags, "--out", "one"]) == 0
    two = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", ROOT / "train.py"]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([*two, *flags, "--out", "two"], env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("| probe | all |") == 1  # rank 0 alone prints
    states = [torch.load(f"{run}/state.pt", weights_only=True)["adapter"] for run in ("one", "two")]
    for name in states[0]:
        torch.testing.assert_close(states[0][name], states[1][name], atol=1e-6, rtol=0)
    results = [json.loads(Path(run, "results.json").read_text()) for run in ("one", "two")]
    assert results[0]["before"] == results[1]["before"]
    logs = [[json.loads(line) for line in Path(run, "log.jsonl").open()] for run in ("one", "two")]
    for a, b in zip(*logs):
        assert a["reward"] == pytest.approx(b["reward"], abs=1e-5) and a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-3)


def test_a_rank_without_a_prompt_contributes_zeros(monkeypatch):
    parameters = [torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(3, 2))]
    other = torch.arange(8.0)  # what the other rank sends
    monkeypatch.setattr(ranks, "world", lambda: 2)
    monkeypatch.setattr(ranks.dist, "all_reduce", lambda flat: flat.add_(other))
    ranks.sum_gradients(parameters)
    assert parameters[0].grad.tolist() == [0, 1] and parameters[1].grad.tolist() == [[2, 3], [4, 5], [6, 7]]


def test_a_rank_that_fails_ends_the_job_with_its_message(tmp_path, world):
    """Rank 1 meets an error in its first step; rank 0 must not wait for it for ever."""
    script = tmp_path / "failing.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "import train\n"
        "from support import ranks\n"
        "judge = train.judge\n"
        "def failing(*args):\n"
        "    if ranks.rank() == 1: raise RuntimeError('rank 1 is unwell')\n"
        "    return judge(*args)\n"
        "train.judge, train.measure = failing, lambda *_: {}\n"
        "sys.exit(train.main(sys.argv[1:]))\n"
    )
    flags = ["--data", str(world["conflict"]), "--steps", "2", "--group-size", "4", "--eval-prompts", "1", "--eval-group", "2"]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script, *flags]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode != 0 and "rank 1 is unwell" in done.stderr
