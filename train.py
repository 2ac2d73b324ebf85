"""Evidence-RL: train a vision-language model to answer from the evidence. `python train.py` needs no download and no GPU.

The loop, for every step:
    1 sample   G answers to each prompt of the step, one reading of the prompt for all of them
    2 judge    is the answer right (R_ans), and does it depend on the evidence (the audit's margin m)
    3 learn    reward → advantages within the group → clipped policy gradient on the LoRA weights
    4 report   one row of log.jsonl, the progress bar, a checkpoint now and then

`METHODS` is the paper's controlled comparison: a row states only what it changes. `Config` is the home of every number.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

import ced
import data
import grpo
import pictures
from answers import answer_text
from data import InputError
from models import BACKBONES, Policy
from rollout import Group, Judgement, judge, measure, sample_group, seeded


def arg(default, help: str, **extra):
    """A Config field: its default, and the help text of its command-line flag."""
    return field(default=default, metadata={"help": help, **extra})


@dataclass(frozen=True)
class Config:
    """Every number of a run, with the paper's defaults; every field is a flag of train.py."""

    backbone: str = arg("tiny", f"{', '.join(BACKBONES)}, or a local directory")
    method: str = arg("answer-ced", "the reward: a row of METHODS")
    data: str = arg("toy", "toy, or a COCO-format folder: instances.json and images")
    out: str = arg("", "run directory (default: runs/BACKBONE-METHOD-SEED)")
    seed: int = arg(0, "every random draw is a function of it")
    # 1 sample
    steps: int = arg(2000, "optimizer steps")
    prompts_per_step: int = arg(1, "prompts, i.e. groups, of one optimizer step")
    group_size: int = arg(32, "G: answers sampled to each prompt")
    temperature: float = arg(1.0, "of sampling; old, new and reference log-probabilities use the same")
    max_new_tokens: int = arg(128, "longest response, in tokens")
    max_prompt_tokens: int = arg(4096, "longest prompt, image tokens included; longer ones are refused, never cut")
    # 2 judge
    k: int = arg(3, "K: non-evidence regions of an audit")
    intervention: str = arg("mean", "what replaces a region's tokens (Eq. 1)", choices=ced.INTERVENTIONS)
    ring: int = arg(2, "how far, in tokens, the neighbours reach whose mean replaces a region (Eq. 1)")
    max_iou: float = arg(0.05, "largest overlap of a non-evidence box with the evidence")
    placement_tries: int = arg(100, "random places tried for the K boxes before random tokens stand in")
    eps_margin: float = arg(0.1, "epsilon of Eq. 3, in nats")
    tau_g: float = arg(0.2, "gate temperature of Eq. 5")
    eps_tie: float = arg(0.1, "tie-breaker of Eq. 4")
    lam: float = arg(0.1, "lambda: weight of the margin in --method additive")
    r_correct: float = arg(1.0, "R_ans of a right answer")
    r_wrong: float = arg(0.0, "R_ans of a wrong answer")
    # 3 learn
    lr: float = arg(1e-5, "AdamW learning rate")
    weight_decay: float = arg(0.01, "AdamW weight decay")
    grad_clip: float = arg(1.0, "largest gradient norm")
    eps_adv: float = arg(1e-4, "epsilon of the group advantage")
    beta: float = arg(0.01, "weight of the KL term")
    clip_low: float = arg(0.2, "ratio is clipped below 1 - clip_low")
    clip_high: float = arg(0.2, "ratio is clipped above 1 + clip_high")
    average: str = arg("response", "mean of each response's mean, or of all tokens", choices=grpo.AVERAGES)
    updates_per_step: int = arg(1, "optimizer updates on each batch of answers")
    lora_layers: int = arg(4, "LoRA goes on the last so many decoder layers")
    lora_rank: int = arg(16, "LoRA rank r")
    lora_alpha: int = arg(32, "LoRA scale alpha")
    # data and reports
    min_area: float = arg(0.005, "smallest share of the image an evidence region may cover")
    max_area: float = arg(0.6, "largest share of the image an evidence region may cover")
    min_tokens: int = arg(2, "fewest visual tokens an evidence region may own")
    eval_prompts: int = arg(40, "questions of each family and split in the evaluations before and after")
    eval_group: int = arg(8, "answers sampled to each of them")
    save_every: int = arg(50, "steps between checkpoints")

    def check(self) -> "Config":
        """This configuration if it can run. Raises InputError with the flag, what was expected and what was found."""
        at_least = {"steps": 1, "prompts_per_step": 1, "group_size": 2, "k": 1, "max_new_tokens": 1, "ring": 1,
                    "updates_per_step": 1, "lora_layers": 1, "lora_rank": 1, "eval_prompts": 1, "eval_group": 1,
                    "save_every": 1, "placement_tries": 0, "eps_margin": 0, "lr": 0}  # fmt: skip
        for name, least in at_least.items():
            if getattr(self, name) < least:
                raise InputError(f"{flag(name)}: expected at least {least}; found {getattr(self, name)}")
        for name in ("temperature", "tau_g"):
            if getattr(self, name) <= 0:
                raise InputError(f"{flag(name)}: expected a number above 0; found {getattr(self, name)}")
        for name, allowed in {"method": METHODS, "intervention": ced.INTERVENTIONS, "average": grpo.AVERAGES}.items():
            if getattr(self, name) not in allowed:
                raise InputError(f"{flag(name)}: expected one of {', '.join(allowed)}; found {getattr(self, name)!r}")
        return self


# What the tiny backbone needs otherwise: a run of two minutes. Everything else is the paper's.
TINY_RECIPE = {"steps": 150, "prompts_per_step": 4, "group_size": 16, "lr": 1e-4, "max_new_tokens": 16}


# ── the methods: three hooks, each row states only what it changes ──────────────────────────────────────────────────
class Method(NamedTuple):
    """reward(judgement, config) → (G,). token_weights and extra_loss see (policy, group, judgement, log_probs, config)."""

    reward: Callable[[Judgement, Config], Tensor]
    token_weights: Callable[..., Tensor] | None = None
    extra_loss: Callable[..., Tensor] | None = None


METHODS = {
    "correctness": Method(lambda j, c: j.r_ans),
    "additive": Method(lambda j, c: ced.additive_reward(j.r_ans, j.m, c.lam)),
    "answer-ced": Method(lambda j, c: ced.evidence_reward(j.r_ans, j.m, c.tau_g, c.eps_tie)),
    "cot-ced": Method(lambda j, c: ced.evidence_reward(j.r_ans, j.m_cot, c.tau_g, c.eps_tie)),
}


def rewards_of(judgement: Judgement, sample: data.Sample, config: Config) -> Tensor:
    """R (G,): the method's reward, or correctness alone for presence samples (the router: two actions bound the variance).

    An answer that cannot be found has no margin; it gets the floor r_wrong − ε_tie, below which no wrong answer falls.
    """
    method = METHODS["correctness" if sample.family == "presence" else config.method]
    return torch.where(judgement.parsed, method.reward(judgement, config), config.r_wrong - config.eps_tie)


# ── one step ────────────────────────────────────────────────────────────────────────────────────────────────────────
def group_loss(policy: Policy, group: Group, judgement: Judgement, rewards: Tensor, config: Config, first: bool):
    """The loss of one group, (), and its statistics. The prompt is read once with gradient, once for the reference."""
    method, ids, mask = METHODS[config.method], group.responses.ids, group.responses.mask

    def log_probs() -> Tensor:
        return policy.log_probs(policy.read(group.prompt, group.vision), ids, config.temperature)[0]  # (G, T)

    with torch.no_grad(), policy.reference():
        reference = log_probs()
    current = log_probs()
    old = current.detach() if first else group.responses.log_probs  # on-policy, the ratio is exactly 1
    hooks = (policy, group, judgement, current, config)
    loss, stats = grpo.grpo_loss(
        current,
        old,
        reference,
        grpo.group_advantages(rewards, config.eps_adv).to(ids.device),
        mask,
        config.clip_low,
        config.clip_high,
        config.beta,
        config.average,
        method.token_weights(*hooks) if method.token_weights else None,
    )
    return (loss + method.extra_loss(*hooks) if method.extra_loss else loss), stats


def train_step(policy: Policy, samples: Sequence[data.Sample], optimizer, config: Config, step: int) -> dict:
    """One optimizer step on a batch of prompts; returns the step's row of the log."""
    clock = Clock()
    with clock("sample"):  # 1
        draws = [seeded(config.seed, "sample", step, s.id, device=policy.device) for s in samples]
        groups = [sample_group(policy, s, config, config.group_size, d) for s, d in zip(samples, draws)]
    with clock("judge"):  # 2
        judgements = [judge(policy, group, config) for group in groups]
        rewards = [rewards_of(j, g.sample, config) for j, g in zip(judgements, groups)]
    with clock("learn"):  # 3
        for update in range(config.updates_per_step):
            stats = []
            for group, judgement, reward in zip(groups, judgements, rewards):
                loss, stat = group_loss(policy, group, judgement, reward, config, first=update == 0)
                (loss / len(groups)).backward()
                stats.append(stat)
            parameters = optimizer.param_groups[0]["params"]
            grad_norm = torch.nn.utils.clip_grad_norm_(parameters, config.grad_clip)
            optimizer.step()
            optimizer.zero_grad()
    with clock("report"):  # 4
        row = report(groups, judgements, rewards)
        row |= {name: mean(s[name] for s in stats) for name in stats[0]} | {"grad_norm": float(grad_norm)}
    return {"step": step, **row, "seconds": clock.seconds}


class Clock:
    """Seconds spent in each named part of a step."""

    def __init__(self):
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str):
        start = time.perf_counter()
        yield
        self.seconds[name] = round(time.perf_counter() - start, 4)


def mean(values) -> float:
    """The mean of numbers; NaN of none."""
    values = [float(v) for v in values]
    return sum(values) / len(values) if values else float("nan")


def report(groups: Sequence[Group], judgements: Sequence[Judgement], rewards: Sequence[Tensor]) -> dict:
    """What a step's answers were worth: means over the groups, and the within-group statistics of Table 1 and A.8."""
    margins = defaultdict(list)
    for group, judgement in zip(groups, judgements):
        margins[group.sample.family] += judgement.m[judgement.audited].tolist()
    constant = [bool(r.max() == r.min()) for r in rewards]
    return {
        "reward": mean(r.mean() for r in rewards),
        "r_ans": mean(j.r_ans.mean() for j in judgements),
        "accuracy": mean(j.correct.float().mean() for j in judgements),
        "margin": {family: round(mean(m), 4) for family, m in margins.items()},
        "zero_variance": mean(constant),
        "non_constant": 1 - mean(constant),
        "same_answer_different_reward": mean(tells_apart(g.texts, r) for g, r in zip(groups, rewards)),
        "inversions": mean(inversions(j.correct, r) for j, r in zip(judgements, rewards)),
        "unparsed": mean((~j.parsed).float().mean() for j in judgements),
        "response_length": mean(g.responses.mask.sum(-1).float().mean() for g in groups),
        "look_share": mean(data.looks(text) for g in groups for text in g.texts),
    }


def tells_apart(texts: Sequence[str], rewards: Tensor) -> bool:
    """Whether a group holds two responses with the same final answer and different rewards."""
    seen = defaultdict(set)
    for text, reward in zip(texts, rewards.tolist()):
        seen[answer_text(text)].add(reward)
    return any(len(values) > 1 for answer, values in seen.items() if answer is not None)


def inversions(correct: Tensor, rewards: Tensor) -> float:
    """The share of (right, wrong) pairs of a group in which the wrong answer earns at least as much (Eq. 4's edge)."""
    right, wrong = rewards[correct], rewards[~correct]
    return float((right[:, None] <= wrong[None]).float().mean()) if len(right) and len(wrong) else 0.0


# ── a run ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def load_policy(config: Config) -> Policy:
    """The run's backbone: bfloat16 on a GPU if there is one, float32 on the CPU."""
    cuda = torch.cuda.is_available()
    return Policy.load(config.backbone, "cuda" if cuda else "cpu", torch.bfloat16 if cuda else torch.float32)


def load_samples(
    config: Config, policy: Policy, scratch: Path, quiet: bool = False
) -> tuple[list[data.Sample], dict[str, list[data.Sample]]]:
    """Training samples, and the held-out splits by name. The toy world is drawn into scratch. Prints every count."""
    filters = (policy.grid, config.min_area, config.max_area, config.min_tokens)
    if config.data == "toy":
        folders = data.draw_world(scratch, seed=0)
        splits = {name: data.load(folder, *filters) for name, folder in folders.items()}
        counts = splits["train"][1]
        splits = {name: samples for name, (samples, _) in splits.items()}
    else:
        samples, counts = data.load(Path(config.data), *filters)
        splits = data.by_split(samples)
    for sample in (s for samples in splits.values() for s in samples):
        rows, columns = policy.grid(sample.size)
        if (length := len(policy.prompt(sample.question, rows * columns))) > config.max_prompt_tokens:
            raise InputError(
                f"{sample.image}: its prompt has {length} tokens, {rows * columns} of them visual; --max-prompt-tokens "
                f"allows {config.max_prompt_tokens}, and an image is never cut"
            )
    if not quiet:
        print("data:", *(f"  {name}: {n}" for name, n in counts.items()), sep="\n")
        print("  samples:", ", ".join(f"{len(samples)} {name}" for name, samples in splits.items()))
    return splits.pop("train"), splits


def claim(out: Path, config: Config) -> None:
    """Makes the run's directory and writes config.json. Raises InputError if a run is there already."""
    path = out / "config.json"
    if path.is_file():
        there = json.loads(path.read_text())
        other = [f"{flag(n)} {there.get(n)!r}, not {v!r}" for n, v in asdict(config).items() if there.get(n) != v]
        what = f"a run of another configuration ({'; '.join(other)})" if other else "this run"
        raise InputError(f"--out {out}: holds {what}; continue it with --resume {out}, or choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(config), indent=1))


def load_config(run: Path) -> Config:
    """The configuration of a run directory. Raises InputError if there is none."""
    path = Path(run) / "config.json"
    try:
        return Config(**json.loads(path.read_text()))
    except (OSError, TypeError, json.JSONDecodeError) as error:
        raise InputError(f"{path}: expected the configuration of a run: {error}") from error


def save_state(out: Path, policy: Policy, optimizer, step: int, cursor: int) -> None:
    """Everything a run needs to go on, written beside and renamed: a reader never sees half a checkpoint."""
    weights = {name: p.detach() for name, p in policy.adapter.named_parameters() if p.requires_grad}
    state = {"step": step, "cursor": cursor, "adapter": weights, "optimizer": optimizer.state_dict()}
    partial = out / "state.pt.partial"
    torch.save(state, partial)
    os.replace(partial, out / "state.pt")


def load_state(out: Path, policy: Policy, optimizer) -> tuple[int, int]:
    """Restores adapter and optimizer; returns the next step and the sampler's cursor."""
    path = out / "state.pt"
    if not path.is_file():
        return 0, 0
    state = torch.load(path, map_location=policy.device, weights_only=True)
    policy.adapter.load_state_dict(state["adapter"], strict=False)
    optimizer.load_state_dict(state["optimizer"])
    return state["step"], state["cursor"]


def train(policy: Policy, samples: list[data.Sample], config: Config, out: Path) -> None:
    """The loop, from the last checkpoint in `out` (or from step 0) to config.steps."""
    parameters = [p for p in policy.adapter.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=config.lr, weight_decay=config.weight_decay)
    start, cursor = load_state(out, policy, optimizer)
    sampler = data.BalancedSampler(samples, config.seed, cursor)
    log = out / "log.jsonl"
    kept = log.read_text().splitlines(keepends=True)[:start] if start else []
    log.write_text("".join(kept))
    with tqdm(range(start, config.steps), initial=start, total=config.steps, desc=config.method) as bar, log.open("a") as lines:
        for step in bar:
            row = train_step(policy, sampler.draw(config.prompts_per_step), optimizer, config, step)
            lines.write(json.dumps(row) + "\n")
            lines.flush()
            bar.set_postfix({k: f"{row[k]:.2f}" for k in ("reward", "accuracy", "look_share")} | {"kl": f"{row['kl']:.3f}"})
            if (step + 1) % config.save_every == 0 or step + 1 == config.steps:
                save_state(out, policy, optimizer, step + 1, sampler.cursor)
    policy.adapter.save_pretrained(out / "adapter")


def run(config: Config, resume: bool) -> None:
    """A whole run: evaluate, train, evaluate, and the two pictures."""
    out, policy = Path(config.out), load_policy(config)
    torch.manual_seed(config.seed)  # LoRA's A is drawn from the global generator
    try:
        trainable = policy.add_lora(config.lora_layers, config.lora_rank, config.lora_alpha)
    except ValueError as error:
        raise InputError(f"--lora-layers: {error}") from error
    with tempfile.TemporaryDirectory() as scratch:
        samples, held_out = load_samples(config, policy, Path(scratch))
        if not resume:
            claim(out, config)
        print(f"{config.backbone}: {sum(p.numel() for p in trainable):,} trainable parameters; writing to {out}")
        with policy.reference():
            before = measure(policy, held_out, config, "before")
        train(policy, samples, config, out)
        after = measure(policy, held_out, config, "after")
        (out / "results.json").write_text(json.dumps({"before": before, "after": after}, indent=1))
        pictures.learning_curves([json.loads(line) for line in (out / "log.jsonl").open()], out / "learning_curves.png")
        with policy.reference():
            pictures.audit_sheet(audit_examples(policy, samples, config), out / "audit_sheet.png")
    print(markdown(before, after), f"\nwrote {out}/: log.jsonl, adapter/, learning_curves.png, audit_sheet.png")


def audit_examples(policy: Policy, samples: list[data.Sample], config: Config) -> list[pictures.Example]:
    """One group of each family, with the two answers of it to show: alike in what they say, furthest apart in reward."""
    examples = []
    for family in data.FAMILIES:
        for sample in [s for s in samples if s.family == family][:1]:
            draw = seeded(config.seed, "sheet", sample.id, device=policy.device)
            group = sample_group(policy, sample, config, config.group_size, draw)
            judgement = judge(policy, group, config)
            rewards = rewards_of(judgement, sample, config)
            examples.append(pictures.Example(group, judgement, ced.evidence_gate(judgement.m, config.tau_g), rewards))
    return examples


def markdown(before: dict, after: dict) -> str:
    """Accuracy before → after by split and family, as a Markdown table."""
    lines = ["| split | family | N | accuracy before | after | 95 % interval | look share | margin |", "|---" * 8 + "|"]
    for split, families in after.items():
        for family, a in families.items():
            b = before[split][family]
            low, high = a["interval"]
            lines.append(
                f"| {split} | {family} | {a['n']} | {b['accuracy']:.2f} | {a['accuracy']:.2f} | {low:.2f}–{high:.2f} "
                f"| {b['look_share']:.2f} → {a['look_share']:.2f} | {b['margin']:.2f} → {a['margin']:.2f} |"
            )
    return "\n".join(lines)


# ── the command line ────────────────────────────────────────────────────────────────────────────────────────────────
def flag(name: str) -> str:
    """`eps_margin` → `--eps-margin`."""
    return "--" + name.replace("_", "-")


def parse(argv: Sequence[str] | None) -> tuple[Config, bool]:
    """The configuration that the command line asks for, and whether it resumes a run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    for f in fields(Config):
        recipe = f"; tiny: {TINY_RECIPE[f.name]}" if f.name in TINY_RECIPE else ""
        text = f"{f.metadata['help']} (default: {f.default}{recipe})"
        parser.add_argument(flag(f.name), type=type(f.default), default=argparse.SUPPRESS, help=text)
    parser.add_argument("--resume", type=Path, metavar="RUN", help="continue the run in this directory")
    given = vars(parser.parse_args(argv))
    resume = given.pop("resume")
    if resume:
        return load_config(resume), True
    recipe = TINY_RECIPE if given.get("backbone", Config.backbone) == "tiny" else {}
    used = {name: value for name, value in recipe.items() if name not in given}
    config = Config(**{**used, **given})
    if not config.out:
        config = replace(config, out=f"runs/{Path(config.backbone).name}-{config.method}-{config.seed}")
    if used:
        print("the tiny backbone's recipe:", ", ".join(f"{flag(n)} {v}" for n, v in used.items()))
    return config.check(), False


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; 2 for wrong input, with a message that says what was expected and what was found."""
    try:
        run(*parse(argv))
    except InputError as error:
        print(f"train.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
