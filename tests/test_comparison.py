"""The controlled comparison: what is started, continued, repeated or refused, and the arithmetic of its table."""

import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

import config
import evaluate
import train
from config import InputError
from studies import comparison
from support.checkpoint import claim

PYTHON = [sys.executable, "-S", "-c"]
pytestmark = pytest.mark.usefixtures("unlaid")


# ── the processes ──
def test_runs_share_the_workers_and_a_failed_one_is_told_while_the_others_finish(tmp_path):
    note = "import os, sys, time; at = time.time; print(os.environ['OMP_NUM_THREADS'], file=open(sys.argv[1], 'w')); "
    span = note + "a = at(); time.sleep(0.15); print(a, at(), file=open(sys.argv[1], 'a'))"
    commands = {name: [*PYTHON, span, str(tmp_path / name)] for name in "abcd"}
    commands["bad"] = [*PYTHON, "import sys; sys.exit('one\\n\\ntwo\\nthree\\nfour')"]
    failed = comparison.run_all(commands, 2, tmp_path, before=1)
    assert failed == {"bad": "two\nthree\nfour"}
    assert {p.name for p in tmp_path.iterdir()} == {*"abcd", "bad.stderr"}
    lines = [(tmp_path / name).read_text().split() for name in "abcd"]
    assert all(threads == "1" for threads, _, _ in lines)
    spans = [(float(start), float(end)) for _, start, end in lines]
    at_once = [sum(start <= moment < end for start, end in spans) for moment, _ in spans]
    assert max(at_once) == 2


def test_an_interruption_is_passed_on_and_nothing_else_starts(tmp_path):
    ready, saved = tmp_path / "ready", tmp_path / "saved"
    patient = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(open(sys.argv[2], 'w').close())); "
    patient += "open(sys.argv[1], 'w').close(); time.sleep(60)"

    def interrupt():
        while not ready.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=interrupt).start()
    commands = {"a": [*PYTHON, patient, str(ready), str(saved)], "b": [*PYTHON, f"open({str(tmp_path / 'b')!r}, 'w')"]}
    assert comparison.run_all(commands, 1, tmp_path, before=0) == {}
    assert saved.exists() and not (tmp_path / "b").exists()


# ── the command, with runs that only pretend ──
def family(n: int, accuracy: float, look_share: float = 0.0, margin: float = 0.0) -> dict:
    return {"n": n, "accuracy": accuracy, "interval": [0, 1], "look_share": look_share, "margin": margin}


def splits(conflict: tuple[float, float, float], presence: float, look: float, margin: float) -> dict:
    """Attribute, counting and spatial on conflict; everything right on consistent. `all` must not be counted."""
    names = ("attribute", "counting", "spatial")
    usual = {name: family(5, 1.0) for name in names} | {"presence": family(5, 1.0), "all": family(20, 9.0)}
    unusual = {name: family(7, a, look + d, margin - d) for name, a, d in zip(names, conflict, (-0.1, 0.0, 0.1))}
    return {"consistent": usual, "conflict": unusual | {"presence": family(7, presence, 9.0, 9.0), "all": family(28, 9.0)}}


def pretend(command: list[str], end: bool = True) -> None:
    """Does what a run of train.py leaves behind: it goes from 0.3 to 0.9 on conflict at seed 0, to 0.7 at seed 1."""
    args = vars(train.make_parser().parse_args(command[2:]))
    resume, _, _ = (args.pop(name) for name in ("resume", "dry_run", "stop_after"))
    made = config.resumed(resume, args) if resume else config.configure(args)
    run, best = Path(made.out), 0.9 - 0.2 * made.seed
    if not resume:
        claim(run, made)
    if not end:
        return
    lengths = [16.0] * 10 + [13.0] * 5 + [10.0 + made.seed] * 10
    rows = [{"response_length": n, "look_share": 0.5, "zero_variance": 0.1, "reward": 0.2} for n in lengths]
    (run / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    results = {"before": splits((0.2, 0.3, 0.4), 0.25, 0.3, 0.2), "after": splits((best, best, best), 0.5, best, -0.5)}
    (run / "results.json").write_text(json.dumps(results))


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """`evaluate.py --table3 FLAGS` in an empty directory, with pretended runs: its status, stdout, stderr, and what it ran."""
    monkeypatch.chdir(tmp_path)

    def run(*flags: str, fail: tuple[str, ...] = ()):
        started = {}

        def run_all(commands, workers, out, before):
            started.update(commands)
            for name, parts in commands.items():
                pretend(parts, end=name not in fail)
            return {name: "out of memory" for name in fail}

        monkeypatch.setattr(comparison, "run_all", run_all)
        try:
            status = evaluate.main(["--table3", *flags])
        except SystemExit as end:  # argparse's own
            status = end.code
        return status, *capsys.readouterr(), started

    return run


FLAGS = ("--seeds", "0", "1", "--methods", "correctness", "papo", "--steps", "25", "--r-wrong", "-0.25")


def test_the_table_s_arithmetic(command):
    status, out, _, started = command(*FLAGS)
    assert status == 0 and list(started) == ["correctness-0", "correctness-1", "papo-0", "papo-1"]
    header, rule, base, correctness, papo, blank, note = out.splitlines()[:7]
    assert header.count("|") == rule.count("|") == base.count("|")
    assert correctness.split(" | ", 1)[1] == papo.split(" | ", 1)[1]
    # 0.9 and 0.7: mean 0.80, sample deviation 0.1 √2; gains over 0.3; lengths 10 and 11 at the end
    assert papo == (
        "| papo | 0 1 | 1.00 ± 0.00 | +0.00 ± 0.00 | 0.80 ± 0.14 | +0.50 ± 0.14 | 1.00 ± 0.00 | 0.50 ± 0.00 | 0.80 ± 0.14 "
        "| -0.50 ± 0.00 | 16.00 ± 0.00 | 10.50 ± 0.71 |"
    )
    same = "| 1.00 ± 0.00 | – | 0.30 ± 0.00 | – | 1.00 ± 0.00 | 0.25 ± 0.00 | 0.30 ± 0.00 | +0.20 ± 0.00 | – | – |"
    assert base == f"| frozen base | 0 1 {same}"
    assert "conflict: attribute 7, counting 7, spatial 7, presence 7" in note
    assert Path("runs/table3/table3.png").stat().st_size > 10_000
    assert json.loads(Path("runs/table3/papo-1/config.json").read_text())["r_wrong"] == -0.25


def test_ended_runs_are_kept_interrupted_ones_go_on_and_what_is_missing_is_said(command):
    status, out, err, started = command(*FLAGS, fail=("papo-1",))
    assert status == 1 and "papo-1 is missing: out of memory" in err and len(started) == 4
    assert "| papo | 0 | 1.00 | +0.00 | 0.90 | +0.60 |" in out  # one seed has no deviation
    status, out, err, started = command(*FLAGS, "--json")
    assert status == 0 and {name: parts[2:] for name, parts in started.items()} == {
        "papo-1": ["--resume", "runs/table3/papo-1"]
    }
    found = json.loads(out)
    assert found["missing"] == {} and found["methods"]["papo"]["conflict gain"] == pytest.approx([0.5, 0.2 / 2**0.5])
    assert command(*FLAGS)[3] == {}


def test_nothing_ended_gives_no_table(command):
    status, out, err, _ = command("--methods", "papo", "--seeds", "4", fail=("papo-4",))
    assert (status, out) == (1, "") and "papo-4 is missing" in err


@pytest.mark.parametrize("flags, message", [
    (("--methods", "papo", "sft"), "--method: expected one of correctness, additive"),
    (("--group-size", "1"), "--group-size: expected at least 2; found 1"),
    (("--grupo", "1"), "unrecognized arguments: --grupo 1"),
    (("--seed", "3"), "--seed: expected --seeds in a comparison"),
    (("--method", "papo"), "--method: expected --methods in a comparison"),
    (("--resume", "runs/x"), "--resume: is for a single run of train.py"),
    (("--dry-run",), "--dry-run: is for a single run of train.py"),
    (("--workers", "0"), "--workers: expected at least 1; found 0"),
])  # fmt: skip
def test_wrong_input_starts_nothing(command, flags, message):
    status, out, err, started = command(*flags)
    assert status == 2 and message in err and started == {} and list(Path().iterdir()) == []


def test_runs_of_another_configuration_are_refused(command):
    command(*FLAGS)
    status, _, err, started = command(*FLAGS, "--lr", "0.5")
    assert status == 2 and started == {}
    own = f"lr {config.TINY_RECIPE['lr']}, not 0.5"
    assert f"--out runs/table3/correctness-0: holds a run of another configuration: {own}" in err
    with pytest.raises(InputError, match=own):
        comparison.ended(replace(config.load_config(Path("runs/table3/papo-1")), lr=0.5))
