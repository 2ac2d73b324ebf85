"""What a trained adapter is worth: accuracy by split and family, look share, mean margin, with N and 95 % intervals.

python evaluate.py --run runs/tiny-answer-ced-0 [--split conflict] [--prompts 200] [--json]
python evaluate.py --compare runs/*            the runs' methods side by side, as a Markdown table
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from data import InputError
from rollout import measure
from train import load_config, load_policy, load_samples


def evaluate(run: Path, split: str | None, prompts: int | None) -> dict[str, dict[str, dict]]:
    """Scores of the run's adapter on its held-out splits, or on one of them. Raises InputError for an unknown split."""
    config = load_config(run)
    if prompts is not None:
        config = replace(config, eval_prompts=prompts).check()
    policy = load_policy(config)
    policy.load_adapter(run / "adapter")
    with tempfile.TemporaryDirectory() as scratch:
        _, splits = load_samples(config, policy, Path(scratch), quiet=True)
        if split and split not in splits:
            raise InputError(f"--split: expected one of {', '.join(splits)}; found {split!r}")
        chosen = {name: samples for name, samples in splits.items() if split in (None, name)}
        return measure(policy, chosen, config, str(run))


def table(scores: dict[str, dict[str, dict]]) -> str:
    """Scores by split and family, as a Markdown table."""
    lines = ["| split | family | N | accuracy | 95 % interval | look share | margin |", "|---|---|---|---|---|---|---|"]
    for split, families in scores.items():
        for family, s in families.items():
            lines.append(
                f"| {split} | {family} | {s['n']} | {s['accuracy']:.3f} | {s['interval'][0]:.3f}–{s['interval'][1]:.3f} "
                f"| {s['look_share']:.2f} | {s['margin']:+.2f} |"
            )
    return "\n".join(lines)


def compare(runs: Sequence[Path]) -> str:
    """The runs side by side: accuracy before and after on every split, as each run measured it at its end."""
    results = {}
    for run in runs:
        path = run / "results.json"
        if not path.is_file():
            raise InputError(f"--compare: {path} is missing: the run has not ended, or {run} is not a run")
        results[run] = json.loads(path.read_text())
    splits = list(dict.fromkeys(split for r in results.values() for split in r["after"]))
    lines = [
        f"| run | method | seed | {' | '.join(f'{s} before → after' for s in splits)} | look share | margin |",
        "|---" * (len(splits) + 5) + "|",
    ]
    for run, r in results.items():
        config = load_config(run)
        cells = [
            f"{r['before'][s]['all']['accuracy']:.2f} → {r['after'][s]['all']['accuracy']:.2f}" if s in r["after"] else "–"
            for s in splits
        ]
        last = list(r["after"].values())[-1]["all"]
        cells += [f"{last['look_share']:.2f}", f"{last['margin']:+.2f}"]
        lines.append(f"| {run} | {config.method} | {config.seed} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; 2 for wrong input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--run", type=Path, help="the run directory to evaluate")
    what.add_argument("--compare", type=Path, nargs="+", metavar="RUN", help="run directories to put side by side")
    parser.add_argument("--split", help="one held-out split only (toy: consistent, conflict; COCO: val, probe)")
    parser.add_argument("--prompts", type=int, help="questions of each family and split (default: the run's --eval-prompts)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    args = parser.parse_args(argv)
    try:
        if args.compare:
            print(compare(args.compare))
            return 0
        scores = evaluate(args.run, args.split, args.prompts)
    except InputError as error:
        print(f"evaluate.py: {error}", file=sys.stderr)
        return 2
    print(json.dumps(scores) if args.json else table(scores))
    return 0


if __name__ == "__main__":
    sys.exit(main())
