"""EVPV on the toy task of `toy.steps`: does it pay to ask of each step whether its premise is in the picture?

python -m studies.evpv [--seed S] [--questions N] [--full]      → runs/evpv: three roles, results.json, evpv.png

Trains policy, extractor and verifier (those that are in runs/evpv are not trained again), asks N fresh questions of each split,
16 solutions each, and prints what the gates of `related.evpv.HOW` make of them. `--full` adds verifiers of other habits and
extractors of other lengths of training. κ, the reward above which a step is called right, is tuned on validation questions for
every gate alike.

Beyond the paper: CED's margin of a look (Eq. 3 on its tokens, the column that the extractor's `side` fact names as evidence) as
a score of solutions and as a gate, g(m) (Eq. 5) in the place of α(r).
"""

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from reading import make_folder
from related.evpv import Triple, support
from studies.evpv_cases import (
    GROUP,
    Case,
    Judged,
    ask,
    cell,
    f1,
    gain,
    outcomes,
    picked,
    ranked,
    rewards_of,
    spoiled,
    tune,
    votes,
)
from studies.evpv_ced import ced_table
from studies.evpv_report import draw, markdown
from support import ranks, stats
from toy import roles, steps

SPLITS = {"consistent": "prior", "conflict": "conflict"}  # name → mode of `world.make_scene`
VALIDATION, VALIDATION_GROUP = 60, 8
RATES, DRAWS = (0.0, 0.25, 0.5, 0.75, 1.0), 3
PADS = (0, 4, 16)  # idle true claims
CURVE = (60, 100, 160, 240)  # updates of the extractor, besides roles.STEPS


# ── the tables ──────────────────────────────────────────────────────────────────────────────────────────────────────
def main_table(splits: dict[str, list[Case]], validation: list[Case], hows: Sequence[str]) -> tuple[dict, dict]:
    """Rows of the first table, and each gate's κ, by name and split."""
    rows: dict = {}
    for split, cases in splits.items():
        equal = [[0.0] * GROUP for _ in cases]
        for name, scores_of in {
            "one response (Pass@1)": lambda n, of, equal=equal: equal,
            "majority": lambda n, of, cases=cases: votes(cases, n),
            "some response (Pass@N)": lambda n, of, cases=cases: [[getattr(one, of) for one in c.responses] for c in cases],
        }.items():
            rows.setdefault(name, {})[split] = {
                f"{of} of {n}": cell(picked(cases, scores_of(n, of), n, of)) for n in (8, GROUP) for of in ("right", "sound")
            }
    kappas = {}
    for how in tqdm(hows, "gates"):
        kappa = kappas[how] = tune(validation, rewards_of(validation, how))
        for split, cases in splits.items():
            rewards = rewards_of(cases, how)
            scores = ranked(rewards)
            rows.setdefault(how, {"kappa": kappa})[split] = {
                "F1": cell(outcomes(cases, rewards, kappa), f1), "F1 of looks": cell(outcomes(cases, rewards, kappa, True), f1),
                "F1 at 0": cell(outcomes(cases, rewards, 0), f1),
                **{f"{of} of {n}": cell(picked(cases, scores, n, of)) for n in (8, 16) for of in ("right", "sound")},
            }  # fmt: skip
    return rows, kappas


def gains(splits: dict[str, list[Case]], kappas: dict[str, float]) -> dict:
    """Paired differences that the claims are about."""
    out: dict = {}
    for split, cases in splits.items():
        made = {how: rewards_of(cases, how) for how in ("base", "trajectory", "penalty")}
        counts = {how: outcomes(cases, r, kappas[how]) for how, r in made.items()}
        best = {(how, of): picked(cases, ranked(r), GROUP, of) for how, r in made.items() for of in ("right", "sound")}
        best["majority", "right"] = picked(cases, votes(cases, GROUP), GROUP, "right")
        true = rewards_of(cases, "trajectory", lambda case: case.question.facts)
        pairs = {"EVPV − base": ("base", "trajectory"), "penalty − EVPV": ("trajectory", "penalty")}
        out[split] = {f"{name}, Macro-F1": gain(counts[a], counts[b], f1) for name, (a, b) in pairs.items()}
        pairs["EVPV − majority"] = ("majority", "trajectory")
        out[split] |= {f"{name}, {of} of 16": gain(best[a, of], best[b, of])
                       for name, (a, b) in pairs.items() for of in ("right", "sound") if (a, of) in best}  # fmt: skip
        best["true facts", "right"] = picked(cases, ranked(true), GROUP, "right")
        out[split]["true facts − extracted, right of 16"] = gain(best["trajectory", "right"], best["true facts", "right"])
    return out


def worth(cases: Sequence[Case], how: str, kappa: float, **other: Callable) -> dict[str, np.ndarray]:
    """What other facts or claims leave of a gate: outcomes (n, 4), and the best of 16 (n,)."""
    rewards = rewards_of(cases, how, **other)
    return {"F1": outcomes(cases, rewards, kappa), "right of 16": picked(cases, ranked(rewards), GROUP, "right")}


def over(draws: Sequence[dict[str, np.ndarray]]) -> dict:
    """The cells of several draws of one corruption: their mean, question by question."""
    means = {key: np.mean([draw[key] for draw in draws], 0) for key in draws[0]}
    return {"F1": cell(means["F1"], f1), "right of 16": cell(means["right of 16"])}


def corruption(splits: dict[str, list[Case]], kappas: dict[str, float], hows: Sequence[str]) -> list[dict]:
    """Facts that are shuffled, dropped or perturbed at growing rates, κ left as it was."""
    rows = []
    for how, kind, (split, cases) in ((h, k, s) for h in hows for k in ("shuffle", "drop", "perturb") for s in splits.items()):
        for rate in tqdm(RATES, f"{kind}, {how}, {split}", leave=False):
            rng = random.Random(f"{kind} {rate}")
            spoil = partial(spoiled, kind=kind, rate=rate, rng=rng)
            draws = [worth(cases, how, kappas[how], facts=spoil) for _ in range(DRAWS if 0 < rate else 1)]
            rows.append({"how": how, "kind": kind, "split": split, "rate": rate, **over(draws)})
    return rows


def checklist(splits: dict[str, list[Case]], kappas: dict[str, float]) -> list[dict]:
    """Claims left out at random, false claims alone left out, and true claims that no step needs added."""
    rows = []
    for split, cases in splits.items():

        def add(what: str, how: str, claims: Callable, draws: int = 1, to: tuple[str, Sequence[Case]] = (split, cases)) -> None:
            made = [worth(to[1], how, kappas[how], claims=claims) for _ in range(draws)]
            rows.append({"what": what, "split": to[0], **over(made)})

        for rate in RATES:
            silent = partial(silenced, rate=rate, rng=random.Random(f"silent {rate}"))
            add(f"left out at rate {rate}", "trajectory", silent, DRAWS if rate else 1)
        add("the false ones left out", "trajectory", flattered)
        for n in PADS:
            for how in ("trajectory", "step"):
                add(f"{n} idle true ones added, {how} r", how, partial(padded, n=n))
    return rows


def silenced(case: Case, one: Judged, rate: float, rng: random.Random) -> list[list[Triple | None]]:
    """A checklist without some of its claims."""
    return [[claim for claim in own if rng.random() >= rate] for own in one.claims]


def flattered(case: Case, one: Judged) -> list[list[Triple | None]]:
    """A checklist without its false claims."""
    return [[claim for claim in own if support(claim, case.question.facts) > 0] for own in one.claims]


def padded(case: Case, one: Judged, n: int) -> list[list[Triple | None]]:
    """A checklist with n true claims more, which rest with the conclusion."""
    idle = (case.question.facts * n)[:n]
    return [*one.claims[:-1], [*one.claims[-1], *idle]] if one.claims else []


# ── the roles ───────────────────────────────────────────────────────────────────────────────────────────────────────
def share(hits: Sequence[bool]) -> float:
    """The mean of hits, NaN of none."""
    return float(np.mean(hits)) if len(hits) else math.nan


def quality(cases: Sequence[Case]) -> dict[str, float]:
    """What each role is worth on a split's questions."""
    ones = [one for case in cases for one in case.responses]
    read = [one for one in ones if one.labels]
    premise, logic = [min(one.labels[:2]) == 1 for one in read], [one.labels[2] == 1 for one in read]
    u = {which: ([one.u[i] for one in read for i in at if one.labels[i] == 1],
                 [one.u[i] for one in read for i in at if one.labels[i] == -1])
         for which, at in {"looks": (0, 1), "logic": (2,)}.items()}  # fmt: skip
    facts = {predicate: share([support((predicate, name, case.question.truth[name][predicate]), case.facts or [], 0.0) == 1
                               for case in cases for name in case.question.names]) for predicate in steps.OPTIONS}  # fmt: skip
    return {
        "unreadable": share([not one.labels for one in ones]),
        "unreadable claims": share([None in own for one in read for own in one.claims]),
        "false premise, right logic": share([not p and q for p, q in zip(premise, logic)]),
        "true premises, wrong logic": share([p and not q for p, q in zip(premise, logic)]),
        "both wrong": share([not p and not q for p, q in zip(premise, logic)]),
        "sound": share([one.sound for one in read]), "right": share([one.right for one in read]),
        "right by luck": share([one.right and not one.sound for one in read]),
        "AUROC of looks": stats.auc(*u["looks"]), "AUROC of logic": stats.auc(*u["logic"]),
        "unreadable facts": share([case.facts is None for case in cases]), **facts,
    }  # fmt: skip


# ── all of it ───────────────────────────────────────────────────────────────────────────────────────────────────────
HOWS = ("base", "trajectory", "step", "positive", "released", "penalty", "penalty-step", "direct")
BRIEF = ("base", "trajectory", "step", "penalty", "direct")


def examine(cast: dict[str, roles.Policy], seed: int, n: int, blind: bool = False) -> tuple[list, dict, dict]:
    """Validation cases, and each split's cases and images."""
    validation = [case for mode in SPLITS.values()
                  for case in ask(cast, mode, VALIDATION, VALIDATION_GROUP, f"validation {seed}", blind)[0]]  # fmt: skip
    asked = {split: ask(cast, mode, n, GROUP, f"test {seed}", blind) for split, mode in SPLITS.items()}
    return validation, {s: cases for s, (cases, _) in asked.items()}, {s: vision for s, (_, vision) in asked.items()}


def run(out: Path, seed: int, n: int, full: bool, deadline: float) -> dict:
    """Trains what is missing, measures all, and returns what goes into results.json."""
    began = time.process_time()
    troupe = roles.Troupe(out, seed, deadline)
    cast = troupe.cast()
    trained = time.process_time() - began
    validation, splits, visions = examine(cast, seed, n)
    table, kappas = main_table(splits, validation, HOWS)
    results = {
        "seed": seed, "questions": n, "roles": {split: quality(cases) for split, cases in splits.items()},
        "table": table, "gains": gains(splits, kappas), "checklist": checklist(splits, kappas),
        "corruption": corruption(splits, kappas, ("trajectory", "step", "direct") if full else ("trajectory",)),
        "ced": ced_table(cast["policy"], splits, visions),
    }  # fmt: skip
    if full:
        results["others"] = others(troupe, cast, n)
    return results | {"seconds": {"training": trained, "all": time.process_time() - began}}


def others(troupe: roles.Troupe, cast: dict[str, roles.Policy], n: int) -> list[dict]:
    """The same table, in short, with other verifiers, and with extractors that were trained for less or longer."""
    names = [name for name in roles.VERIFIERS if name != "verifier"]
    variants = {name: (cast | {"verifier": troupe.verifier(name)}, name == "blind") for name in names}
    variants |= {f"extractor, {k} updates": (cast | {"extractor": troupe.taught("extractor", k)}, False) for k in CURVE}
    rows = []
    for name, (variant, blind) in variants.items():
        validation, splits, _ = examine(variant, troupe.seed, n, blind)
        table, _ = main_table(splits, validation, BRIEF)
        rows.append({"what": name, "roles": {s: quality(cases) for s, cases in splits.items()}, "table": table})
    return rows


def act(args: argparse.Namespace) -> None:
    """Runs the study and writes it down."""
    out = args.out
    make_folder(out, "--out")
    torch.manual_seed(args.seed)
    results = run(out, args.seed, args.questions, args.full, args.deadline)
    name = "results.json" if args.seed == 0 else f"results-{args.seed}.json"
    (out / name).write_text(json.dumps(results, indent=1))
    draw(results, (out / name).with_suffix(".png"))
    print(markdown(results))


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/evpv"), help="where roles and results go (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the three roles and all questions")
    parser.add_argument("--questions", type=int, default=100, help="of each split (default: %(default)s)")
    parser.add_argument("--full", action="store_true", help="other verifiers and extractors, more gates under corruption")
    parser.add_argument("--deadline", type=float, default=math.inf, help="seconds of training a role, at most")
    parser.add_argument("--debug", action="store_true", help="show where an error of the input was met")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; 2 for wrong input."""
    args = make_parser().parse_args(argv)
    return ranks.command("studies.evpv", partial(act, args), args.debug)


if __name__ == "__main__":
    sys.exit(main())
