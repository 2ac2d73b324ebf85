"""Several processes: one trajectory whatever their number, and a failure that ends them all."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from test_harness import blind_source, lines, write
from test_tasks import RAW

import evaluate
import train
from support import ranks

TRAIN = ["--steps", "2", "--prompts-per-step", "3", "--group-size", "4", "--eval-prompts", "1", "--eval-group", "2"]
TRAIN += ["--lr", "1e-4"]  # AdamW magnifies rounding to a share of lr
ASK = ["--max-new-tokens", "3", "--batch-size", "2", "--benchmarks"]


def torchrun(script: Path, *flags: str | Path) -> subprocess.CompletedProcess:
    """A script in two processes, in its own folder."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script, *flags]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(launch, cwd=script.parent, env=env, capture_output=True, text=True, timeout=100)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """Six questions in batches of two leave a rank with nothing in the second round; the last image of countbench is broken."""
    source = blind_source(tmp_path_factory.mktemp("source"))
    write(source / "piqa", [RAW["piqa"] | {"goal": goal} for goal in ("red", "star", "left")])
    shutil.copytree(source / "vlmsareblind" / "images", source / "countbench" / "images")
    (source / "countbench" / "images" / "5.png").write_bytes(b"no image")
    write(source / "countbench", [RAW["countbench"] | {"image": f"images/{i}.png"} for i in range(6)])
    return source


@pytest.fixture(scope="module")
def two(tmp_path_factory, world, backbone, source) -> tuple[subprocess.CompletedProcess, Path]:
    """Two ranks train, then ask three benchmarks, the last in vain; and the folder that they leave. Starting them is what takes
    time, so they start once, and both commands share a process group.
    """
    script = tmp_path_factory.mktemp("two") / "two.py"
    flags = [*TRAIN, "--data", str(world["consistent"]), "--out", "trained"]
    asked = ["--backbone", str(backbone), "--source", str(source), *ASK, "vlmsareblind", "piqa", "countbench"]
    script.write_text(f"""
import pathlib, sys, train, evaluate
from support import pictures, ranks
finish, ranks.finish = ranks.finish, lambda: None
pictures.learning_curves = pictures.audit_sheet = lambda *_: None
status = train.main({flags!r})
pathlib.Path(f"status-{{ranks.rank()}}").write_text(str(status))
ranks.finish = finish
sys.exit(evaluate.main({asked!r}))
""")
    return torchrun(script), script.parent


def test_two_ranks_give_the_weights_of_one(two, tmp_path, world, monkeypatch):
    """Three prompts a step do not divide by two ranks."""
    done, folder = two
    monkeypatch.chdir(tmp_path)
    for picture in ("learning_curves", "audit_sheet"):  # drawn elsewhere, and slowly
        monkeypatch.setattr(train.pictures, picture, lambda *_: None)
    assert train.main([*TRAIN, "--data", str(world["consistent"]), "--out", "one"]) == 0
    assert [(folder / f"status-{rank}").read_text() for rank in (0, 1)] == ["0", "0"], done.stderr
    assert done.stdout.count("| probe | all |") == 1  # rank 0 alone prints
    runs = (Path("one"), folder / "trained")
    states = [torch.load(run / "state.pt", weights_only=True)["adapter"] for run in runs]
    for name in states[0]:
        torch.testing.assert_close(states[0][name], states[1][name], atol=1e-6, rtol=0)
    results = [json.loads((run / "results.json").read_text()) for run in runs]
    assert results[0]["before"] == results[1]["before"]
    logs = [[json.loads(line) for line in (run / "log.jsonl").open()] for run in runs]
    for a, b in zip(*logs, strict=True):
        assert a["reward"] == pytest.approx(b["reward"], abs=1e-5) and a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-3)


def test_two_ranks_answer_as_one(two, backbone, source, tmp_path, monkeypatch):
    """Then rank 1 meets a broken image."""
    done, folder = two
    monkeypatch.chdir(tmp_path)
    assert evaluate.main(["--backbone", str(backbone), "--source", str(source), *ASK, "vlmsareblind", "piqa"]) == 0
    assert done.returncode != 0 and done.stdout.count("| vlmsareblind | accuracy |") == 1  # rank 0 alone prints
    assert "row 5, image 1: the image does not decode" in done.stderr
    one, both = (where / "runs" / "random-base" for where in (tmp_path, folder))
    for name in ("vlmsareblind", "piqa"):
        for a, b in zip(lines(one, name), lines(both, name), strict=True):
            assert a["id"] == b["id"] and a["response"] == pytest.approx(b["response"], abs=1e-5)
    assert [reply["id"] for reply in lines(both, "countbench")] == ["0", "1", "2", "3"]  # the first round is kept


def test_a_rank_that_fails_ends_the_job_with_its_message(tmp_path, world):
    """Rank 1 meets an error in its first step; rank 0 must not wait for it for ever."""
    script = tmp_path / "failing.py"
    script.write_text(
        "import sys, train\n"
        "from support import ranks\n"
        "judge = train.judge\n"
        "def failing(*args):\n"
        "    if ranks.rank() == 1: raise RuntimeError('rank 1 is unwell')\n"
        "    return judge(*args)\n"
        "train.judge, train.measure = failing, lambda *_: {}\n"
        "sys.exit(train.main(sys.argv[1:]))\n"
    )
    flags = ["--data", str(world["conflict"]), "--steps", "2", "--group-size", "4", "--eval-prompts", "1", "--eval-group", "2"]
    done = torchrun(script, *flags)
    assert done.returncode != 0 and "rank 1 is unwell" in done.stderr


def test_a_rank_without_a_prompt_contributes_zeros(monkeypatch):
    parameters = [torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(3, 2))]
    other = torch.arange(8.0)  # what the other rank sends
    monkeypatch.setattr(ranks, "world", lambda: 2)
    monkeypatch.setattr(ranks.dist, "all_reduce", lambda flat: flat.add_(other))
    ranks.sum_gradients(parameters)
    assert parameters[0].grad.tolist() == [0, 1] and parameters[1].grad.tolist() == [[2, 3], [4, 5], [6, 7]]
