"""The audit where people already train: TRL's GRPOTrainer with the evidence reward beside `train.py` and TRL with correctness.

    python -m studies.trainers --seeds 0 1 2          # a table, a row a trainer, of the embedded backbone
    python -m studies.trainers --seeds 0 --steps 2    # does it run?

TRL is no part of requirements.txt; it is in requirements-dev.txt. All three see the same questions, G and steps, in orders of
their own. docs/trainers.md prints the recipe alone.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from PIL import Image

import data
from config import Config, configure, outside
from methods import rewards_of
from models import Policy
from reading import InputError
from report import measure
from rollout import Judgement, judge_given
from studies import trl
from studies.speed import hardware, line
from support import ranks
from support.questions import load_samples
from train import load_trainable, train

TRAINERS = {"TRL + evidence reward": "answer-ced", "train.py": "answer-ced", "TRL + correctness": "correctness"}


def judgements_of(
    policy: Policy, processor: trl.ImageProcessor, samples: Sequence[data.Sample], config: Config, prompts: Sequence[Any],
    completion_ids: Sequence[Sequence[int]], image: Sequence[Image.Image], row: Sequence[int], **_: Any,
) -> list[Judgement]:  # fmt: skip
    """What TRL passes to a reward, judged: one judgement for the answers to a prompt, which stand together."""
    judgements = []
    for i, members in groupby(range(len(row)), key=row.__getitem__):
        first, *others = members
        picture = image[first].convert("RGB")
        text = processor.apply_chat_template(prompts[first], add_generation_prompt=True, tokenize=False)
        prompt = processor(images=[picture], text=[text], return_tensors="pt")["input_ids"][0].to(policy.device)
        answers = [completion_ids[j] for j in (first, *others)]
        judgements.append(judge_given(policy, samples[i], answers, config, picture, prompt))
    return judgements


def rewarded(policy: Policy, samples: Sequence[data.Sample], config: Config, folder: Path) -> Any:
    """TRL's trainer with config's reward."""

    def reward(**given: Any) -> list[float]:
        judgements = judgements_of(policy, trainer.processing_class, samples, config, **given)
        return [float(r) for j in judgements for r in rewards_of(j, j.group.sample, config)]

    trainer = trl.make_trainer(policy, samples, config, reward, folder)
    return trainer


def trained(name: str, config: Config, scratch: Path) -> tuple[Policy, dict[str, list[data.Sample]], float]:
    """The policy that a trainer has trained, what is held out, and the seconds that training took."""
    torch.manual_seed(config.seed)
    policy = load_trainable(config) if name == "train.py" else Policy.load(config.backbone)
    world_folder = scratch / "world"
    samples, held_out = load_samples(config, policy, world_folder, quiet=True)
    (out := scratch / "run").mkdir()
    go: Callable[[], object] = partial(train, policy, samples, config, out)
    if name != "train.py":
        go = partial(trl.train_quietly, rewarded(policy, samples, config, out))
    start = time.perf_counter()
    go()
    policy.model.eval()
    return policy, held_out, time.perf_counter() - start


def scores_of(name: str, config: Config) -> tuple[float, float, float]:
    """Conflict accuracy before and after, and the seconds of training."""
    with tempfile.TemporaryDirectory() as scratch:
        policy, held_out, seconds = trained(name, config, Path(scratch))
        conflict = {"conflict": held_out["conflict"]}
        with policy.reference():
            before = measure(policy, conflict, config, "before")
        after = measure(policy, conflict, config, "after")
    return *(scores["conflict"]["all"]["accuracy"] for scores in (before, after)), seconds


def table(results: dict[str, list[tuple[float, float, float]]]) -> str:
    """A row a trainer, means over the seeds, in Markdown."""
    rows = [line("", ["conflict accuracy, before", "after", "after, by seed", "training, s"]), "|---" * 5 + "|"]
    for name, scores in results.items():
        before, after, seconds = map(fmean, zip(*scores))
        each = ", ".join(f"{score[1]:.2f}" for score in scores)
        rows.append(line(name, [f"{before:.2f}", f"**{after:.2f}**", each, f"{seconds:.0f}"]))
    return "\n".join(rows)


def measure_all(seeds: Sequence[int], given: dict[str, Any]) -> None:
    """Trains and prints. Where TRL is absent, its rows are skipped, which is said."""
    if expected := outside(given.get("steps", 1), least=1):
        raise InputError(f"--steps: expected {expected}; found {given['steps']}")
    if not trl.installed():
        print(f"skipped: TRL is not installed; it is no part of requirements.txt: pip install {trl.TRL}")
        return
    torch.set_num_threads(1)
    results = {}
    for name, method in TRAINERS.items():
        configs = [replace(configure(given), seed=seed, method=method) for seed in seeds]
        results[name] = [scores_of(name, config) for config in configs]
    print(hardware(), f"seeds {', '.join(map(str, seeds))}; {configs[0].steps} steps", table(results), sep="\n\n")


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m studies.trainers", description=__doc__, formatter_class=raw)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the runs (default: 0 1 2)")
    for name in ("steps", "eval-prompts"):
        parser.add_argument(f"--{name}", type=int, default=argparse.SUPPRESS, help="as of train.py")
    parser.add_argument("--debug", action="store_true", help="show where an error of the input was met")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; 2 for wrong input."""
    args = vars(make_parser().parse_args(argv))
    seeds, debug = args.pop("seeds"), args.pop("debug")
    return ranks.command("studies.trainers", lambda: measure_all(seeds, args), debug)


if __name__ == "__main__":
    sys.exit(main())
