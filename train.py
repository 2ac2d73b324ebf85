"""Evidence-RL: train a vision-language model to answer from the evidence. `python train.py` needs no download and no GPU.

The loop, for every step:
    1 sample   G answers to each prompt of the step, one reading of the prompt for all of them
    2 judge    is the answer right (R_ans), and does it depend on the evidence (the audit's margin m)
    3 learn    reward → advantages within the group → clipped policy gradient on the LoRA weights
    4 report   one row of log.jsonl, the progress bar, a checkpoint now and then

`METHODS` is the paper's controlled comparison: a row states only what it changes. `Config` is the home of every number.
"""

import argparse
import io
import json
import math
import os
import pickle
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

import ced
import data
import grpo
import pictures
import ranks
from answers import answer_text
from data import InputError
from models import BACKBONES, Policy
from plan import plan
from related import papo, vppo
from rollout import Group, Judgement, judge, measure, sample_group, seeded


def arg(default, help: str, **extra):
    """A Config field: its default, and the help text of its command-line flag."""
    return field(default=default, metadata={"help": help, **extra})


@dataclass(frozen=True)
class Config:
    """Every number of a run, with the paper's defaults; every field is a flag of train.py."""

    backbone: str = arg("tiny", f"{', '.join(BACKBONES)}, or a local directory")
    method: str = arg("answer-ced", "correctness, additive, papo, vppo, answer-ced or cot-ced: a row of METHODS")
    data: str = arg("toy", "toy, or a COCO-format folder: instances.json and images")
    out: str = arg("", "run directory (default: runs/BACKBONE-METHOD-SEED)")
    seed: int = arg(0, "every random draw is a function of it")
    # 1 sample
    steps: int = arg(2000, "optimizer steps")
    prompts_per_step: int = arg(1, "prompts, i.e. groups, of one optimizer step")
    group_size: int = arg(32, "G: answers sampled to each prompt")
    temperature: float = arg(1.0, "of sampling; old, new and reference log-probabilities use the same")
    max_new_tokens: int = arg(128, "longest response, in tokens")
    thinking: bool = arg(True, "let a backbone that can (Qwen3.5) open its own <think> in the prompt")
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
    audit_rows: int = arg(0, "answers x image versions scored at a time in an audit, 0 for all: less memory, same result")
    update_rows: int = arg(0, "answers in one backward pass, 0 for all: less memory, same result")
    # 3 learn, as the other systems do (related/)
    mask_patch: int = arg(14, "side in pixels of the squares that PAPO and VPPO blacken")
    papo_mask: float = arg(0.6, "PAPO: probability of a square to be black")
    papo_gamma: float = arg(0.02, "PAPO: weight of the KL from the masked image, which is maximised")
    papo_eta: float = arg(0.05, "PAPO: weight of the two entropies, which are minimised")
    papo_bound: float = arg(10.0, "PAPO: largest k3 of a token, in nats")
    papo_detach: bool = arg(False, "PAPO: no gradient through the masked image, as in the released code")
    vppo_mask: float = arg(0.5, "VPPO: probability of a square to be black")
    vppo_ratio: float = arg(0.4, "VPPO: share of a response's tokens that are learnt from")
    vppo_beta_min: float = arg(0.9, "VPPO: smallest scale of a response's advantage")
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
                    "save_every": 1, "audit_rows": 0, "update_rows": 0, "placement_tries": 0, "lr": 0, "mask_patch": 1,
                    "papo_gamma": 0, "papo_eta": 0, "vppo_beta_min": 0, "papo_mask": 0, "vppo_mask": 0}  # fmt: skip
        for name, least in at_least.items():
            if getattr(self, name) < least:
                raise InputError(f"{flag(name)}: expected at least {least}; found {getattr(self, name)}")
        for name in ("vppo_beta_min", "papo_mask", "vppo_mask", "vppo_ratio"):
            if getattr(self, name) > 1:
                raise InputError(f"{flag(name)}: expected at most 1; found {getattr(self, name)}")
        for name in ("temperature", "tau_g", "eps_margin", "eps_adv", "grad_clip", "papo_bound", "vppo_ratio"):
            if getattr(self, name) <= 0:
                raise InputError(f"{flag(name)}: expected a number above 0; found {getattr(self, name)}")
        for name, allowed in {"method": METHODS, "intervention": ced.INTERVENTIONS, "average": grpo.AVERAGES}.items():
            if getattr(self, name) not in allowed:
                raise InputError(f"{flag(name)}: expected one of {', '.join(allowed)}; found {getattr(self, name)!r}")
        return self


MAX_BAD_STEPS = 5  # in a row, of a gradient that is not finite, before a run gives up
# What the tiny backbone needs otherwise: a run of two minutes. Everything else is the paper's.
TINY_RECIPE = {"steps": 150, "prompts_per_step": 4, "group_size": 16, "lr": 1e-4, "max_new_tokens": 16}


# ── the methods: three hooks, each row states only what it changes ──────────────────────────────────────────────────
class Method(NamedTuple):
    """A row: its reward, and what else it changes in the loss.

    reward(judgement, config) → (G,)
    token_weights(policy, group, judgement, config) → (G, T), without gradient
    extra_loss(policy, group, rows, log_probs, shares, config) → (), adding up over rows (`grpo.token_shares`)
    """

    reward: Callable[[Judgement, Config], Tensor]
    token_weights: Callable[..., Tensor] | None = None
    extra_loss: Callable[..., Tensor] | None = None


METHODS = {
    "correctness": Method(lambda j, c: j.r_ans),
    "additive": Method(lambda j, c: ced.additive_reward(j.r_ans, j.m, c.lam)),
    "papo": Method(lambda j, c: j.r_ans, extra_loss=papo.extra_loss),
    "vppo": Method(lambda j, c: j.r_ans, token_weights=vppo.token_weights),
    "answer-ced": Method(lambda j, c: ced.evidence_reward(j.r_ans, j.m, c.tau_g, c.eps_tie)),
    "cot-ced": Method(lambda j, c: ced.evidence_reward(j.r_ans, j.m_cot, c.tau_g, c.eps_tie)),
}


def rewards_of(judgement: Judgement, sample: data.Sample, config: Config) -> Tensor:
    """R (G,): the method's reward, or correctness alone for presence samples (the router: two actions bound the variance)."""
    return unrouted_rewards(judgement, "correctness" if sample.family == "presence" else config.method, config)


def unrouted_rewards(judgement: Judgement, method: str, config: Config) -> Tensor:
    """R (G,) by the method's formula, whatever the family.

    An answer that cannot be found has no margin; it gets the floor r_wrong − ε_tie, below which no wrong answer falls.
    """
    return torch.where(judgement.parsed, METHODS[method].reward(judgement, config), config.r_wrong - config.eps_tie)


# ── one step ────────────────────────────────────────────────────────────────────────────────────────────────────────
def learn(policy: Policy, group: Group, judgement: Judgement, rewards: Tensor, config: Config, update: int, n: int) -> dict:
    """Adds the gradient of 1/n of the group's loss to the adapter, `update_rows` answers at a time; returns its statistics.

    The prompt is read once with gradient and once for the reference, whatever the number of answers.
    """
    method, responses = METHODS[config.method], group.responses
    advantages = grpo.group_advantages(rewards, config.eps_adv).to(policy.device)
    shares = grpo.token_shares(responses.mask, config.average)  # (G, T)
    weights = method.token_weights(policy, group, judgement, config) if method.token_weights else torch.ones_like(shares)
    stats = Counter()
    for rows in torch.arange(len(rewards), device=policy.device).split(config.update_rows or len(rewards)):
        with torch.no_grad(), policy.reference():
            reference = log_probs_of(policy, group, rows, config)
        current = log_probs_of(policy, group, rows, config)
        old = responses.log_probs[rows] if update else current.detach()  # on-policy, the ratio is exactly 1
        loss, stat = grpo.grpo_loss(
            current,
            old,
            reference,
            advantages[rows],
            shares[rows],
            config.clip_low,
            config.clip_high,
            config.beta,
            weights[rows],
        )
        if method.extra_loss:
            loss = loss + method.extra_loss(policy, group, rows, current, shares[rows], config)
        (loss / n).backward()
        stats.update(stat)
    return dict(stats)


def log_probs_of(policy: Policy, group: Group, rows: Tensor, config: Config) -> Tensor:
    """log π (rows, T) of the group's answers at the sampling temperature; 0 after their ends."""
    ids, mask = group.responses.ids[rows], group.responses.mask[rows]
    return policy.log_probs(policy.read(group.prompt, group.vision), ids, config.temperature, mask)[0]


def train_step(policy: Policy, samples: Sequence[data.Sample], optimizer, config: Config, step: int) -> dict:
    """One optimizer step on a batch of prompts, split over the ranks; returns the step's row of the log."""
    clock, mine = Clock(), ranks.share(samples)
    with clock("sample"):  # 1
        draws = [seeded(config.seed, "sample", step, s.id, device=policy.device) for s in mine]
        groups = [sample_group(policy, s, config, config.group_size, d) for s, d in zip(mine, draws)]
    with clock("judge"):  # 2
        judgements = [judge(policy, group, config) for group in groups]
        rewards = [rewards_of(j, g.sample, config) for j, g in zip(judgements, groups)]
    with clock("learn"):  # 3
        for update in range(config.updates_per_step):
            stats = [learn(policy, g, j, r, config, update, len(samples)) for g, j, r in zip(groups, judgements, rewards)]
            grad_norm = descend(optimizer, config.grad_clip)
    with clock("report"):  # 4
        rows = ranks.gather([describe(g, j, r) | s for g, j, r, s in zip(groups, judgements, rewards, stats)])
    skipped = not math.isfinite(grad_norm)
    return {"step": step, **report(rows), "grad_norm": grad_norm, "skipped": skipped, "seconds": clock.seconds}


def descend(optimizer: torch.optim.Optimizer, grad_clip: float) -> float:
    """One clipped step on the ranks' summed gradients; returns their norm. A norm that is not finite skips the step, on
    every rank alike, since all of them see the same sum."""
    parameters = optimizer.param_groups[0]["params"]
    ranks.sum_gradients(parameters)
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, grad_clip))
    if math.isfinite(norm):
        optimizer.step()
    optimizer.zero_grad()
    return norm


class Clock:
    """Seconds spent in each named part of a step."""

    def __init__(self):
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str):
        start = time.perf_counter()
        yield
        self.seconds[name] = round(time.perf_counter() - start, 4)


def describe(group: Group, judgement: Judgement, rewards: Tensor) -> dict:
    """What one group's answers were worth, and the within-group statistics of Table 1 and A.8."""
    constant = bool(rewards.max() == rewards.min())
    return {
        "family": group.sample.family,
        "margin": fmean(judgement.m[judgement.audited].tolist()) if judgement.audited.any() else None,
        "reward": float(rewards.mean()),
        "r_ans": float(judgement.r_ans.mean()),
        "accuracy": float(judgement.correct.float().mean()),
        "zero_variance": float(constant),
        "non_constant": float(not constant),
        "same_answer_different_reward": float(tells_apart(group.texts, rewards)),
        "inversions": inversions(judgement.correct, rewards),
        "unparsed": float((~judgement.parsed).float().mean()),
        "response_length": float(group.responses.mask.sum(-1).float().mean()),
        "look_share": fmean(map(data.looks, group.texts)),
    }


def report(rows: Sequence[dict]) -> dict:
    """The means of a step's groups; margins by family."""
    margins = defaultdict(list)
    for row in rows:
        if row["margin"] is not None:
            margins[row["family"]].append(row["margin"])
    names = [name for name in rows[0] if name not in ("family", "margin")]
    return {name: fmean(row[name] for row in rows) for name in names} | {"margin": {f: fmean(m) for f, m in margins.items()}}


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
    """The run's backbone on this rank's device: bfloat16 on a GPU, float32 on the CPU."""
    device = ranks.start()
    return Policy.load(config.backbone, device, torch.bfloat16 if device.startswith("cuda") else torch.float32)


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
    for samples in splits.values():
        check_prompts(policy, samples, config)
    if not quiet:
        print("data:", *(f"  {name}: {n}" for name, n in counts.items()), sep="\n")
        print("  samples:", ", ".join(f"{len(samples)} {name}" for name, samples in splits.items()))
    return splits.pop("train"), splits


def check_prompts(policy: Policy, samples: Sequence[data.Sample], config: Config) -> None:
    """Raises InputError for a prompt longer than config.max_prompt_tokens: its image span is never cut."""
    distinct = {(s.question, math.prod(policy.grid(s.size))): s for s in samples}
    for (question, n_visual), sample in distinct.items():
        length = len(policy.prompt(question, n_visual, config.thinking))
        if length > config.max_prompt_tokens:
            raise InputError(
                f"{sample.image}: its prompt has {length} tokens, {n_visual} of them visual; --max-prompt-tokens allows "
                f"{config.max_prompt_tokens}, and an image is never cut"
            )


def claim(out: Path, config: Config) -> None:
    """Makes the run's directory and writes config.json. Raises InputError if a run is there already."""
    path = out / "config.json"
    if path.is_file():
        other = differences(load_config(out), config)
        what = f"a run of another configuration ({other})" if other else "this run"
        raise InputError(f"--out {out}: holds {what}; continue it with --resume {out}, or choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(asdict(config), indent=1).encode())


def differences(there: Config, asked: Config) -> str:
    """The fields in which two configurations differ, as `seed 5, not 0; lr …`."""
    pairs = ((f.name, getattr(there, f.name), getattr(asked, f.name)) for f in fields(Config))
    return "; ".join(f"{name} {a!r}, not {b!r}" for name, a, b in pairs if a != b)


def load_config(run: Path) -> Config:
    """The configuration of a run directory. Raises InputError if there is none."""
    path = Path(run) / "config.json"
    try:
        return Config(**json.loads(path.read_text()))
    except (OSError, TypeError, json.JSONDecodeError) as error:
        raise InputError(f"{path}: expected the configuration of a run: {error}") from error


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file beside its place and renames it: a reader, or a kill, never sees half of it."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_bytes(content)
    os.replace(partial, path)


CHECKPOINT, PREVIOUS = "state.pt", "state.previous.pt"


def save_state(out: Path, policy: Policy, optimizer, step: int, cursor: int, bad_steps: int) -> None:
    """Everything a run needs to go on. The checkpoint before this one stays, as state.previous.pt."""
    weights = {name: p.detach().cpu() for name, p in policy.adapter.named_parameters() if p.requires_grad}
    state = {"step": step, "cursor": cursor, "bad_steps": bad_steps, "adapter": weights, "optimizer": optimizer.state_dict()}
    buffer = io.BytesIO()
    torch.save(state, buffer)
    if (out / CHECKPOINT).is_file():
        os.replace(out / CHECKPOINT, out / PREVIOUS)  # killed here, the run goes on from the previous one
    write_whole(out / CHECKPOINT, buffer.getvalue())


def load_state(out: Path, policy: Policy, optimizer) -> tuple[int, int, int]:
    """Restores adapter and optimizer; returns the next step, the sampler's cursor and the count of bad steps.

    Raises InputError for a damaged checkpoint, and says how to go on from the one before it.
    """
    path = next((out / name for name in (CHECKPOINT, PREVIOUS) if (out / name).is_file()), None)
    if path is None:
        return 0, 0, 0
    try:
        state = torch.load(path, map_location=policy.device, weights_only=True)
    except (RuntimeError, EOFError, OSError, pickle.UnpicklingError) as error:
        before = path.name == CHECKPOINT and (out / PREVIOUS).is_file()
        advice = f"remove it to continue from {out / PREVIOUS}" if before else "there is none before it"
        raise InputError(f"{path}: the checkpoint is damaged ({str(error).splitlines()[0]}); {advice}") from error
    policy.adapter.load_state_dict(state["adapter"], strict=False)
    optimizer.load_state_dict(state["optimizer"])
    return state["step"], state["cursor"], state["bad_steps"]


class Interruption:
    """Within it, SIGTERM and Ctrl-C become a wish to stop, granted after the step in progress."""

    def __enter__(self) -> "Interruption":
        self.wished = False
        self.before = {n: signal.signal(n, self._wish) for n in (signal.SIGTERM, signal.SIGINT)}
        return self

    def _wish(self, *_) -> None:
        self.wished = True

    def __exit__(self, *_) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)


def train(policy: Policy, samples: list[data.Sample], config: Config, out: Path, stop_after: int | None = None) -> bool:
    """The loop, from the last checkpoint in `out` (or from step 0) to config.steps. Returns whether it got there: an
    interruption, or stop_after, ends it after a step, with a checkpoint.
    """
    parameters = [p for p in policy.adapter.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=config.lr, weight_decay=config.weight_decay)
    start, cursor, bad_steps = load_state(out, policy, optimizer)
    sampler, main_rank = data.BalancedSampler(samples, config.seed, cursor), ranks.rank() == 0
    if main_rank:
        cut_log(out / "log.jsonl", start)
    bar = tqdm(range(start, config.steps), initial=start, total=config.steps, desc=config.method, disable=not main_rank)
    with bar, Interruption() as interruption:
        for step in bar:
            row = train_step(policy, sampler.draw(config.prompts_per_step), optimizer, config, step)
            bad_steps = count_bad_steps(row, bad_steps, out)
            stop = ranks.anyone(interruption.wished) or step + 1 == stop_after
            if main_rank:
                with (out / "log.jsonl").open("a") as log:
                    log.write(json.dumps(row) + "\n")
                if stop or (step + 1) % config.save_every == 0 or step + 1 == config.steps:
                    save_state(out, policy, optimizer, step + 1, sampler.cursor, bad_steps)
            bar.set_postfix({k: f"{row[k]:.2f}" for k in ("reward", "accuracy", "look_share", "kl")})
            if stop:
                return step + 1 == config.steps
    return True


def cut_log(path: Path, rows: int) -> None:
    """Keeps the first rows of a log: those after the checkpoint that a run goes on from will be written again."""
    kept = path.read_text().splitlines(keepends=True)[:rows] if path.is_file() else []
    write_whole(path, "".join(kept).encode())


def count_bad_steps(row: dict, before: int, out: Path) -> int:
    """How many steps in a row were skipped for a gradient that is not finite. Raises InputError at MAX_BAD_STEPS."""
    if not row["skipped"]:
        return 0
    if before + 1 == MAX_BAD_STEPS:
        raise InputError(
            f"step {row['step']}: the loss or gradient was not finite {MAX_BAD_STEPS} steps in a row. The last checkpoint in "
            f"{out} is kept, and its weights are those of the last good step. A lower --lr may help."
        )
    return before + 1


def load_trainable(config: Config) -> Policy:
    """The backbone with a fresh adapter, the same on every rank. Raises InputError for layers that do not exist."""
    policy = load_policy(config)
    torch.manual_seed(config.seed)  # LoRA's A is drawn from the global generator
    try:
        policy.add_lora(config.lora_layers, config.lora_rank, config.lora_alpha)
    except ValueError as error:
        raise InputError(f"--lora-layers: {error}") from error
    return policy


def run(config: Config, resume: bool, stop_after: int | None = None) -> None:
    """A whole run: evaluate, train, evaluate, and the two pictures. Only rank 0 prints and writes."""
    out, policy = Path(config.out), load_trainable(config)
    with tempfile.TemporaryDirectory() as scratch:
        samples, held_out = load_samples(config, policy, Path(scratch), quiet=ranks.rank() > 0)
        if ranks.rank() == 0:
            if not resume:
                claim(out, config)
            trainable = sum(p.numel() for p in policy.adapter.parameters() if p.requires_grad)
            print(f"{config.backbone}: {trainable:,} trainable parameters; writing to {out}")
        with policy.reference():
            before = measure(policy, held_out, config, "before")
        if not train(policy, samples, config, out, stop_after):
            if ranks.rank() == 0:
                print(f"stopped; continue with --resume {out}")
            return
        after = measure(policy, held_out, config, "after")
        if ranks.rank() == 0:
            finish_run(policy, samples, config, out, before, after)


def finish_run(policy: Policy, samples: list[data.Sample], config: Config, out: Path, before: dict, after: dict) -> None:
    """Writes adapter, results and pictures of a run that has ended, and prints its table."""
    policy.adapter.save_pretrained(out / "adapter")
    write_whole(out / "results.json", json.dumps({"before": before, "after": after}, indent=1).encode())
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


def add_config_flags(parser: argparse.ArgumentParser) -> None:
    """A flag for every field of Config; those that are not given stay out of the parsed arguments."""
    for f in fields(Config):
        recipe = f"; tiny: {TINY_RECIPE[f.name]}" if f.name in TINY_RECIPE else ""
        text = f"{f.metadata['help']} (default: {f.default}{recipe})".replace("%", "%%")
        kind = {"action": argparse.BooleanOptionalAction} if isinstance(f.default, bool) else {"type": type(f.default)}
        parser.add_argument(flag(f.name), **kind, default=argparse.SUPPRESS, help=text)


def make_parser() -> argparse.ArgumentParser:
    """The command line: every field of Config, and what is not part of a configuration."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add_config_flags(parser)
    parser.add_argument("--resume", type=Path, metavar="RUN", help="continue the run in this directory")
    parser.add_argument("--dry-run", action="store_true", help="print what the run would cost, and end")
    parser.add_argument("--stop-after", type=int, metavar="N", help="stop after step N as an interruption would")
    return parser


def configure(given: dict) -> Config:
    """The configuration of a new run: the flags given, then the tiny backbone's recipe, then the paper's defaults."""
    recipe = TINY_RECIPE if given.get("backbone", Config.backbone) == "tiny" else {}
    config = Config(**(recipe | given))
    if not config.out:
        config = replace(config, out=f"runs/{Path(config.backbone).name}-{config.method}-{config.seed}")
    return config.check()


def resumed(run: Path, given: dict) -> Config:
    """The configuration of the run in a directory. Raises InputError if flags were given that contradict it."""
    config = load_config(run)
    config = replace(config, out=str(run))
    if other := differences(config, replace(config, **given)):
        raise InputError(f"--resume {run}: the run has its own configuration: {other}")
    return config


def act(given: dict) -> None:
    """What the command line asks for: a new run, one that goes on, or a plan. Raises InputError."""
    folder, stop_after, dry_run = (given.pop(name) for name in ("resume", "stop_after", "dry_run"))
    config = resumed(folder, given) if folder else configure(given)
    from_recipe = [f"{flag(n)} {v}" for n, v in TINY_RECIPE.items() if config.backbone == "tiny" and n not in given]
    if from_recipe and not folder and int(os.environ.get("RANK", 0)) == 0:
        print("the tiny backbone's recipe:", ", ".join(from_recipe))
    print(plan(config)) if dry_run else run(config, folder is not None, stop_after)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; 2 for wrong input, with a message that says what was expected and what was found."""
    given = vars(make_parser().parse_args(argv))
    return ranks.command("train.py", lambda: act(given))


if __name__ == "__main__":
    sys.exit(main())
