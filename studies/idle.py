"""How long do ranks wait for the slowest, and what do more prompts a rank do about it?

    torchrun … train.py, P prompts a rank ─▶ log.jsonl ─`measured`─▶ idle: the share of the ranks' time that is waiting
    one process, one prompt a step ─▶ log.jsonl ─`group_seconds`─▶ seconds of a group ─`simulated`─▶ efficiency of many ranks

python -m studies.idle [--steps 20] [--out runs/idle]      both tables, and the time of the gradients' sum
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

import train
from config import InputError
from report import mean_idle
from support import ranks

PROMPTS = (1, 2, 4, 8)  # a rank
RANKS = (8, 64, 512)  # simulated
STEPS = 2000  # simulated
NUMBERS = 5_767_168  # LoRA weights of Qwen2.5-VL-7B (docs/gpus.md)
REPEATS = 10
SHORT = ["--eval-prompts", "1", "--eval-group", "2"]


def group_seconds(run: Path) -> np.ndarray:
    """Seconds of each step (steps,) of a run of one process with one prompt a step; without the first, which warms up."""
    rows = [json.loads(line) for line in (run / "log.jsonl").open()]
    return np.array([sum(row["seconds"][part] for part in ("sample", "judge", "learn")) for row in rows[1:]])


def simulated(seconds: np.ndarray, world: int, prompts: int, draw: np.random.Generator, steps: int = STEPS) -> float:
    """The share of the ranks' time that is work, if each of their groups takes one of the seconds, at random and on its own.

    A step lasts as long as its slowest rank, whose time is the sum of its groups': E[mean over ranks] / E[max over ranks].
    """
    work = draw.choice(seconds, (steps, world, prompts)).sum(-1)  # (steps, world)
    return float(work.mean() / work.max(-1).mean())


def launch(processes: int, *command: str) -> None:
    """Runs a command in so many processes. Raises InputError with the end of what it said if it fails."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    job = subprocess.run([*torchrun, *command], capture_output=True, text=True)
    if job.returncode:
        raise InputError(f"{' '.join(command)}: ended with {job.returncode}: {job.stderr[-1000:]}")


def measured(out: Path, steps: int) -> tuple[dict[int, float], np.ndarray]:
    """idle of two ranks by prompts a rank, and the seconds of a group; runs that are there already go on or are kept."""
    idle = {}
    for world, prompts in [(1, 1), *((2, p) for p in PROMPTS)]:
        run = out / f"{world}x{prompts}"
        flags = ["--steps", str(steps * (4 if world == 1 else 1)), "--prompts-per-step", str(world * prompts)]
        if not (run / "results.json").is_file():
            launch(world, train.__file__, *SHORT, *flags, "--resume", "--out", str(run))
        if world > 1:
            idle[prompts] = mean_idle(run)
    return idle, group_seconds(out / "1x1")


def sum_seconds(n: int = NUMBERS) -> float:
    """Median seconds of `ranks.sum_in_order` of one term of n numbers a rank, on all ranks of this job."""
    ranks.start()
    term, taken = torch.ones(n), []
    for _ in range(REPEATS):
        ranks.meet()
        start = time.perf_counter()
        ranks.sum_in_order([term], ranks.world(), term)
        taken.append(time.perf_counter() - start)
    return float(np.median(taken))


def tables(idle: dict[int, float], seconds: np.ndarray, seed: int = 0) -> str:
    """What was measured and what was simulated, as one Markdown table by prompts a rank."""
    draw = np.random.default_rng(seed)
    spread = seconds.std() / seconds.mean()
    lines = [
        f"One group takes {seconds.mean():.2f} s, ± {spread:.0%} ({len(seconds)} groups).", "",
        "| prompts a rank | 2 ranks, measured: idle | "
        + " | ".join(f"{n} ranks, simulated: efficiency" for n in (2, *RANKS)) + " |",
        "|---" * (3 + len(RANKS)) + "|",
    ]  # fmt: skip
    for prompts, share in idle.items():
        cells = [f"{simulated(seconds, world, prompts, draw):.0%}" for world in (2, *RANKS)]
        lines.append(f"| {prompts} | {share:.0%} | {' | '.join(cells)} |")
    return "\n".join(lines)


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=20, help="steps of each run (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("runs/idle"), help="where the runs go (default: %(default)s)")
    parser.add_argument("--sum", type=Path, metavar="FILE", help="time the sum of gradients in this job, into a file")
    return parser


def act(args: argparse.Namespace) -> None:
    """Measures and prints. Raises InputError."""
    if args.sum:
        seconds = sum_seconds()
        if ranks.rank() == 0:
            args.sum.write_text(json.dumps(seconds))
        return
    idle, seconds = measured(args.out, args.steps)
    launch(2, "-m", "studies.idle", "--sum", str(args.out / "sum.json"))
    print(tables(idle, seconds))
    took = json.loads((args.out / "sum.json").read_text())
    print(f"\nThe sum of {NUMBERS:,} numbers over 2 ranks (gloo, one machine): {took:.3f} s, measured.")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; 2 for wrong input."""
    args = make_parser().parse_args(argv)
    return ranks.command("studies.idle", lambda: act(args))


if __name__ == "__main__":
    sys.exit(main())
