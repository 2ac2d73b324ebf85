"""Several processes: one trajectory whatever their number, one that is killed and goes on, a failure that ends them all."""

import importlib
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from conftest import PAGED, ROOT
from test_harness import blind_source, lines, write
from test_tasks import RAW

import evaluate
import train
from config import InputError
from support import ranks
from support.checkpoint import read_state

TRAIN = ["--steps", "2", "--prompts-per-step", "3", "--group-size", "4", "--eval-prompts", "1", "--eval-group", "2"]
TRAIN += ["--sample-rows", "1"]  # prompts that are sampled together are padded, which rounds otherwise
TRAIN += ["--save-every", "1", "--eval-every", "2"]  # rank 0 draws after the first step, all measure after the second
ASK = ["--max-new-tokens", "3", "--batch-size", "2", "--benchmarks"]


def torchrun(script: Path, *flags: str | Path, restarts: int = 0) -> subprocess.Popen:
    """A script in two processes, in its own folder. They step back for the tests that run meanwhile."""
    launch = ["nice", sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    launch += ["--max-restarts", str(restarts), script, *flags]
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
    """Rank 1 is killed in the second step. Restarted, it meets an error in the third."""
    (folder / "failing.py").write_text("""
import os, report, signal, sys, train
from support import ranks
report.draw = lambda *_: None
judge, calls = train.judge, []
def failing(*args):
    calls.append(1)
    if ranks.rank() == 1 and len(calls) == 2:
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0": os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError('rank 1 is unwell')
    return judge(*args)
train.judge, train.measure_base = failing, lambda *_: {}
sys.exit(train.main(sys.argv[1:]))
""")
    flags = [*TRAIN, "--steps", "3", "--prompts-per-step", "2", "--save-every", "1", "--out", "killed"]
    return torchrun(folder / "failing.py", *flags, "--data", str(world["conflict"]), restarts=1)


@pytest.fixture(scope="module")
def two(pair) -> tuple[subprocess.CompletedProcess, Path]:
    """The two ranks when they have ended, and the folder that they leave."""
    job, _, folder = pair
    out, err = job.communicate(timeout=300)
    return subprocess.CompletedProcess(job.args, job.returncode, out, err), folder


def test_two_ranks_give_the_weights_of_one(two, tmp_path, world, monkeypatch, undrawn):
    """Bit for bit. Three prompts a step do not divide by two ranks, and what rank 0 draws on the way moves nothing."""
    done, folder = two
    monkeypatch.chdir(tmp_path)
    assert train.main([*TRAIN, "--data", str(world["consistent"]), "--out", "one"]) == 0
    assert [(folder / f"status-{rank}").read_text() for rank in (0, 1)] == ["0", "0"], done.stderr
    assert done.stdout.count("| probe | counting |") == 1  # rank 0 alone prints
    runs = (Path("one"), folder / "trained")
    states = [torch.load(run / "state.pt", weights_only=True)["adapter"] for run in runs]
    for name in states[0]:
        assert torch.equal(states[0][name], states[1][name])
    results = [json.loads((run / "results.json").read_text()) for run in runs]
    assert results[0]["before"] == results[1]["before"]
    logs = [[json.loads(line) for line in (run / "log.jsonl").open()] for run in runs]
    for a, b in zip(*logs, strict=True):
        assert a["reward"] == b["reward"] and a["grad_norm"] == b["grad_norm"]
        assert a["idle"] == 0 < b["idle"] < 1 and [set(own) for own in b["ranks"]] == [{"sample", "judge", "wait", "learn"}] * 2
        assert a.get("held_out") == b.get("held_out")
    assert ["held_out" in row for row in logs[1]] == [False, True]
    assert re.search(r"idle: \d+% of 2 processes' time", done.stdout)


def test_two_ranks_learn_from_pages_as_one(two, paged_run):
    """They share the reading of the library too."""
    runs = (paged_run, two[1] / "paged")
    states = [torch.load(run / "state.pt", weights_only=True)["adapter"] for run in runs]
    for name in states[0]:
        torch.testing.assert_close(states[0][name], states[1][name], atol=1e-6, rtol=0)
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


def test_a_rank_that_is_killed_goes_on_and_one_that_fails_ends_the_job_with_its_message(
    pair, world, tmp_path, monkeypatch, undrawn
):
    """Nobody asks to resume: torchrun has restarted it. What it then has is what a run of two steps has that nobody killed."""
    _, job, folder = pair
    _, err = job.communicate(timeout=300)
    assert job.returncode != 0 and "RuntimeError: rank 1 is unwell" in err
    assert re.findall(r"^train.py: (.*)", err.replace("\r", "\n"), re.MULTILINE)[-1].startswith("rank 1 on ")
    assert err.count("Connection closed") == 0
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train, "measure_base", lambda *_: {})
    flags = [*TRAIN, "--prompts-per-step", "2", "--data", str(world["conflict"]), "--out", "calm", "--steps", "3"]
    assert train.main([*flags, "--stop-after", "2"]) == 0
    states = [read_state(run) for run in (Path("calm"), folder / "killed")]
    assert [state["step"] for state in states] == [2, 2]
    for name, calm in states[0]["adapter"].items():
        assert torch.equal(calm, states[1]["adapter"][name])
    rows = [[json.loads(line)["reward"] for line in (run / "log.jsonl").open()] for run in (Path("calm"), folder / "killed")]
    assert len(rows[0]) == 2 and rows[0] == rows[1] and not list((folder / "killed").glob("*.partial"))


def test_wrong_input_of_the_first_rank_ends_every_rank(monkeypatch, capsys):
    """Rank 0 tells it, the others end with the same status and say nothing."""

    def refuse():
        raise InputError("--out x: holds this run")

    assert ranks.command("train.py", lambda: ranks.first(refuse)) == 2
    assert capsys.readouterr().err == "train.py: --out x: holds this run\n"


PROGRAMS = {
    "train": ["--backbone", "gpt"],
    "evaluate": ["--compare", "nowhere"],
    "data": ["--coco", "nowhere", "--out", "x.jsonl"],
    "models": ["merge", "nowhere", "x"],
    "studies.comparison": ["--workers", "0"],
    "studies.diagnose": ["reward", "--backbone", "gpt"],
    "studies.evpv": ["--out", "file"],
    "studies.speed": ["--vs", "trl"],
    "benchmarks.processbench": ["bench", "--backbone", "gpt"],
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_wrong_input_is_one_line_and_with_debug_its_cause(program, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)  # nobody has TRL
    main = importlib.import_module(program).main
    assert main(PROGRAMS[program]) == 2 and capsys.readouterr().err.count("\n") == 1
    with pytest.raises(InputError):
        main([*PROGRAMS[program], "--debug"])


ENDS = {  # what rank 1 meets: the status of all, and what is said of it
    "input": (lambda: ranks.first(lambda: 0) if ranks.rank() != 1 else refuse("a.png: no image"), 2, "a.png: no image"),
    "memory": (lambda: ranks.gather([1]) if ranks.rank() != 1 else lack_memory(), 3, "out of memory; in the part `judge`"),
    "a bug": (lambda: ranks.meet() if ranks.rank() != 1 else 1 / 0, 1, "ZeroDivisionError: division by zero"),
    "at the end": (lambda: refuse("no room") if ranks.rank() == 1 else None, 2, "no room"),
    "all the same": (lambda: refuse("--k: expected more"), 2, "--k: expected more"),
    "gone": (lambda: os._exit(9) if ranks.rank() == 1 else ranks.meet(), 1, "has died"),
    "never there": (lambda: os._exit(time.sleep(3) or 0) if ranks.rank() == 1 else ranks.meet(), 1, "rank 1 on "),
}


def refuse(message: str):
    raise InputError(message)


def lack_memory():
    error = torch.OutOfMemoryError("CUDA")
    error.add_note("in the part `judge`")
    raise error


def forked(world: int, folder: Path, body, minutes: float = 1.0) -> list[int]:
    """A function of the rank in so many processes that join a group, forked from this one; their statuses."""
    pids = []
    port = free_port()
    for rank in range(world):
        if pid := os.fork():
            pids.append(pid)
            continue
        status = 99
        try:
            os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            sys.stderr = (folder / f"{rank}.err").open("w")
            ranks.start(minutes)
            status = body(rank)
        finally:
            sys.stderr.flush()
            os._exit(status)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("end", ENDS)
def test_what_one_rank_meets_ends_all_with_one_line_and_one_status(tmp_path, end):
    action, status, said = ENDS[end]
    limit = 0.03 if end == "never there" else 1.0  # minutes
    statuses = forked(2, tmp_path, lambda rank: ranks.command("x.py", action), limit)
    said_by_all = "\n".join((tmp_path / f"{rank}.err").read_text() for rank in (0, 1))
    lines = [line for line in said_by_all.splitlines() if line.startswith("x.py: ")]
    assert statuses[0] == status and (statuses[1] == status or end in ("gone", "never there"))
    assert len(lines) == 1 and said in lines[0]
    assert ("rank 1 on " in lines[0]) == (end != "all the same")


def test_a_first_rank_that_stops_with_the_job_s_table_ends_the_others_too(tmp_path, monkeypatch):
    """Where torchrun shares no table of its own, rank 0 keeps it: what is asked of it then is never answered."""
    monkeypatch.setattr(ranks, "PATIENCE", 0.3)

    def body(rank: int) -> int:
        pid = ranks.first(os.getpid)
        if rank == 0:
            os.kill(pid, signal.SIGSTOP)
        status = ranks.command("x.py", ranks.meet)
        os.kill(pid, signal.SIGKILL)
        return status

    assert forked(2, tmp_path, body, 0.02) == [-signal.SIGKILL, 1]
    assert (tmp_path / "1.err").read_text() == "x.py: rank 0 or its host is gone, or answers no more\n"


def test_sums_have_the_same_bits_on_any_number_of_ranks(tmp_path):
    """Those of one addition after the other; ranks may have no term."""
    draw = torch.Generator().manual_seed(0)
    terms = list(torch.randn(5, 7, generator=draw) * 10 ** torch.randint(-6, 6, (5, 7), generator=draw))
    expected = (((terms[0] + terms[1]) + terms[2]) + terms[3]) + terms[4]

    def body(rank: int) -> int:
        parameters = [torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(2, 2))]
        total = ranks.GradientSum(parameters)
        for term in ranks.share(terms):
            parameters[0].grad, parameters[1].grad = term[:3].clone(), term[3:].view(2, 2).clone()
            total.add()
        total.finish(len(terms))
        return 0 if torch.equal(ranks.flat([p.grad for p in parameters]), expected) else 1

    for world in (1, 2, 3, 6):
        assert forked(world, tmp_path, body) == [0] * world


def test_once_a_host_the_first_process_comes_first(tmp_path):
    def body(rank: int) -> int:
        found = ranks.once_a_host(lambda: (tmp_path / "fetched").is_file() or (tmp_path / "fetched").write_text("x"))
        return 0 if found == 1 and (found is True) == (rank > 0) else 1

    assert forked(2, tmp_path, body) == [0, 0]


def test_a_start_knows_its_own_processes_from_those_that_died_before(monkeypatch):
    """torchrun's table outlives a restart: addresses in it may be those of the dead."""
    table = dist.HashStore()
    for key, value in {"here/0": "a/old", "here/1": "b/old", "seen": "a/old b/old", "heard/0": "a/old b/old",
                       "heard/1": "a/old b/old", "all here": "a/old b/old"}.items():  # fmt: skip
        table.set(key, value)
    monkeypatch.setattr(ranks, "table", lambda: table)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(ranks.roll_call, 0, 2, timedelta(seconds=30))
        time.sleep(0.1)  # meanwhile rank 0 believes in the old rank 1, who does not answer
        names = {first.result() if number == 0 else ranks.roll_call(1, 2, timedelta(seconds=30)) for number in (1, 0)}
    assert len(names) == 1 and "old" not in names.pop()
    with pytest.raises(ranks.Lost, match="rank 1 on b did not come"):
        table.set("here/1", "b/old")
        ranks.roll_call(0, 2, timedelta(seconds=0.2))
