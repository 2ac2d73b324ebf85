"""Several processes: one trajectory whatever their number, and a failure that ends them all."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import PAGED, ROOT
from test_harness import blind_source, lines, write
from test_tasks import RAW

import evaluate
import train
from config import InputError
from support import pictures, ranks

TRAIN = ["--steps", "2", "--prompts-per-step", "3", "--group-size", "4", "--eval-prompts", "1", "--eval-group", "2"]
TRAIN += ["--lr", "1e-4"]  # AdamW magnifies rounding to a share of lr
ASK = ["--max-new-tokens", "3", "--batch-size", "2", "--benchmarks"]


def torchrun(script: Path, *flags: str | Path) -> subprocess.Popen:
    """A script in two processes, in its own folder. They step back for the tests that run meanwhile."""
    launch = ["nice", sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script, *flags]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(launch, cwd=script.parent, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def make_source(folder: Path) -> Path:
    """Six questions in batches of two leave a rank with nothing in the second round; the last image of countbench is broken."""
    source = blind_source(folder)
    write(source / "piqa", [RAW["piqa"] | {"goal": goal} for goal in ("red", "star", "left")])
    shutil.copytree(source / "vlmsareblind" / "images", source / "countbench" / "images")
    (source / "countbench" / "images" / "5.png").write_bytes(b"no image")
    write(source / "countbench", [RAW["countbench"] | {"image": f"images/{i}.png"} for i in range(6)])
    return source


NEEDED = ("world", "backbone", "library", "words_folder")  # fixtures of the jobs


def start_training_and_asking(
    folder: Path, world: dict[str, Path], backbone: Path, library: Path, words: Path
) -> subprocess.Popen:
    """Two ranks train, on images and on pages, then ask three benchmarks, the last in vain. Starting them is what takes time,
    so they start once, and all commands share a process group. The `pair` of conftest.py is this and the next, started with
    the first test."""
    flags = [*TRAIN, "--data", str(world["consistent"]), "--out", "trained"]
    paged = [*PAGED, "--backbone", str(words), "--data", str(library), "--out", "paged"]
    source = make_source(folder / "source")
    asked = ["--backbone", str(backbone), "--source", str(source), *ASK, "vlmsareblind", "piqa", "countbench"]
    (folder / "two.py").write_text(f"""
import pathlib, sys, train, evaluate
from support import pictures, ranks
finish, ranks.finish = ranks.finish, lambda: None
pictures.learning_curves = pictures.audit_sheet = lambda *_: None
status = train.main({flags!r}) or train.main({paged!r})
pathlib.Path(f"status-{{ranks.rank()}}").write_text(str(status))
ranks.finish = finish
sys.exit(evaluate.main({asked!r}))
""")
    return torchrun(folder / "two.py")


def start_failing(folder: Path, world: dict[str, Path]) -> subprocess.Popen:
    """Rank 1 meets an error in its first step."""
    (folder / "failing.py").write_text("""
import sys, train
from support import ranks
judge = train.judge
def failing(*args):
    if ranks.rank() == 1: raise RuntimeError('rank 1 is unwell')
    return judge(*args)
train.judge, train.measure_base = failing, lambda *_: {}
sys.exit(train.main(sys.argv[1:]))
""")
    return torchrun(folder / "failing.py", "--data", str(world["conflict"]), "--steps", "2", "--group-size", "4")


@pytest.fixture(scope="module")
def two(pair) -> tuple[subprocess.CompletedProcess, Path]:
    """The two ranks when they have ended, and the folder that they leave."""
    job, _, folder = pair
    out, err = job.communicate(timeout=200)
    return subprocess.CompletedProcess(job.args, job.returncode, out, err), folder


def test_two_ranks_give_the_weights_of_one(two, tmp_path, world, monkeypatch):
    """Three prompts a step do not divide by two ranks."""
    done, folder = two
    monkeypatch.chdir(tmp_path)
    for picture in ("learning_curves", "audit_sheet"):  # drawn elsewhere, and slowly
        monkeypatch.setattr(pictures, picture, lambda *_: None)
    assert train.main([*TRAIN, "--data", str(world["consistent"]), "--out", "one"]) == 0
    assert [(folder / f"status-{rank}").read_text() for rank in (0, 1)] == ["0", "0"], done.stderr
    assert done.stdout.count("| probe | counting |") == 1  # rank 0 alone prints
    runs = (Path("one"), folder / "trained")
    same_weights(*runs)
    results = [json.loads((run / "results.json").read_text()) for run in runs]
    assert results[0]["before"] == results[1]["before"]
    logs = [[json.loads(line) for line in (run / "log.jsonl").open()] for run in runs]
    for a, b in zip(*logs, strict=True):
        assert a["reward"] == pytest.approx(b["reward"], abs=1e-5) and a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-3)


def same_weights(one: Path, two: Path) -> None:
    states = [torch.load(run / "state.pt", weights_only=True)["adapter"] for run in (one, two)]
    for name in states[0]:
        torch.testing.assert_close(states[0][name], states[1][name], atol=1e-6, rtol=0)


def test_two_ranks_learn_from_pages_as_one(two, paged_run):
    """They share the reading of the library too."""
    runs = (paged_run, two[1] / "paged")
    same_weights(*runs)
    logs = [[json.loads(line)["grad_norm"] for line in (run / "log.jsonl").open()] for run in runs]
    assert logs[0] == pytest.approx(logs[1], rel=1e-3) and max(logs[0]) > 0


def test_two_ranks_answer_as_one(two, backbone, tmp_path, monkeypatch):
    """Then rank 1 meets a broken image."""
    done, folder = two
    monkeypatch.chdir(tmp_path)
    asked = ["--backbone", str(backbone), "--source", str(folder / "source"), *ASK, "vlmsareblind", "piqa"]
    assert evaluate.main(asked) == 0
    assert done.returncode != 0 and done.stdout.count("| vlmsareblind | accuracy |") == 1  # rank 0 alone prints
    assert "row 5, image 1: the image does not decode" in done.stderr
    one, both = (where / "runs" / "random-base" for where in (tmp_path, folder))
    for name in ("vlmsareblind", "piqa"):
        for a, b in zip(lines(one, name), lines(both, name), strict=True):
            assert a["id"] == b["id"] and a["response"] == pytest.approx(b["response"], abs=1e-5)
    assert [reply["id"] for reply in lines(both, "countbench")] == ["0", "1", "2", "3"]  # the first round is kept


def test_a_rank_that_fails_ends_the_job_with_its_message(pair):
    """Rank 0 must not wait for it for ever."""
    _, job, _ = pair
    _, err = job.communicate(timeout=200)
    assert job.returncode != 0 and "rank 1 is unwell" in err


def test_wrong_input_of_the_first_rank_ends_every_rank(monkeypatch, capsys):
    """Rank 0 tells it, the others end with the same status and say nothing."""

    def refuse():
        raise InputError("--out x: holds this run")

    assert ranks.command("train.py", lambda: ranks.first(refuse)) == 2
    assert capsys.readouterr().err == "train.py: --out x: holds this run\n"
    monkeypatch.setattr(ranks, "rank", lambda: 1)
    monkeypatch.setattr(ranks, "anyone", lambda flag: True)
    assert ranks.command("train.py", lambda: ranks.first(refuse)) == 2 and capsys.readouterr().err == ""


def test_a_rank_without_a_prompt_contributes_zeros(monkeypatch):
    parameters = [torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(3, 2))]
    other = torch.arange(8.0)  # what the other rank sends
    monkeypatch.setattr(ranks, "world", lambda: 2)
    monkeypatch.setattr(ranks.dist, "all_reduce", lambda flat: flat.add_(other))
    ranks.sum_gradients(parameters)
    assert parameters[0].grad.tolist() == [0, 1] and parameters[1].grad.tolist() == [[2, 3], [4, 5], [6, 7]]
