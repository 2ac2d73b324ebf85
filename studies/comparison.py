"""The controlled comparison (Table 3): every method on the same data, steps and seeds, in one command.

python evaluate.py --table3 [--seeds 0 1 2] [--methods correctness papo] [--json] [any flag of train.py, for all runs]

Runs are processes of train.py in OUT/METHOD-SEED, one thread each, as many at a time as there are cores. Those that have ended
are not repeated and interrupted ones go on, so the command may be stopped, and given again. A run that fails is reported,
and the others are finished.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

from tqdm import tqdm

import data
import train
from config import Config, InputError, configure, differences, flag, load_config
from methods import COMPARED, method_of
from reading import json_lines, make_folder, parse_json
from support import pictures, ranks
from support.checkpoint import Interruption, read_results

EDGE_STEPS = 10  # response length is that of the first and of the last so many steps
LAST_LINES = 3  # of what a failed run wrote to stderr
POLL = 0.05  # seconds between looks at the running processes

Scores = dict[str, float]  # by column, e.g. `conflict accuracy`


# ── the runs ────────────────────────────────────────────────────────────────────────────────────────────────────────
def configurations(methods: Sequence[str], seeds: Sequence[int], out: Path, flags: Sequence[str]) -> dict[str, Config]:
    """The runs by name, METHOD-SEED, with train.py's flags applied to all. Raises InputError for flags that cannot be."""
    given = vars(train.make_parser().parse_args(flags))
    for name in ("resume", "dry_run", "stop_after"):
        if given.pop(name):
            raise InputError(f"{flag(name)}: is for a single run of train.py")
    for name in ("method", "seed"):
        if name in given:
            raise InputError(f"{flag(name)}: expected {flag(name)}s in a comparison")
    runs = {
        f"{method}-{seed}": configure(given | {"method": method, "seed": seed, "out": str(out / f"{method}-{seed}")})
        for method in methods
        for seed in seeds
    }
    for config in runs.values():
        method_of(config)
    return runs


def ended(config: Config) -> bool:
    """Whether the run has ended. Raises InputError if its directory holds a run of another configuration."""
    run = Path(config.out)
    if (run / "config.json").is_file():
        if other := differences(load_config(run), config):
            raise InputError(f"--out {run}: holds a run of another configuration: {other}")
    return (run / "results.json").is_file()


def command(config: Config, flags: Sequence[str]) -> list[str]:
    """What starts a run, or continues it where it was interrupted."""
    if (Path(config.out) / "config.json").is_file():
        flags = ["--resume", config.out]
    else:
        flags = [*flags, "--method", config.method, "--seed", str(config.seed), "--out", config.out]
    return [sys.executable, train.__file__, *flags]


def run_all(commands: dict[str, list[str]], workers: int, out: Path, before: int) -> dict[str, str]:
    """Runs the commands, `workers` at a time; returns by name the last lines of stderr of those that failed.

    `before` runs had ended already. At Ctrl-C or SIGTERM the runs in progress are asked to save and end, and no other starts.
    """
    waiting, running, failed = list(commands), {}, {}
    bar = tqdm(total=before + len(commands), initial=before, desc="runs")
    with bar, Interruption() as interruption:
        while (running or waiting) and not interruption.wished:
            while waiting and len(running) < workers:
                name = waiting.pop(0)
                running[name] = start(commands[name], out / f"{name}.stderr")
                bar.set_postfix_str(", ".join(running))
            for name in [name for name, process in running.items() if process.poll() is not None]:
                if running.pop(name).returncode:
                    failed[name] = last_lines(out / f"{name}.stderr")
                else:
                    (out / f"{name}.stderr").unlink()
                bar.update()
            time.sleep(POLL)
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()
    return failed


def start(command: Sequence[str], stderr: Path) -> subprocess.Popen:
    """A process of one thread, out of reach of the terminal's Ctrl-C, which `run_all` passes on. Its stderr goes to a file: a
    pipe that nobody reads would fill, and halt it."""
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    with stderr.open("w") as file:
        return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=file, start_new_session=True)


def last_lines(path: Path) -> str:
    """The end of a file, without blank lines."""
    return "\n".join([line for line in path.read_text().splitlines() if line.strip()][-LAST_LINES:])


# ── what they scored ────────────────────────────────────────────────────────────────────────────────────────────────
def scores_of(splits: dict[str, dict[str, dict]]) -> Scores:
    """Accuracy, look share and margin on every split, means of the families that earn the evidence reward; and the
    accuracy on presence, which does not."""
    scores = {}
    for split, families in splits.items():
        evidence = [families[f] for f in data.FAMILIES if f in families and f != "presence"]
        for key in ("accuracy", "look_share", "margin") if evidence else ():
            scores[f"{split} {key}"] = fmean(family[key] for family in evidence)
        if "presence" in families:
            scores[f"{split} presence"] = families["presence"]["accuracy"]
    return scores


def run_scores(results: dict, log: Sequence[dict]) -> Scores:
    """An ended run's scores, its gains in accuracy over the frozen base, and how long its answers were (tokens)."""
    before, after = scores_of(results["before"]), scores_of(results["after"])
    gains = {name.replace("accuracy", "gain"): after[name] - before[name] for name in after if name.endswith(" accuracy")}
    lengths = [row["response_length"] for row in log]
    return after | gains | {"length first": fmean(lengths[:EDGE_STEPS]), "length last": fmean(lengths[-EDGE_STEPS:])}


def over_seeds(rows: Sequence[Scores]) -> dict[str, tuple[float, float | None]]:
    """Mean and sample standard deviation (None for one seed) of each column."""
    columns = {name: [row[name] for row in rows if name in row] for name in rows[0]}
    return {name: (fmean(values), stdev(values) if len(values) > 1 else None) for name, values in columns.items()}


def summarize(runs: dict[str, Config]) -> tuple[dict, dict[str, list[list[dict]]]]:
    """The comparison of the runs that have ended, as one JSON object, and their logs by method.

    The frozen base is measured by each run before it trains, on questions drawn by its seed: it counts once a seed.
    """
    rows, curves, n = {"frozen base": {}}, {}, {}
    for config in runs.values():
        run = Path(config.out)
        if not (run / "results.json").is_file():
            continue
        results = read_results(run)
        log = [parse_json(line, f"{run}/log.jsonl, line {number}") for number, line in json_lines(run / "log.jsonl")]
        rows["frozen base"][config.seed] = scores_of(results["before"])
        rows.setdefault(config.method, {})[config.seed] = run_scores(results, log)
        curves.setdefault(config.method, []).append(log)
        n = {split: {f: s["n"] for f, s in families.items() if f != "all"} for split, families in results["after"].items()}
    methods = {m: {"seeds": sorted(by_seed), **over_seeds(list(by_seed.values()))} for m, by_seed in rows.items() if by_seed}
    return {"methods": methods, "n": n}, curves


def table(summary: dict) -> str:
    """Table 3 of the embedded world, in Markdown."""
    splits = list(summary["n"])
    columns = {name: key for split in splits for name, key in ((split, f"{split} accuracy"), (f"Δ {split}", f"{split} gain"))}
    columns |= {f"presence, {split}": f"{split} presence" for split in splits}
    columns |= {"look share": f"{splits[-1]} look_share", "margin": f"{splits[-1]} margin"}
    columns |= {f"length, {edge} {EDGE_STEPS} steps": f"length {edge}" for edge in ("first", "last")}
    lines = [f"| method | seeds | {' | '.join(columns)} |", "|---" * (len(columns) + 2) + "|"]
    for method, scores in summary["methods"].items():
        cells = [cell(scores.get(key), f"{'+' * key.endswith(('gain', 'margin'))}.2f") for key in columns.values()]
        lines.append(f"| {method} | {' '.join(map(str, scores['seeds']))} | {' | '.join(cells)} |")
    asked = "; ".join(f"{split}: {', '.join(f'{family} {n}' for family, n in summary['n'][split].items())}" for split in splits)
    lines += [
        "",
        "Mean ± standard deviation over seeds. Accuracy, look share and margin are means over the families but presence; Δ is "
        f"the gain over the frozen base; look share and margin are those of the {splits[-1]} split; length is in tokens. "
        f"N questions a seed ({asked}).",
    ]
    return "\n".join(lines)


def cell(score: tuple[float, float | None] | None, form: str) -> str:
    """`0.92 ± 0.01`; one seed has no ±, and a missing score is a dash."""
    if score is None:
        return "–"
    mean, deviation = score
    return f"{mean:{form}}" + ("" if deviation is None else f" ± {deviation:.2f}")


# ── the command ─────────────────────────────────────────────────────────────────────────────────────────────────────
def make_parser() -> argparse.ArgumentParser:
    """The command line. Abbreviations are off: `--seed` is train.py's flag, and not `--seeds`."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("evaluate.py --table3", description=__doc__, formatter_class=raw, allow_abbrev=False)
    parser.add_argument("--methods", nargs="+", default=COMPARED, metavar="NAME", help=f"of {', '.join(COMPARED)}")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N", help="(default: 0 1 2)")
    parser.add_argument("--out", type=Path, default=Path("runs/table3"), help="directory of the runs (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="runs at a time (default: one a core)")
    parser.add_argument("--json", action="store_true", help="print one JSON object: scores as [mean, standard deviation]")
    parser.add_argument("--debug", action="store_true", help="show where an error of the input was met")
    return parser


def compare(args: argparse.Namespace, flags: Sequence[str]) -> int:
    """Trains what is not trained yet and prints the comparison; 1 if a run is missing from it. Raises InputError."""
    if args.workers < 1:
        raise InputError(f"--workers: expected at least 1; found {args.workers}")
    runs = configurations(args.methods, args.seeds, args.out, flags)
    to_do = {name: command(config, flags) for name, config in runs.items() if not ended(config)}
    make_folder(args.out, "--out")
    failed = run_all(to_do, args.workers, args.out, len(runs) - len(to_do))
    missing = {
        name: failed.get(name, "stopped; the same command continues it") for name, config in runs.items() if not ended(config)
    }
    summary, curves = summarize(runs)
    if curves:
        pictures.comparison(curves, args.out / "table3.png")
    if args.json:
        print(json.dumps(summary | {"missing": missing}))
    elif curves:
        print(table(summary), f"\nwrote {args.out}/table3.png")
    for name, reason in missing.items():
        print(f"evaluate.py: {name} is missing: {reason}", file=sys.stderr)
    return 1 if missing else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; 2 for wrong input, 1 if a run is missing."""
    args, flags = make_parser().parse_known_args(argv)
    return ranks.command("evaluate.py", lambda: compare(args, flags), args.debug)
