"""Kills a real run with SIGKILL at random moments until it ends, and compares its weights with an uninterrupted run's.

    python tests/kill_and_resume.py [--kills 20] [--steps 40]

Not collected by pytest: it takes some minutes. Exits with 0 if every weight is bit-equal.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

TRAIN = Path(__file__).resolve().parent.parent / "train.py"
SHORT = ["--prompts-per-step", "2", "--group-size", "4", "--eval-prompts", "1", "--eval-group", "2", "--save-every", "1"]


def main() -> int:
    """Runs, kills, resumes, compares."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--kills", type=int, default=20, help="how often the run is killed")
    parser.add_argument("--steps", type=int, default=150, help="steps of the run")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(command("whole", args.steps), cwd=folder, check=True, capture_output=True)
        draw, run = random.Random(0), Path(folder, "killed")
        for kill in range(1, args.kills + 1):
            resume = [sys.executable, TRAIN, "--resume", "killed"]
            process = subprocess.Popen(
                resume if (run / "config.json").is_file() else command("killed", args.steps),
                cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            wait(process, run / "log.jsonl", draw)
            if process.poll() is not None:
                print(f"ended by itself with {process.returncode} before kill {kill}: use more --steps")
                return 1
            process.kill()
            process.wait()
            print(f"kill {kill}: {rows(run / 'log.jsonl')} steps in the log", flush=True)
        subprocess.run(resume, cwd=folder, check=True, capture_output=True)
        whole, killed = (
            torch.load(Path(folder, name, "state.pt"), weights_only=True)["adapter"] for name in ("whole", "killed")
        )
        same = all(torch.equal(whole[name], killed[name]) for name in whole)
        print(f"{args.kills} kills, {args.steps} steps: the final weights are {'bit-equal' if same else 'DIFFERENT'}")
        return 0 if same else 1


def wait(process: subprocess.Popen, log: Path, draw: random.Random) -> None:
    """Until a random moment: one time in four while the run starts, else within two seconds of its next step."""
    if draw.random() < 0.25:
        time.sleep(draw.uniform(0, 8))
        return
    before = rows(log)
    while process.poll() is None and rows(log) <= before:
        before = min(before, rows(log))  # a resumed run first cuts its log back to the checkpoint
        time.sleep(0.02)
    time.sleep(draw.uniform(0, 2))


def rows(log: Path) -> int:
    """Complete rows of a log that may not exist yet."""
    return log.read_text().count("\n") if log.is_file() else 0


def command(out: str, steps: int) -> list:
    """A short run into `out`."""
    return [sys.executable, TRAIN, *SHORT, "--steps", str(steps), "--out", out]


if __name__ == "__main__":
    sys.exit(main())
