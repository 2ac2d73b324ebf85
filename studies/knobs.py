"""What the knobs do: the embedded run with one number changed at a time.

python -m studies.knobs [--seeds 0 1 2] [--quick] [--only tau_g lr] [--out DIR]

Runs are processes of train.py in OUT/SETTING-SEED, resumable as those of the comparison are (`evaluate.py --table3`). Columns:
accuracy on conflict, a mean of the families that earn the evidence reward, with its 95 % Wilson interval over questions and
seeds; then means over the steps: the share of groups whose advantages are all zero, the size of an advantage |A|, the distinct
texts of a group; over the last ten steps: tokens of a response, KL to the reference; and what judging costs against sampling.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from config import Config, configure, flag
from reading import make_folder
from studies.comparison import EDGE_STEPS, command, ended, run_all, scores_of
from support import ranks
from support.checkpoint import read_results
from support.stats import wilson

KNOBS: dict[str, Sequence[dict[str, Any]]] = {  # the fields that a run has otherwise than the recipe
    "recipe": [{}],
    "tau_g": [{"tau_g": 0.05}, {"tau_g": 0.5}],
    "k": [{"k": 1}, {"k": 8}],
    "group_size": [{"group_size": 2}, {"group_size": 4}],
    "lr": [{"lr": 3e-4}, {"lr": 3e-3}],
    "beta": [{"beta": 0.0}, {"beta": 0.1}],
    "eps_tie": [{"eps_tie": 0.0}, {"eps_tie": 0.5}],
    "lam": [{"method": "additive", "lam": 0.1}, {"method": "additive", "lam": 0.5}],
    "r_wrong": [{"r_wrong": -0.25}, {"method": "correct-only", "r_wrong": -0.25}, {"r_wrong": 0.5}],
    "intervention": [{"intervention": "zero"}, {"intervention": "noise"}],
    "lora_layers": [{"lora_layers": 1}, {"lora_layers": 2}],
}
COLUMNS = {  # of the table: what is read from log.jsonl, and over which steps
    "zero A": ("zero_variance", 0),
    "mean abs A": ("advantage", 0),
    "texts": ("distinct", 0),
    "length": ("response_length", -EDGE_STEPS),
    "KL": ("kl", -EDGE_STEPS),
}


def name_of(setting: dict[str, Any]) -> str:
    """`tau_g 0.05`; the recipe itself is `recipe`."""
    return ", ".join(value if name == "method" else f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
                     for name, value in setting.items()) or "recipe"  # fmt: skip


def runs_of(knobs: Sequence[str], seeds: Sequence[int], out: Path) -> dict[str, list[Config]]:
    """The runs of each setting, one a seed."""
    folder = {name_of(s): name_of(s).replace(", ", "-").replace(" ", "-") for knob in knobs for s in KNOBS[knob]}
    return {
        (name := name_of(setting)): [
            configure({**setting, "seed": seed, "out": str(out / f"{folder[name]}-{seed}")}) for seed in seeds
        ]
        for knob in knobs
        for setting in KNOBS[knob]
    }


def flags_of(setting: dict[str, Any]) -> list[str]:
    """A setting on train.py's command line; the method, the seed and the folder are `comparison.command`'s."""
    return [word for name, value in setting.items() if name != "method" for word in (flag(name), str(value))]


def row_of(name: str, configs: Sequence[Config]) -> dict[str, Any]:
    """A setting's row, over those of its runs that have ended."""
    logs, accuracy, n = [], [], 0
    for config in (c for c in configs if ended(c)):
        after = read_results(Path(config.out))["after"]["conflict"]
        accuracy.append(scores_of({"conflict": after})["conflict accuracy"])
        n += sum(scores["n"] for family, scores in after.items() if family not in ("all", "presence"))
        logs.append([json.loads(line) for line in Path(config.out, "log.jsonl").open()])
    mean = fmean(accuracy)
    row: dict[str, Any] = {"setting": name, "seeds": len(logs), "conflict": mean, "interval": wilson(mean, n)}
    row |= {title: fmean(row[key] for log in logs for row in log[first:]) for title, (key, first) in COLUMNS.items()}
    seconds = {part: sum(row["seconds"][part] for log in logs for row in log) for part in ("judge", "sample")}
    return row | {"judge / sample": seconds["judge"] / seconds["sample"]}


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as a Markdown table."""
    columns = list(COLUMNS)
    lines = [["setting", "seeds", "conflict", "95 %", *columns, "judge / sample"]]
    lines.append(["---"] * len(lines[0]))
    for row in rows:
        low, high = row["interval"]
        cells = [f"{row[name]:.1f}" if name in ("texts", "length") else f"{row[name]:.2f}" for name in columns]
        seen = [f"{row['conflict']:.2f}", f"{low:.2f}–{high:.2f}", *cells, f"{row['judge / sample']:.2f}"]
        lines.append([row["setting"], str(row["seeds"]), *seen])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def study(args: argparse.Namespace) -> int:
    """Trains what is not trained yet and prints the table; 1 if a run is missing from it. Raises InputError."""
    runs = runs_of(args.only, [0] if args.quick else args.seeds, args.out)
    settings = {name_of(s): s for knob in args.only for s in KNOBS[knob]}
    to_do = {Path(c.out).name: command(c, flags_of(settings[name])) for name, configs in runs.items() for c in configs
             if not ended(c)}  # fmt: skip
    make_folder(args.out, "--out")
    failed = run_all(to_do, args.workers, args.out, sum(map(len, runs.values())) - len(to_do))
    print(markdown([row_of(name, configs) for name, configs in runs.items() if any(map(ended, configs))]))
    for name, reason in failed.items():
        print(f"studies.knobs: {name} is missing: {reason}", file=sys.stderr)
    return int(not all(ended(c) for configs in runs.values() for c in configs))


def make_parser() -> argparse.ArgumentParser:
    """The command line: which knobs, seeds and folder."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m studies.knobs", description=__doc__, formatter_class=raw)
    parser.add_argument("--only", nargs="+", choices=KNOBS, default=list(KNOBS), metavar="KNOB", help=f"of {', '.join(KNOBS)}")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N", help="(default: 0 1 2)")
    parser.add_argument("--quick", action="store_true", help="seed 0 alone")
    parser.add_argument("--out", type=Path, default=Path("runs/knobs"), help="directory of the runs (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="runs at a time (default: %(default)s)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; 2 for wrong input, 1 if a run is missing."""
    args = make_parser().parse_args(argv)
    return ranks.command("studies.knobs", lambda: study(args))


if __name__ == "__main__":
    sys.exit(main())
