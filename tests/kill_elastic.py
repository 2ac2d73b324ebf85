"""Kills a random process of a run of two, in each phase, until torchrun has restarted it often enough; compares what it leaves
with what a calm run leaves.

    python tests/kill_elastic.py [--kills 20] [--steps 16]

Not collected by pytest: it takes some minutes. Exits with 0 if the adapter has the same SHA-256, the log is whole, and no
temporary file is left.
"""

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mortal import PHASES

from toy import world

MORTAL = Path(__file__).resolve().parent / "mortal.py"
SHORT = ["--prompts-per-step", "2", "--group-size", "4", "--eval-prompts", "1", "--eval-group", "2", "--save-every", "2"]
ONCE = ("start", "evaluation before", "evaluation after", "results")  # phases that a start has at most once
FIRST = ("between renames", "results")  # phases of rank 0 alone


def main() -> int:
    """A calm run, a killed one, and whether they are alike."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--kills", type=int, default=20, help="how often a process is killed")
    parser.add_argument("--steps", type=int, default=16, help="steps of the run")
    args = parser.parse_args()
    plan = make_plan(args.kills, random.Random(0))
    with tempfile.TemporaryDirectory() as folder:
        world.WORLD_SPLITS = {"train": 60}
        data = world.draw_world(Path(folder, "world"), seed=0)["train"]
        fates, began = {"calm": [], "killed": plan}, time.monotonic()
        jobs = {name: start(Path(folder), data, name, args.steps, plan) for name, plan in fates.items()}
        for name, job in jobs.items():
            job.wait()
            ends = (Path(folder) / f"{name}.txt").read_text().splitlines()
            print(*ends, f"{name}: status {job.returncode} after {time.monotonic() - began:.0f} s", sep="\n", flush=True)
            if job.returncode or len(ends) < len(fates[name]):
                print((Path(folder) / f"{name}.out").read_text(errors="replace")[-5000:])
                return 1
        return report(Path(folder), args.steps)


def make_plan(kills: int, draw: random.Random) -> list[list]:
    """Which process dies in which phase, at which of its calls, for each start: every phase in turn, as a run goes on."""
    turns = [list(PHASES)[i * len(PHASES) // kills] for i in range(kills)]
    return [[phase, 0 if phase in FIRST else draw.randrange(2), 1 if phase in ONCE else draw.randint(2, 3), "kill"]
            for phase in turns]  # fmt: skip


def start(folder: Path, data: Path, name: str, steps: int, plan: list[list]) -> subprocess.Popen:
    """A run in two processes that are restarted as often as the plan has them die."""
    (folder / f"{name}-tmp").mkdir()
    (log := folder / f"{name}.txt").touch()
    env = {"OMP_NUM_THREADS": "1", "MORTAL": json.dumps(plan), "MORTAL_LOG": str(log), "TMPDIR": str(folder / f"{name}-tmp")}
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", str(2 * len(plan))]
    flags = [*SHORT, "--data", str(data), "--steps", str(steps), "--out", name]
    command = [sys.executable, *torchrun, str(MORTAL), *flags]
    out = (folder / f"{name}.out").open("w")
    return subprocess.Popen(command, cwd=folder, env=os.environ | env, stdout=out, stderr=out)


def report(folder: Path, steps: int) -> int:
    """Prints whether the killed run left what the calm one did; 0 if so."""
    found = {run: {path.name for path in (folder / run).iterdir()} for run in ("calm", "killed")}
    sums = [hashlib.sha256((folder / run / "adapter" / "adapter_model.safetensors").read_bytes()).hexdigest() for run in found]
    rows = [[json.loads(line) for line in (folder / run / "log.jsonl").open()] for run in found]
    results = [json.loads((folder / run / "results.json").read_text()) for run in found]
    left = [path for path in (folder / "killed-tmp").iterdir() if path.name.startswith("evidence-rl-")]
    alike = {
        f"SHA-256 of the adapter {sums[0][:16]}": sums[0] == sums[1],
        f"{steps} rows in the log, in order": all([row["step"] for row in log] == list(range(steps)) for log in rows),
        "rewards of every step": [row["reward"] for row in rows[0]] == [row["reward"] for row in rows[1]],
        "scores before and after": results[0] == results[1],
        "files of the run": found["calm"] == found["killed"],
        "no temporary file left": not left and not any(name.endswith(".partial") for name in found["killed"]),
    }
    print(*(f"{'same' if same else 'DIFFERENT'}: {what}" for what, same in alike.items()), sep="\n")
    return 0 if all(alike.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
