"""What the diagnostics share: a policy's answers to a set of questions, seen one group at a time, and chance.

    Study     a policy, its configuration, the questions, and how answers come
    inspect   every question answered and looked at → one dict of values a question
    chance    the same statistic with every region of the audit, in turn, in the evidence's role (`relabelled`)

Questions are the unit: values are averaged over a question's answers first, and intervals are drawn over questions.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

import data
from answers import parse_yesno
from config import Config, InputError, configure, load_config
from models import Policy
from report import choose
from rollout import Group, audit_answers, given_group, sample_group, seeded
from support import stats
from support.questions import load_samples
from train import load_policy

TOY_SPLITS = {"reward": ("consistent", "conflict"), "confidence": ("conflict",)}  # the other diagnostics: consistent
Rows = list[dict]  # of a table: column → a word, a number, or an estimate {value, low, high}


@dataclass(frozen=True)
class Study:
    """What a diagnostic is given."""

    what: str
    policy: Policy
    config: Config
    samples: list[data.Sample]
    chain: str | None = None  # before the right answer, if it is given; None: the policy samples its own answers


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
    """s (E, audited) of the final answers that can be audited, to any regions (E, N)."""
    s, spans, audited = audit_answers(policy, group, masks, config)
    return (s * spans).sum(-1)[:, audited]


def relabelled(s: Tensor, statistic: Callable[[Tensor], Tensor]) -> tuple[float, float]:
    """A statistic of s (1 + K, G), averaged over the answers; and chance: its mean over all regions in the evidence's role.

    If the evidence is one region among others, every region may play its role, so the two have the same expectation, however
    skewed s is. statistic takes s (1 + K, …) and must not depend on the order of the rows after the first.
    """
    s = s.double()
    roles = torch.stack([statistic(s.roll(-region, 0)) for region in range(len(s))]).flatten(1).mean(1)  # (1 + K,)
    return float(roles[0]), float(roles[0] + (roles - roles[0]).mean())  # exactly equal if all roles are


def beats(a: Tensor, b: Tensor) -> Tensor:
    """1 where a > b, ½ where they tie, else 0."""
    return (a > b).double() + 0.5 * (a == b)


def beats_mean(s: Tensor) -> Tensor:
    """s(Ω_ev) > μ(s_non), (1 + K, G) → (G,): A.4."""
    return beats(s[0], s[1:].mean(0))


def beats_each(s: Tensor) -> Tensor:
    """P(s(Ω_ev) > s(Ω_k)), (1 + K, G) → (G,): the AUC of evidence against other regions. Its chance level is exactly ½."""
    return beats(s[0], s[1:]).mean(0)


# ── the verdict ─────────────────────────────────────────────────────────────────────────────────────────────────────
def against_chance(name: str, part: Sequence[dict], seed: int) -> dict:
    """The cells of a statistic, of its chance level, and of their difference. `verdicts` turns the draws into a verdict."""
    observed, chance = column(part, name), column(part, f"chance {name}")
    draws = stats.paired_bootstrap(chance, observed, seed) if part else np.array([np.nan])
    means = {key: float(values.mean()) if part else np.nan for key, values in ((name, observed), ("by chance", chance))}
    return means | {"difference": stats.estimate(means[name] - means["by chance"], draws), "draws": draws}


def verdicts(rows: Rows) -> Rows:
    """The rows of one table with their bootstrap draws of a difference replaced by what these say about chance."""
    for row in rows:
        said = stats.verdict(row.pop("draws"), row["N"], len(rows))
        row.setdefault("verdict", said)
    return rows


# ── what is asked of whom ───────────────────────────────────────────────────────────────────────────────────────────
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


def asked(args: argparse.Namespace) -> data.Sample:
    """One's own question, with a box or without. Raises InputError for a flag that is missing, an image that does not open,
    or a bad box."""
    if missing := [f"--{name}" for name in ("image", "question", "answer") if not getattr(args, name)]:
        raise InputError(f"{args.what}: expected --image, --question and --answer; missing {', '.join(missing)}")
    size = data.open_image(args.image, f"--image {args.image}").size
    boxes = tuple(parse_box(text, size) for text in args.box or ())
    family = "presence" if parse_yesno(args.answer) else "attribute"
    data.check_gold(args.answer, data.kind_of(family))
    return data.Sample("audit", args.image.stem, args.image, size, args.question, args.answer, family, boxes)


def parse_box(text: str, size: tuple[int, int]) -> tuple[float, float, float, float]:
    """`x,y,w,h` as a box inside an image of size (width, height). Raises InputError."""
    try:
        x, y, w, h = map(float, text.split(","))
    except ValueError as error:
        raise InputError(f"--box: expected x,y,width,height in pixels; found {text!r}") from error
    if not (x >= 0 and y >= 0 and w > 0 and h > 0 and x + w <= size[0] and y + h <= size[1]):
        raise InputError(f"--box: expected a box inside the image of {size[0]}x{size[1]}; found {text}")
    return x, y, w, h


def prepare(args: argparse.Namespace, given: dict, scratch: Path) -> Study:
    """The study that a command line asks for; given are its Config flags. Raises InputError. The toy is drawn into scratch."""
    config = configuration(args.run, given)
    one = [asked(args)] if args.what == "audit" or args.what == "attribution" and args.image else []
    if one and not args.box:
        if config.evidence == "random":
            raise InputError("--evidence random: as many tokens as a box owns; expected a --box")
        config = replace(config, evidence="attributed") if config.evidence == "boxes" else config
    policy = policy_of(args.run, config)
    if one:
        if args.box and not data.region_size(torch.tensor(one[0].boxes), one[0].size, policy.grid):
            raise InputError("--box: covers every visual token; expected a region that leaves something to compare it with")
        return Study(args.what, policy, config, one, args.chain)
    train, held_out = load_samples(config, policy, scratch, quiet=True)
    samples = questions(args.what, {"train": train, **held_out}, args, config)
    return Study(args.what, policy, config, samples, args.chain if args.answers == "given" else None)


def policy_of(run: Path | None, config: Config) -> Policy:
    """The frozen backbone, with the run's adapter if there is a run."""
    policy = load_policy(config)
    if run:
        policy.load_adapter(run / "adapter")
    return policy
