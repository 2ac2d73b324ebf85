"""Several processes: one trajectory whatever their number, and a failure that ends them all."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT

import train
from support import ranks


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
