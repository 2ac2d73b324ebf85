"""Evidence without boxes: what a policy learns when the audited region is found, drawn or guessed, and not annotated.

python -m studies.evidence [--seeds 0 1 2] [--no-sweeps] [--json] [any flag of train.py, for all runs]

Trains Answer-CED on the embedded world with every kind of `--evidence`, and at the first seed with other shares of the
attributions (mass) and other numbers of steps. All runs are then measured alike, with the annotated boxes: accuracy and look
share on held-out questions, and how well the region that was audited overlaps the annotated one on training questions. What
has ended is not repeated, so the command may be stopped, and given again (see `studies.comparison`).
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

import torch

import ced
import data
from config import EVIDENCE, Config, InputError, flag
from models import Policy
from reading import json_lines, make_folder, parse_json, read_json
from report import choose, measure
from rollout import regions_of, sample_group, seeded
from studies import comparison
from support import ranks
from support.checkpoint import write_whole
from support.questions import load_samples
from train import load_policy

SWEEPS = {"evidence_mass": (0.5, 0.95), "evidence_steps": (1, 3, 12)}  # and the defaults, which are the runs of `attributed`
METHOD = "answer-ced"
OWN_EVALUATION = ["--eval-prompts", "1", "--eval-group", "1"]  # of a run: it would audit the run's own evidence
SCORES = "evidence.json"  # of each run, in its directory


# ── the runs ────────────────────────────────────────────────────────────────────────────────────────────────────────
def variants(seeds: Sequence[int], sweeps: bool) -> dict[str, tuple[list[str], Sequence[int]]]:
    """What is compared by name: its flags, and its seeds."""
    found = {kind: (["--evidence", kind], seeds) for kind in EVIDENCE}
    for name, values in SWEEPS.items() if sweeps else ():
        for value in values:
            label = f"attributed, {name.removeprefix('evidence_')} {value:g}"
            found[label] = (["--evidence", "attributed", flag(name), str(value)], seeds[:1])
    return found


def runs_of(seeds: Sequence[int], sweeps: bool, out: Path, flags: Sequence[str]) -> dict[str, tuple[Config, list[str]]]:
    """Configuration and command by VARIANT/METHOD-SEED. Raises InputError for flags that cannot be."""
    runs = {}
    for variant, (own, own_seeds) in variants(seeds, sweeps).items():
        given = [*flags, *OWN_EVALUATION, *own]
        for name, config in comparison.configurations([METHOD], own_seeds, out / variant, given).items():
            runs[f"{variant}/{name}"] = config, comparison.command(config, given)
    return runs


# ── what they scored ────────────────────────────────────────────────────────────────────────────────────────────────
def score(config: Config, prompts: int) -> dict[str, float]:
    """A run's scores, measured once: `prompts` questions of each family and split, with the annotated boxes, whatever the run
    was trained with. Seconds are those of a step, and of its audits."""
    run = Path(config.out)
    if (run / SCORES).is_file():
        return read_json(run / SCORES)
    policy, judge = load_policy(config), replace(config, evidence="boxes", eval_prompts=prompts, eval_group=Config.eval_group)
    policy.load_adapter(run / "adapter")
    with tempfile.TemporaryDirectory() as scratch:
        train, held_out = load_samples(judge, policy, Path(scratch), quiet=True)
        scores = comparison.scores_of(measure(policy, held_out, judge, config.out))
        found = overlaps(policy, choose(train, prompts // 2, config.seed), config)
    clocks = [parse_json(line, f"{run}/log.jsonl, line {n}")["seconds"] for n, line in json_lines(run / "log.jsonl")]
    seconds = {"step": [sum(clock.values()) for clock in clocks], "judge": [clock["judge"] for clock in clocks]}
    scores |= found | {f"seconds {name}": median(values) for name, values in seconds.items()}
    write_whole(run / SCORES, json.dumps(scores).encode())
    return scores


def overlaps(policy: Policy, samples: Sequence[data.Sample], config: Config) -> dict[str, float]:
    """How the audited regions meet the annotated ones, before training (after the frozen base's chains) and after it: means
    over the questions whose reward the audit decides."""
    asked = [sample for sample in samples if sample.family != "presence"]
    with policy.reference():
        before = [overlap(policy, sample, config) for sample in asked]
    rows = {"before": before, "after": [overlap(policy, sample, config) for sample in asked]}
    return {
        f"{name} {when}": fmean(values)
        for when, pairs in rows.items()
        for name, values in zip(("IoU", "precision"), zip(*pairs))
    }


def overlap(policy: Policy, sample: data.Sample, config: Config) -> tuple[float, float]:
    """IoU of the region that is audited with the annotated one, and its precision, in tokens."""
    draw = seeded(config.seed, "overlap", sample.id, device=policy.device)
    group = sample_group(policy, sample, config, config.group_size, draw)
    region = regions_of(policy, group, config)[0][0]
    truth = ced.region_tokens(torch.tensor(sample.boxes), sample.size, group.vision.grid)
    both = int((region & truth).sum())
    return both / int((region | truth).sum()), both / int(region.sum())


COLUMNS = {
    "IoU, frozen base": "IoU before",
    "precision": "precision before",
    "IoU after": "IoU after",
    "consistent": "consistent accuracy",
    "conflict": "conflict accuracy",
    "look share": "conflict look_share",
    "s of a step": "seconds step",
    "s of its audits": "seconds judge",
}


def table(rows: dict[str, dict[int, dict[str, float]]]) -> str:
    """The comparison in Markdown: a row a variant, mean ± standard deviation over seeds, conflict accuracy seed by seed."""
    lines = [f"| evidence | seeds | {' | '.join(COLUMNS)} | conflict by seed |", "|---" * (len(COLUMNS) + 3) + "|"]
    for variant, by_seed in rows.items():
        scores = comparison.over_seeds(list(by_seed.values()))
        cells = [comparison.cell(scores[key], ".2f") for key in COLUMNS.values()]
        each = " ".join(f"{s['conflict accuracy']:.2f}" for s in by_seed.values())
        lines.append(f"| {variant} | {' '.join(map(str, by_seed))} | {' | '.join(cells)} | {each} |")
    return "\n".join(lines)


# ── the command ─────────────────────────────────────────────────────────────────────────────────────────────────────
def make_parser() -> argparse.ArgumentParser:
    """The command line. Abbreviations are off: `--seed` is train.py's flag, and not `--seeds`."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m studies.evidence", description=__doc__, formatter_class=raw, allow_abbrev=False)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N", help="(default: 0 1 2)")
    parser.add_argument("--no-sweeps", dest="sweeps", action="store_false", help="without other masses and steps")
    parser.add_argument("--prompts", type=int, default=Config.eval_prompts, help="questions a family and split (default: 40)")
    parser.add_argument("--out", type=Path, default=Path("runs/evidence"), help="directory of the runs (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="runs at a time (default: one a core)")
    parser.add_argument("--json", action="store_true", help="print one JSON object: every run's scores")
    return parser


def compare(args: argparse.Namespace, flags: Sequence[str]) -> int:
    """Trains and measures what is not there yet and prints the comparison; 1 if a run is missing. Raises InputError."""
    for name, least in {"workers": 1, "prompts": 2}.items():
        if getattr(args, name) < least:
            raise InputError(f"{flag(name)}: expected at least {least}; found {getattr(args, name)}")
    runs = runs_of(args.seeds, args.sweeps, args.out, flags)
    to_do = {name: command for name, (config, command) in runs.items() if not comparison.ended(config)}
    for name in to_do:
        make_folder((args.out / name).parent, "--out")
    failed = comparison.run_all(to_do, args.workers, args.out, len(runs) - len(to_do))
    missing = [name for name, (config, _) in runs.items() if not comparison.ended(config)]
    rows: dict[str, dict[int, dict[str, float]]] = {}
    for name, (config, _) in runs.items():
        if name not in missing:
            rows.setdefault(name.split("/")[0], {})[config.seed] = score(config, args.prompts)
    if args.json:
        print(json.dumps({"runs": rows, "missing": missing}))
    else:
        print(table(rows))
    for name in missing:
        reason = failed.get(name, "stopped; the same command continues it")
        print(f"studies.evidence: {name} is missing: {reason}", file=sys.stderr)
    return 1 if missing else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; 2 for wrong input, 1 if a run is missing."""
    args, flags = make_parser().parse_known_args(argv)
    return ranks.command("studies.evidence", lambda: compare(args, flags))


if __name__ == "__main__":
    sys.exit(main())
