"""What a trained adapter is worth: accuracy by split and family, look share, mean margin, with N and 95 % intervals; and
the public benchmarks.

python evaluate.py --run runs/tiny-answer-ced-0 [--split conflict] [--prompts 200] [--json]
python evaluate.py --run runs/x --benchmarks mathvista mmmu [--source DIR] [--limit N] [--batch-size B]
python evaluate.py --backbone qwen2.5-vl-7b --benchmarks mathvista mmmu      the frozen base, in runs/qwen2.5-vl-7b-base
python evaluate.py --score replies.jsonl --benchmark mmmu [--source DIR]     anybody's replies: a line {"id", "response"} each,
                                                                             or a file of lmms-eval, VLMEvalKit or lm_eval
python evaluate.py --compare runs/*            the runs side by side, as Markdown tables; the first is the base of every gain
python evaluate.py --table3 [...]              trains every method on the embedded world, and compares them
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import harness
from benchmarks.prompts import LIKE, prompt_of
from benchmarks.replies import WRITERS, check_writable
from benchmarks.tasks import benchmark
from config import Config, InputError, flag, load_config
from related.documents import load_samples
from report import measure
from studies import comparison
from support import ranks
from support.checkpoint import read_results
from train import load_policy


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
    results = {run: read_results(run) for run in runs}
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


def ask_benchmarks(args: argparse.Namespace, asking: harness.Asking) -> None:
    """Asks the adapter of a run, or a frozen backbone, and prints each benchmark's scores as soon as they are there."""
    run, backbone, names = args.run, args.backbone, args.benchmarks
    for name in names:  # a wrong name is told before any model is loaded
        benchmark(name)
        prompt_of(name, asking.like)
        if args.replies_as:
            check_writable(args.replies_as, name)
    config = load_config(run) if run else Config(backbone=backbone)
    policy, out = load_policy(config), run or Path("runs") / f"{Path(backbone).name}-base"
    if run:
        policy.load_adapter(run / "adapter")
    asking, model = replace(asking, thinking=config.thinking), f"adapter of {config.backbone}" if run else backbone
    results = {}
    for name in names:
        results[name] = harness.evaluate(policy, name, out, asking, model)
        if ranks.rank() == 0 and args.replies_as:
            print(harness.write_file(args.replies_as, name, out, asking), file=sys.stderr)
        if ranks.rank() == 0 and not args.json:
            print(*([harness.HEADER] if len(results) == 1 else []), harness.table_rows(results[name]), sep="\n", flush=True)
    if ranks.rank() == 0 and args.json:
        print(json.dumps(results))


def compare_runs(runs: Sequence[Path]) -> str:
    """The runs side by side: on their own held-out splits where they ended, and on benchmarks where they were asked."""
    ended = [run for run in runs if (run / "results.json").is_file()]
    asked = [run for run in runs if harness.scores_of(run)]
    for run in runs:
        if run not in ended + asked:
            raise InputError(f"--compare: {run}/results.json is missing and {run} has no benchmark scores: the run has not "
                             f"ended, or {run} is not a run")  # fmt: skip
    return "\n\n".join(([compare(ended)] if ended else []) + ([harness.compare(asked)] if asked else []))


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--run", type=Path, help="the run directory to evaluate")
    what.add_argument("--backbone", help="a frozen backbone to evaluate on benchmarks: as in train.py")
    what.add_argument("--score", type=Path, metavar="FILE", help="replies to score (.jsonl, .json, .tsv, .parquet, .xlsx)")
    what.add_argument("--compare", type=Path, nargs="+", metavar="RUN", help="run directories to put side by side")
    what.add_argument("--table3", action="store_true", help="the controlled comparison; `--table3 --help` shows its own flags")
    parser.add_argument("--split", help="one held-out split only (toy: consistent, conflict; COCO: val, probe)")
    parser.add_argument("--prompts", type=int, help="questions of each family and split (default: the run's --eval-prompts)")
    parser.add_argument("--debug", action="store_true", help="show where an error of the input was met")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    asked, default = parser.add_argument_group("benchmarks"), harness.Asking()
    asked.add_argument("--benchmarks", nargs="+", metavar="NAME", help=f"of {', '.join(harness.BENCHMARKS)}")
    asked.add_argument("--benchmark", metavar="NAME", help="whose replies --score reads")
    asked.add_argument("--source", type=Path, metavar="DIR", help="local files instead of the hub: DIR/NAME/rows.json, ...")
    for name, text in {"limit": "so many questions, at random; 0 for all", "batch_size": "prompts read together on each rank",
                       "max_new_tokens": "longest reply"}.items():  # fmt: skip
        asked.add_argument(flag(name), type=int, default=getattr(default, name), help=f"{text} (default: %(default)s)")
    for name, text in {"min_pixels": "least pixels of an image, after resizing", "max_pixels": "most"}.items():
        asked.add_argument(flag(name), type=int, help=f"{text} (default: the checkpoint's, or that of --like)")
    asked.add_argument("--like", choices=LIKE, help="ask in the words of this harness, with images as large as it has them")
    asked.add_argument("--replies-as", choices=WRITERS, help="also write the replies as this harness writes them")
    asked.add_argument("--instruction", action="store_true", help="also ask for <think> and <answer>, as training does")
    return parser


def asking_of(args: argparse.Namespace) -> harness.Asking:
    """How benchmarks are asked. Raises InputError for numbers out of range, and for flags that need others."""
    for name, least in {"limit": 0, "batch_size": 1, "max_new_tokens": 1, "min_pixels": 1, "max_pixels": 1}.items():
        if getattr(args, name) is not None and getattr(args, name) < least:
            raise InputError(f"{flag(name)}: expected at least {least}; found {getattr(args, name)}")
    if args.score and not args.benchmark:
        raise InputError("--score: expected --benchmark NAME with it, the benchmark that was asked")
    if args.backbone and not args.benchmarks:
        raise InputError("--backbone: expected --benchmarks NAME ... with it; a run's own splits are evaluated with --run")
    return harness.Asking(instruction=args.instruction, max_new_tokens=args.max_new_tokens, batch_size=args.batch_size,
                          source=args.source, limit=args.limit, like=args.like, min_pixels=args.min_pixels,
                          max_pixels=args.max_pixels)  # fmt: skip


def act(args: argparse.Namespace) -> None:
    """What the command line asks for. Raises InputError."""
    asking = asking_of(args)
    if args.compare:
        print(compare_runs(args.compare))
    elif args.score:
        result = harness.score_file(args.score, args.benchmark, asking)
        print(json.dumps(result) if args.json else f"{harness.HEADER}\n{harness.table_rows(result)}")
    elif args.benchmarks:
        ask_benchmarks(args, asking)
    else:
        scores = evaluate(args.run, args.split, args.prompts)
        if ranks.rank() == 0:
            print(json.dumps(scores) if args.json else table(scores))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; 2 for wrong input."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if "--table3" in argv:
        return comparison.main([part for part in argv if part != "--table3"])
    args = make_parser().parse_args(argv)
    return ranks.command("evaluate.py", lambda: act(args), args.debug)


if __name__ == "__main__":
    sys.exit(main())
