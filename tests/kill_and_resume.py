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
    parser.add_argument("--steps", type=int, default=40, help="steps of the run")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        subprocess.run(command("whole", args.steps), cwd=folder, check=True, capture_output=True)
        seconds, draw, kills, log = time.monotonic() - start, random.Random(0), 0, Path(folder, "killed", "log.jsonl")
        while kills < args.kills:
            resume = log.parent.joinpath("config.json").is_file()
            process = subprocess.Popen(
                [sys.executable, TRAIN, "--resume", "killed"] if resume else command("killed", args.steps),
                cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            try:
                process.wait(draw.uniform(0.3, 1.0) * seconds)
                print(f"ended by itself with {process.returncode} after {kills} kills")
                if process.returncode or kills == 0:
                    return 1
                break
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                kills += 1
                print(f"kill {kills}: {len(log.read_text().splitlines()) if log.is_file() else 0} steps in the log", flush=True)
        subprocess.run([sys.executable, TRAIN, "--resume", "killed"], cwd=folder, check=True, capture_output=True)
        whole, killed = (torch.load(Path(folder, run, "state.pt"), weights_only=True)["adapter"] for run in ("whole", "killed"))
        same = all(torch.equal(whole[name], killed[name]) for name in whole)
        print(f"{kills} kills, {args.steps} steps: the final weights are {'bit-equal' if same else 'DIFFERENT'}")
        return 0 if same else 1


def command(out: str, steps: int) -> list:
    """A short run into `out`."""
    return [sys.executable, TRAIN, *SHORT, "--steps", str(steps), "--out", out]


if __name__ == "__main__":
    sys.exit(main())
