"""Is the evidence signal real? The paper's signal tables, on a frozen backbone or on a run's adapter.

python diagnose.py relevance --run runs/tiny-answer-ced-0
python diagnose.py proposal --backbone qwen2.5-vl-7b --data path/to/coco_folder --answers given
python diagnose.py audit --backbone tiny --image F --question Q --answer A --box x,y,w,h

    reward         what each formula pays, within a group and by chance      Table 1, A.8, A.9
    relevance      is s larger on the evidence, and is it so blindfolded?    4.1, A.4
    intervention   under mean, zero, noise, and at random tokens             4.3.3, A.5
    proposal       with wrong, shifted and rescaled boxes                    4.3.3, Fig. 5, A.7
    sensitivity    under other K, epsilon, tau and lambda; and of noise      A.6
    closure        bits that the reward holds about looking                  A.12
    confidence     does the margin know which answers are right?             on the conflict split
    audit          one question, region by region                            Fig. 3

Every table has N, the number of questions: answers to one question are alike, so 95 % intervals are bootstrapped over
questions. A diagnostic that finds evidence in noise is broken, so every statistic is held against chance, which is its mean
over all 1 + K regions of the same audit, each in turn in the evidence's role. `signal` means that the difference is above 0
with 97.5 % certainty for all rows of the table together: of many tables about noise, one in forty says it somewhere.
"""

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image, ImageStat
from torch import Tensor
from tqdm import tqdm

import answers
import ced
import data
import pictures
import ranks
import stats
from data import InputError
from models import Policy
from proposals import nulls_off_evidence, proposals
from rollout import Group, Judgement, audit_answers, choose, given_group, judge, regions_of, sample_group, seeded, span_mask
from train import Config, add_config_flags, configure, describe, load_config, load_policy, load_samples, unrouted_rewards

FORMULAS = ("correctness", "additive", "answer-ced")
CERTAINTY = 0.95
TOY_SPLITS = {"reward": ("consistent", "conflict"), "confidence": ("conflict",)}  # the other diagnostics: consistent
Rows = list[dict]


@dataclass(frozen=True)
class Study:
    """What a diagnostic is given."""

    what: str
    policy: Policy
    config: Config
    samples: list[data.Sample]
    chain: str | None = None  # before the right answer, if it is given; None: the policy samples its own answers


# ── what all diagnostics share ──────────────────────────────────────────────────────────────────────────────────────
def answer(study: Study, sample: data.Sample) -> Group:
    """G sampled answers of the policy; or the right one, given."""
    if study.chain is not None:
        text = f"{study.chain} <answer> {sample.answer} </answer>".strip()
        return given_group(study.policy, sample, [text], study.config)
    draw = seeded(study.config.seed, "diagnose", sample.id, device=study.policy.device)
    return sample_group(study.policy, sample, study.config, study.config.group_size, draw)


def inspect(study: Study, look: Callable[[Group], dict | None]) -> list[tuple[str, dict]]:
    """The family of every question, and what `look` sees of its answers; questions in which it sees nothing are left out.

    Raises InputError if it sees nothing at all.
    """
    seen = [(sample.family, look(answer(study, sample))) for sample in tqdm(study.samples, desc=study.what)]
    seen = [(family, values) for family, values in seen if values]
    if not seen:
        raise InputError(
            "no answer could be audited: the policy's own answers lack <answer> … </answer> (or a yes or no where one is due); "
            "--answers given audits the right answer instead"
        )
    return seen


def by_family(seen: Sequence[tuple[str, dict]]) -> list[tuple[str, list[dict]]]:
    """What was seen of each family's questions, and of all."""
    families = [(f, [values for family, values in seen if family == f]) for f in data.FAMILIES]
    families = [(f, part) for f, part in families if part]
    return families + ([("all", [values for _, values in seen])] if len(families) > 1 else [])


def column(part: Sequence[dict], name: str) -> np.ndarray:
    """One value of every question, (n,)."""
    return np.array([values[name] for values in part], dtype=float)


def answer_sensitivities(policy: Policy, group: Group, masks: Tensor, config: Config) -> Tensor:
    """s (R, audited) of the final answers that can be audited, to any regions (R, N)."""
    s, spans, audited = audit_answers(policy, group, masks, config)
    return (s * spans).sum(-1)[:, audited]


def relabelled(s: Tensor, statistic: Callable[[Tensor], Tensor]) -> tuple[float, float]:
    """A statistic of s (1 + K, G), averaged over the answers; and chance: its mean over all regions in the evidence's role.

    If the evidence is one region among others, every region may play its role, so the two have the same expectation, however
    skewed s is. statistic takes s (1 + K, …) and must not depend on the order of the rows after the first.
    """
    s = s.double()
    roles = torch.stack([statistic(s.roll(-region, 0)) for region in range(len(s))]).flatten(1).mean(1)  # (1 + K,)
    return float(roles[0]), float(roles.mean())


def beats(a: Tensor, b: Tensor) -> Tensor:
    """1 where a > b, ½ where they tie, else 0."""
    return (a > b).double() + 0.5 * (a == b)


def beats_mean(s: Tensor) -> Tensor:
    """s(Ω_ev) > μ(s_non), (1 + K, G) → (G,): A.4."""
    return beats(s[0], s[1:].mean(0))


def beats_each(s: Tensor) -> Tensor:
    """P(s(Ω_ev) > s(Ω_k)), (1 + K, G) → (G,): the AUC of evidence against other regions. Its chance level is exactly ½."""
    return beats(s[0], s[1:]).mean(0)


# ── numbers with their certainty ────────────────────────────────────────────────────────────────────────────────────
def estimate(value: float, draws: np.ndarray) -> dict:
    """A number and its 95 % interval, as a cell of a table."""
    low, high = stats.interval(draws, CERTAINTY)
    return {"value": float(value), "low": low, "high": high}


def mean_of(values: np.ndarray, seed: int) -> dict:
    """The mean of one value a question, (n,); questions without a value (NaN) are left out."""
    values = values[np.isfinite(values)]
    if not len(values):
        return {"value": math.nan, "low": math.nan, "high": math.nan}
    return estimate(values.mean(), stats.paired_bootstrap(np.zeros(len(values)), values, seed))


def share(values: np.ndarray) -> dict:
    """The share of questions of which something is true, (n,) of 0 and 1, and Wilson's interval."""
    low, high = stats.wilson(values.mean(), len(values))
    return {"value": float(values.mean()), "low": low, "high": high}


def against_chance(name: str, part: Sequence[dict], seed: int) -> dict:
    """The cells of a statistic, of its chance level, and of their difference. `verdicts` turns the draws into a verdict."""
    observed, chance = column(part, name), column(part, f"chance {name}")
    draws = stats.paired_bootstrap(chance, observed, seed)
    difference = estimate((observed - chance).mean(), draws)
    return {name: float(observed.mean()), "by chance": float(chance.mean()), "difference": difference, "draws": draws}


def verdicts(rows: Rows) -> Rows:
    """The rows of one table with their bootstrap draws of a difference replaced by what these say about chance."""
    for row in rows:
        row["verdict"] = verdict(row.pop("draws"), row["N"], len(rows))
    return rows


def verdict(draws: np.ndarray, n: int, rows: int) -> str:
    """`signal` if a difference of n questions is above 0 with the certainty of 97.5 % that all rows share (Bonferroni).

    n questions are all above 0 by luck once in 2^n times, so fewer than that certainty needs prove nothing.
    """
    doubt = (1 - CERTAINTY) / 2 / rows
    if n == 0 or 2.0**-n > doubt:
        return "too few questions"
    return "signal" if stats.interval(draws, 1 - 2 * doubt)[0] > 0 else "no signal"


# ── relevance: 4.1, A.4 ─────────────────────────────────────────────────────────────────────────────────────────────
def relevance(study: Study) -> tuple[Rows, Figure]:
    """Pr(s(Ω_ev) > μ(s_non)), and the blindfold: the same questions asked and audited on a blank image."""

    def look(group: Group) -> dict | None:
        masks, _ = regions_of(group.sample, group.vision.grid, study.config)
        s = answer_sensitivities(study.policy, group, masks, study.config)
        if not s.numel():
            return None
        rate, chance = relabelled(s, beats_mean)
        return {"Pr(s_ev > mean s_non)": rate, "chance Pr(s_ev > mean s_non)": chance,
                "s_ev": float(s[0].mean()), "s_non": float(s[1:].mean())}  # fmt: skip

    rows, seed = [], study.config.seed
    with tempfile.TemporaryDirectory() as scratch:
        blank = [blindfolded(sample, Path(scratch) / f"{i}.png") for i, sample in enumerate(study.samples)]
        seen = {"shown": inspect(study, look), "blank": inspect(replace(study, what="blindfold", samples=blank), look)}
    for image, found in seen.items():
        for family, part in by_family(found):
            cells = against_chance("Pr(s_ev > mean s_non)", part, seed)
            sides = {name: mean_of(column(part, name), seed) for name in ("s_ev", "s_non")}
            rows.append({"image": image, "family": family, "N": len(part), **cells, **sides})
    return verdicts(rows), pictures.estimates(rows)


def blindfolded(sample: data.Sample, path: Path) -> data.Sample:
    """The sample with a blank image: its mean color, at its size, with its boxes."""
    color = tuple(round(c) for c in ImageStat.Stat(data.open_image(sample.image)).mean)
    Image.new("RGB", sample.size, color).save(path)
    return replace(sample, image=path)


# ── intervention: 4.3.3, A.5 ────────────────────────────────────────────────────────────────────────────────────────
def intervention(study: Study) -> tuple[Rows, Figure]:
    """The AUC P(s(Ω_ev) > s(Ω_k)) under each intervention, and under `mean` at as many random tokens of the whole image."""
    name = "AUC P(s_ev > s_non)"

    def look(group: Group) -> dict | None:
        masks, _ = regions_of(group.sample, group.vision.grid, study.config)
        where = seeded(study.config.seed, "random tokens", group.sample.id)
        control = ced.random_tokens(torch.ones_like(masks[0]), int(masks[0].sum()), where)
        values = {}
        for kind in ced.INTERVENTIONS:
            regions = torch.cat([masks, control[None]]) if kind == "mean" else masks
            s = answer_sensitivities(study.policy, group, regions, replace(study.config, intervention=kind))
            if not s.numel():
                return None
            values[kind] = relabelled(s[: len(masks)], beats_each)
            if kind == "mean":
                values["mean, at random tokens"] = relabelled(torch.cat([s[-1:], s[1 : len(masks)]]), beats_each)
        return {kind: {name: rate, f"chance {name}": chance} for kind, (rate, chance) in values.items()}

    seen, rows = inspect(study, look), []
    for kind in (*ced.INTERVENTIONS, "mean, at random tokens"):
        for family, part in by_family(seen):
            cells = against_chance(name, [values[kind] for values in part], study.config.seed)
            rows.append({"intervention": kind, "family": family, "N": len(part), **cells})
    return verdicts(rows), pictures.estimates(rows)


DIAGNOSTICS = {"relevance": relevance, "intervention": intervention}


# ── reports ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def cell(value) -> str:
    """A value as a cell of a Markdown table: estimates as `0.97 [0.95, 0.99]`."""
    if isinstance(value, dict):
        return f"{cell(value['value'])} [{cell(value['low'])}, {cell(value['high'])}]"
    if isinstance(value, float):
        return "n/a" if math.isnan(value) else f"{value:.3f}"
    return str(value)


def markdown(rows: Rows) -> str:
    """The rows as Markdown; a new table begins where the columns change."""
    tables = []
    for names, part in groupby(rows, key=tuple):
        lines = [names, ["---"] * len(names), *([cell(value) for value in row.values()] for row in part)]
        tables.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join(tables)


def plain(value):
    """A value without NaN, which JSON does not know: null."""
    if isinstance(value, dict):
        return {name: plain(v) for name, v in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


def report(study: Study, out: Path, as_json: bool) -> None:
    """Runs the diagnostic, writes its picture and its numbers, and prints the numbers."""
    rows, figure = DIAGNOSTICS[study.what](study)
    result = {"diagnostic": study.what, "config": asdict(study.config), "answers": "given" if study.chain is not None else "sampled",
              "rows": [plain(row) for row in rows]}  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / f"{study.what}.png", dpi=110)
    pictures.plt.close(figure)
    (out / f"{study.what}.json").write_text(json.dumps(result, indent=1))
    print(json.dumps(result) if as_json else f"{markdown(rows)}\n\nwrote {out}/: {study.what}.json, {study.what}.png")


# ── the command line ────────────────────────────────────────────────────────────────────────────────────────────────
def make_parser() -> argparse.ArgumentParser:
    """The command line: what to diagnose, of which policy, and every field of Config."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=DIAGNOSTICS, metavar="WHAT", help=f"one of {', '.join(DIAGNOSTICS)}")
    parser.add_argument(
        "--run", type=Path, help="diagnose this run's adapter, under its configuration; else the frozen backbone"
    )
    parser.add_argument(
        "--split", help="of the data, or all (default: toy: held out; else val of a run's data, all of a backbone's)"
    )
    parser.add_argument("--prompts", type=int, dest="eval_prompts", default=argparse.SUPPRESS, help="same as --eval-prompts")
    parser.add_argument("--answers", choices=("sampled", "given"), default="sampled", help="the policy's own, or the right one")
    parser.add_argument("--chain", default="", help="what stands before a given answer")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    add_config_flags(parser)
    return parser


def configuration(run: Path | None, given: dict) -> Config:
    """The run's configuration, or that of a frozen backbone, with the flags given. Raises InputError."""
    if run is None:
        return configure(given)
    if "backbone" in given:
        raise InputError(f"--backbone: --run {run} has its own; expected one of the two")
    return replace(load_config(run), **given).check()


def questions(what: str, splits: dict[str, list[data.Sample]], args: argparse.Namespace, config: Config) -> list[data.Sample]:
    """config.eval_prompts questions of each family, of the split asked for or the one that suits the diagnostic.

    A frozen backbone was trained on none of a folder's images, so it may be asked about all of them; a run about `val`.
    """
    default = TOY_SPLITS.get(what, ("consistent",)) if config.data == "toy" else ("val",) if args.run else tuple(splits)
    names = {None: default, "all": tuple(splits)}.get(args.split, (args.split,))
    if unknown := set(names) - set(splits):
        raise InputError(f"--split: expected one of {', '.join(splits)}, all; found {unknown.pop()!r}")
    chosen = choose([sample for name in names for sample in splits[name]], config.eval_prompts, config.seed)
    if not chosen:
        raise InputError(f"--split: expected a split with samples; found none in {', '.join(names)} of --data {config.data}")
    return chosen


def act(args: argparse.Namespace, given: dict, scratch: Path) -> None:
    """What the command line asks for. Raises InputError."""
    config = configuration(args.run, given)
    name = Path(config.backbone).name
    out = Path(given["out"]) if "out" in given else args.run / "diagnose" if args.run else Path("runs") / f"{name}-diagnose"
    policy = load_policy(config)
    if args.run:
        policy.load_adapter(args.run / "adapter")
    train, held_out = load_samples(config, policy, scratch, quiet=True)
    samples = questions(args.what, {"train": train, **held_out}, args, config)
    chain = args.chain if args.answers == "given" else None
    report(Study(args.what, policy, config, samples, chain), out, args.json)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; 2 for wrong input."""
    args = make_parser().parse_args(argv)
    own = {"what", "run", "split", "answers", "chain", "json"}
    given = {name: value for name, value in vars(args).items() if name not in own}
    try:
        with tempfile.TemporaryDirectory() as scratch:
            act(args, given, Path(scratch))
    except InputError as error:
        print(f"diagnose.py: {error}", file=sys.stderr)
        return 2
    finally:
        ranks.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
