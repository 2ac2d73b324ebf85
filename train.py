"""Evidence-RL: train a vision-language model to answer from the evidence. `python train.py` needs no download and no GPU.

The loop, for every step:
    1 sample   G answers to each prompt of the step, one reading of the prompt for all of them
    2 judge    is the answer right (R_ans), and does it depend on the evidence (the audit's margin m)
    3 learn    reward → advantages within the group → clipped policy gradient on the LoRA weights
    4 report   one row of log.jsonl, the progress bar; now and then the held-out splits, a checkpoint, two pictures

What a method changes of it is a row of methods.py; every number is a field of config.py.
"""

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

import data
import grpo
import report
from config import Config, InputError, add_config_flags, flag, outside, recipe_of
from methods import advantages_of, check_samples, method_of, rewards_of
from models import Policy, source_of
from related.documents import load_samples
from related.rs_grpo import Scoped
from report import measure, measure_base
from rollout import Group, Judgement, judge, sample_groups, seeded
from support import elastic, ranks
from support.checkpoint import (
    CHECKPOINT,
    Interruption,
    as_json,
    changed_at,
    claim,
    cut_log,
    go_on,
    load_state,
    save_state,
    write_whole,
)
from support.clock import Clock, less_memory
from support.plan import plan

MAX_BAD_STEPS = 5  # in a row, of a gradient that is not finite, before a run gives up


# ── one step ────────────────────────────────────────────────────────────────────────────────────────────────────────
def learn(
    policy: Policy, group: Group, judgement: Judgement, rewards: Tensor | Scoped, config: Config, update: int, n: int
) -> dict:
    """Adds the gradient of 1/n of the group's loss to the adapter, `update_rows` answers at a time; returns its statistics:
    kl, clip_fraction, and the mean size |A| of the advantages.

    The prompt is read once with gradient and once for the reference, whatever the number of answers.
    """
    method, responses = method_of(config), group.responses
    advantages = advantages_of(policy, group, rewards, config).to(policy.device)  # (G,) or (G, T)
    shares = grpo.token_shares(responses.mask, config.average)  # (G, T)
    weights = method.token_weights(policy, group, judgement, config) if method.token_weights else torch.ones_like(shares)
    stats: Counter = Counter()
    for rows in torch.arange(len(shares), device=policy.device).split(config.update_rows or len(shares)):
        with torch.no_grad(), policy.reference():
            reference = log_probs_of(policy, group, rows, config)
        current = log_probs_of(policy, group, rows, config)
        old = responses.log_probs[rows] if update else current.detach()  # on-policy, the ratio is exactly 1
        loss, stat = grpo.grpo_loss(
            current, old, reference, advantages[rows], shares[rows],
            config.clip_low, config.clip_high, config.beta, weights[rows],
        )  # fmt: skip
        if method.extra_loss:
            loss = loss + method.extra_loss(policy, group, rows, current, shares[rows], config)
        (loss / n).backward()
        stats.update(stat)
    return {**stats, "advantage": float(advantages.abs().mean())}


def log_probs_of(policy: Policy, group: Group, rows: Tensor, config: Config) -> Tensor:
    """log π (rows, T) of the group's answers at the sampling temperature; 0 after their ends."""
    ids, mask = group.responses.ids[rows], group.responses.mask[rows]
    return policy.log_probs(policy.read(group.prompt, group.visions), ids, config.temperature, mask)[0]


def train_step(
    policy: Policy, samples: Sequence[data.Sample], optimizer: torch.optim.Optimizer, config: Config, step: int
) -> dict:
    """One optimizer step on a batch of prompts, split over the ranks; returns the step's row of the log."""
    clock, mine = Clock(), ranks.share(samples)
    gradients = ranks.GradientSum(optimizer.param_groups[0]["params"])
    with clock("sample"):  # 1
        draws = [seeded(config.seed, "sample", step, s.id, device=policy.device) for s in mine]
        groups = list(sample_groups(policy, mine, config, config.group_size, draws))
    with clock("judge"):  # 2
        judgements = [judge(policy, group, config) for group in groups]
        rewards = [rewards_of(j, g.sample, config) for j, g in zip(judgements, groups)]
    with clock("learn"):  # 3
        for update in range(config.updates_per_step):
            stats = []
            for g, j, r in zip(groups, judgements, rewards):
                stats.append(learn(policy, g, j, r, config, update, len(samples)))
                gradients.add()
            with clock("wait"):  # for the slowest rank
                ranks.meet()
            gradients.finish(len(samples))
            grad_norm = descend(optimizer, config.grad_clip)
    with clock("report"):  # 4
        rows = ranks.gather([report.describe(g, j, r, config) | s for g, j, r, s in zip(groups, judgements, rewards, stats)])
        waits = report.waits(ranks.gather([clock.seconds]))
    skipped = not math.isfinite(grad_norm)
    seconds = {part: s for part, s in clock.seconds.items() if part != "wait"}
    return {"step": step, **report.means(rows), "grad_norm": grad_norm, "skipped": skipped, "seconds": seconds, **waits}


def descend(optimizer: torch.optim.Optimizer, grad_clip: float) -> float:
    """One clipped step on the ranks' summed gradients; returns their norm. A norm that is not finite skips the step, on
    every rank alike, since all of them see the same sum."""
    norm = float(torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], grad_clip))
    if math.isfinite(norm):
        optimizer.step()
    optimizer.zero_grad()
    return norm


# ── a run ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def load_policy(config: Config) -> Policy:
    """The run's backbone on this rank's device: bfloat16 on a GPU, float32 on the CPU."""
    device = ranks.start()
    ranks.once_a_host(lambda: source_of(config.backbone))  # fetched by one process
    if config.backbone == "tiny":
        torch.set_num_threads(1)  # a model this small loses time to a second thread, and minutes where the cores are busy
    return Policy.load(config.backbone, device, torch.float32 if device == "cpu" else torch.bfloat16)


def train(
    policy: Policy,
    samples: list[data.Sample],
    config: Config,
    out: Path,
    stop_after: int | None = None,
    held_out: dict[str, list[data.Sample]] | None = None,
) -> bool:
    """The loop, from the last checkpoint in `out` (or from step 0) to config.steps. Returns whether it got there: an
    interruption, or stop_after, ends it after a step, with a checkpoint. held_out is measured every config.eval_every steps.
    """
    parameters = [p for p in policy.adapter.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=config.lr, weight_decay=config.weight_decay)
    start, cursor, bad_steps = load_state(out, policy, optimizer, config)
    sampler, main_rank = data.BalancedSampler(samples, config.seed, cursor), ranks.rank() == 0
    if main_rank:
        cut_log(out / "log.jsonl", start)
    bar = tqdm(range(start, config.steps), initial=start, total=config.steps, desc=config.method, disable=not main_rank)
    with bar, Interruption() as interruption:
        for step in bar:
            row = train_step(policy, sampler.draw(config.prompts_per_step), optimizer, config, step)
            bad_steps = count_bad_steps(row, bad_steps, out)
            if config.eval_every and (step + 1) % config.eval_every == 0:  # within the row, so that both are kept or neither
                row["held_out"] = measure(policy, held_out or {}, config, f"after step {step + 1}")
            stop = ranks.anyone(interruption.wished) or step + 1 == stop_after
            if main_rank:
                with (out / "log.jsonl").open("a") as log:
                    log.write(as_json(row | changed_at(out, step)) + "\n")
                due, last = (step + 1) % config.save_every == 0, step + 1 == config.steps
                if stop or due or last:
                    save_state(out, policy, optimizer, config, step + 1, sampler.cursor, bad_steps)
                if due and not (stop or last):  # an interruption is in haste, and the end draws its own
                    report.draw(policy, samples, config, out)
            bar.set_postfix(report.progress(row, config))
            if stop:
                return step + 1 == config.steps
    return True


def count_bad_steps(row: dict, before: int, out: Path) -> int:
    """How many steps in a row were skipped for a gradient that is not finite. Raises InputError at MAX_BAD_STEPS."""
    if not row["skipped"]:
        return 0
    if before + 1 == MAX_BAD_STEPS:
        kept = f"The last checkpoint in {out} is kept. " if (out / CHECKPOINT).is_file() else ""
        raise InputError(
            f"step {row['step']}: the loss or gradient was not finite {MAX_BAD_STEPS} steps in a row. {kept}"
            "A lower --lr may help."
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


def run(config: Config, goes_on: bool, stop_after: int | None = None) -> None:
    """A whole run: evaluate, train, evaluate, and the two pictures. Only rank 0 prints and writes."""
    out, policy = Path(config.out), load_trainable(config)
    with elastic.scratch() as scratch:
        samples, held_out = load_samples(config, policy, scratch, quiet=ranks.rank() > 0)
        check_samples(samples, config)
        elastic.agree(config, policy, {"train": samples, **held_out})
        ranks.first(lambda: go_on(out, config) if goes_on else claim(out, config))
        if ranks.rank() == 0:
            trainable = sum(p.numel() for p in policy.adapter.parameters() if p.requires_grad)
            print(f"{config.backbone}: {trainable:,} trainable parameters; writing to {out}")
            if config.prompts_per_step < ranks.world():
                print(f"--prompts-per-step {config.prompts_per_step}: of {ranks.world()} processes the rest has nothing to do")
        before = measure_base(policy, held_out, config, out)
        try:
            done = train(policy, samples, config, out, stop_after, held_out)
        except torch.OutOfMemoryError as error:
            error.add_note(less_memory(config))
            raise
        if not done:
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
    report.draw(policy, samples, config, out)
    print(report.markdown(before, after), f"\nwrote {out}/: log.jsonl, adapter/, learning_curves.png, audit_sheet.png")
    if ranks.world() > 1:
        print(f"idle: {report.mean_idle(out):.0%} of {ranks.world()} processes' time went into waiting for the slowest")


# ── the command line ────────────────────────────────────────────────────────────────────────────────────────────────
def make_parser() -> argparse.ArgumentParser:
    """The command line: every field of Config, and what is not part of a configuration."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add_config_flags(parser)
    parser.add_argument("--resume", type=Path, metavar="RUN", nargs="?", const=elastic.HERE, help="continue the run in this "
                        "directory; without a value, that in --out if it has begun, or start it")  # fmt: skip
    parser.add_argument("--timeout", type=float, metavar="MINUTES", default=argparse.SUPPRESS,
                        help=f"how long processes wait for one another (default: {ranks.TIMEOUT})")  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="print what the run would cost, and end")
    parser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show where an error arose")
    parser.add_argument("--stop-after", type=int, metavar="N", help="stop after step N as an interruption would")
    return parser


def act(given: dict[str, Any]) -> None:
    """What the command line asks for: a new run, one that goes on, or a plan. Raises InputError."""
    resume, stop_after, dry_run = (given.pop(name) for name in ("resume", "stop_after", "dry_run"))
    if expected := outside(timeout := given.pop("timeout", ranks.TIMEOUT), above=0):
        raise InputError(f"--timeout: expected {expected}; found {timeout}")
    ranks.start(timeout)
    config, goes_on = elastic.settle(given, resume)
    method_of(config)
    from_recipe = [f"{flag(n)} {v}" for n, v in recipe_of(config.backbone, config.method).items() if n not in given]
    if from_recipe and not goes_on and ranks.rank() == 0:
        print(f"the recipe of {config.backbone} and {config.method}:", ", ".join(from_recipe))
    print(plan(config)) if dry_run else run(config, goes_on, stop_after)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; 2 for wrong input, with a message that says what was expected and what was found."""
    given = vars(ranks.parse(make_parser(), argv))
    return ranks.command("train.py", lambda: act(given), given.pop("debug", False))


if __name__ == "__main__":
    sys.exit(main())
