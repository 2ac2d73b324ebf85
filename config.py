"""Every number of a run in one place: `Config`, its command-line flags, checked where they come from.

    given flags ─configure─▶ Config ─▶ runs/x/config.json ─load_config─▶ Config ─resumed─▶ Config

Defaults are the paper's. The embedded backbone needs a few others, its recipe. A field states its own bounds; names that a
table elsewhere owns (a backbone, a method) are checked by whoever owns the table.
"""

import argparse
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import ced
import grpo
from reading import Field, InputError, optional, read_json, require
from reading import fields as checked


def arg(default: Any, help: str, **bounds: Any) -> Any:
    """A Config field: its default, the help text of its flag, and its bounds: least, most, above, choices."""
    return field(default=default, metadata={"help": help, "bounds": bounds})


def free(default: Any, help: str, **bounds: Any) -> Any:
    """A Config field that changes nothing of what is computed, so that a run which goes on may change it."""
    return field(default=default, metadata={"help": help, "bounds": bounds, "free": True})


@dataclass(frozen=True)
class Config:
    """Every number of a run, with the paper's defaults; every field is a flag of train.py."""

    backbone: str = arg("tiny", "tiny, qwen2.5-vl-3b, qwen2.5-vl-7b, qwen3-vl-8b, qwen3.5-9b, or a local directory")
    method: str = arg("answer-ced", "correctness, additive, papo, vppo, answer-ced, cot-ced or correct-only: a row of METHODS")
    data: str = arg("coco", "coco (val2017, fetched once), toy, a COCO-format folder or a .jsonl file")
    cache: str = free("~/.cache/evidence-rl", "where --data coco is kept")
    out: str = arg("", "run directory (default: runs/BACKBONE-METHOD-SEED)")
    seed: int = arg(0, "every random draw is a function of it")
    # 1 sample
    steps: int = arg(2000, "optimizer steps", least=1)
    prompts_per_step: int = arg(0, "prompts, i.e. groups, of one optimizer step; 0: one a process", least=0)
    group_size: int = arg(32, "G: answers sampled to each prompt", least=2)
    temperature: float = arg(1.0, "of sampling; old, new and reference log-probabilities use the same", above=0)
    max_new_tokens: int = arg(128, "longest response, in tokens", least=1)
    thinking: bool = arg(True, "let a backbone that can (Qwen3.5) open its own <think> in the prompt")
    sample_rows: int = free(128, "answers sampled at a time, of several prompts together: less memory, same answers", least=0)
    max_prompt_tokens: int = arg(4096, "longest prompt, image tokens included; longer ones are refused, never cut")
    # 2 judge
    k: int = arg(3, "K: non-evidence regions of an audit", least=1)
    intervention: str = arg("mean", "what replaces a region's tokens (Eq. 1)", choices=ced.INTERVENTIONS)
    ring: int = arg(2, "how far, in tokens, the neighbours reach whose mean replaces a region (Eq. 1)", least=1)
    max_iou: float = arg(0.05, "largest overlap of a non-evidence box with the evidence", least=0, most=1)
    eps_margin: float = arg(0.1, "epsilon of Eq. 3, in nats", above=0)
    tau_g: float = arg(0.2, "gate temperature of Eq. 5", above=0)
    eps_tie: float = arg(0.1, "tie-breaker of Eq. 4", least=0)
    lam: float = arg(0.1, "lambda: weight of the margin in --method additive")
    r_correct: float = arg(1.0, "R_ans of a right answer")
    r_wrong: float = arg(0.0, "R_ans of a wrong answer; below 0, Eq. 4 spares the wrong answer that did not look")
    # 3 learn
    lr: float = arg(1e-5, "AdamW learning rate", least=0)
    weight_decay: float = arg(0.01, "AdamW weight decay", least=0)
    grad_clip: float = arg(1.0, "largest gradient norm", above=0)
    eps_adv: float = arg(1e-4, "epsilon of the group advantage", above=0)
    beta: float = arg(0.01, "weight of the KL term", least=0)
    clip_low: float = arg(0.2, "ratio is clipped below 1 - clip_low", least=0, most=1)
    clip_high: float = arg(0.2, "ratio is clipped above 1 + clip_high", least=0)
    average: str = arg("response", "mean of each response's mean, or of all tokens", choices=grpo.AVERAGES)
    updates_per_step: int = arg(1, "optimizer updates on each batch of answers", least=1)
    lora_layers: int = arg(4, "LoRA goes on the last so many decoder layers", least=1)
    lora_rank: int = arg(16, "LoRA rank r", least=1)
    lora_alpha: int = arg(32, "LoRA scale alpha")
    audit_rows: int = free(0, "answers x images scored at a time in an audit, 0 for all: less memory, same result", least=0)
    update_rows: int = free(0, "answers in one backward pass, 0 for all: less memory, same result", least=0)
    # 3 learn, as the other systems do (related/)
    mask_patch: int = arg(14, "side in pixels of the squares that PAPO and VPPO blacken", least=1)
    papo_mask: float = arg(0.6, "PAPO: probability of a square to be black", least=0, most=1)
    papo_gamma: float = arg(0.02, "PAPO: weight of the KL from the masked image, which is maximised", least=0)
    papo_eta: float = arg(0.05, "PAPO: weight of the two entropies, which are minimised", least=0)
    papo_bound: float = arg(10.0, "PAPO: largest k3 of a token, in nats", above=0)
    papo_detach: bool = arg(False, "PAPO: no gradient through the masked image, as in the released code")
    vppo_mask: float = arg(0.5, "VPPO: probability of a square to be black", least=0, most=1)
    vppo_ratio: float = arg(0.4, "VPPO: share of a response's tokens that are learnt from", above=0, most=1)
    vppo_beta_min: float = arg(0.9, "VPPO: smallest scale of a response's advantage", least=0, most=1)
    # data and reports
    min_area: float = arg(0.005, "smallest share of the image an evidence region may cover")
    max_area: float = arg(0.6, "largest share of the image an evidence region may cover")
    min_tokens: int = arg(2, "fewest visual tokens an evidence region may own")
    eval_prompts: int = arg(40, "questions of each family and split in the evaluations before and after", least=1)
    eval_group: int = arg(8, "answers sampled to each of them", least=1)
    save_every: int = free(50, "steps between checkpoints", least=1)

    def check(self) -> "Config":
        """This configuration if it can run. Raises InputError with the flag, what was expected and what was found."""
        for f in fields(self):
            if expected := outside(getattr(self, f.name), **f.metadata["bounds"]):
                raise InputError(f"{flag(f.name)}: expected {expected}; found {getattr(self, f.name)!r}")
        if not self.r_correct > self.r_wrong:
            raise InputError(f"--r-correct: expected more than --r-wrong, {self.r_wrong}; found {self.r_correct}")
        return self


def outside(
    value: Any, least: float | None = None, most: float | None = None, above: float | None = None, choices: Sequence[str] = ()
) -> str:
    """What a value should have been, in words, if it lies outside its bounds; "" if it is fine."""
    if isinstance(value, float) and not math.isfinite(value):
        return "a finite number"
    if least is not None and value < least:
        return f"at least {least}"
    if most is not None and value > most:
        return f"at most {most}"
    if above is not None and value <= above:
        return f"a number above {above}"
    return f"one of {', '.join(choices)}" if choices and value not in choices else ""


# What the tiny backbone needs otherwise; everything else is the paper's. The advantage and AdamW both divide the reward's scale
# out, so how far a run goes is lr x steps: the log-odds of looking rise by 0.2 nat a thousandth of it, in few steps or in many.
TINY_RECIPE = {"data": "toy", "steps": 60, "prompts_per_step": 4, "group_size": 16, "lr": 1e-3, "max_new_tokens": 16}


# ── flags → Config ──────────────────────────────────────────────────────────────────────────────────────────────────
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


def recipe_of(backbone: str) -> dict[str, Any]:
    """What a backbone needs otherwise than the paper."""
    return TINY_RECIPE if backbone == "tiny" else {}


def configure(given: dict[str, Any]) -> Config:
    """The configuration of a new run: the flags given, then the backbone's recipe, then the paper's defaults."""
    config = Config(**(recipe_of(given.get("backbone", Config.backbone)) | given))
    if config.prompts_per_step == 0:  # written down, so that a run that goes on keeps it on any number of processes
        config = replace(config, prompts_per_step=int(os.environ.get("WORLD_SIZE", "1")))
    if not config.out:
        config = replace(config, out=f"runs/{Path(config.backbone).name}-{config.method}-{config.seed}")
    return config.check()


# ── a run's own Config ──────────────────────────────────────────────────────────────────────────────────────────────
def load_config(run: Path) -> Config:
    """The configuration of a run directory. Raises InputError if there is none."""
    path = Path(run) / "config.json"
    if not path.is_file():
        raise InputError(f"{path}: expected the configuration of a run; found no such file")
    found, table = read_json(path), {f.name: optional(Field(f.type.__name__, typed(f.type))) for f in fields(Config)}
    values = checked(found, table, path)
    if unknown := found.keys() - table.keys():
        raise InputError(f"{path}: {', '.join(sorted(unknown))}: expected a field of this version's configuration")
    try:
        return Config(**{name: value for name, value in values.items() if value is not None}).check()
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def typed(kind: type) -> Callable[[Any], Any]:
    """Reads a value of a field's type; a whole number is a float too."""

    def read(value: Any) -> Any:
        require(isinstance(value, bool) == (kind is bool) and isinstance(value, (int, float) if kind is float else kind))
        return kind(value)

    return read


def differences(there: Config, asked: Config) -> str:
    """The fields in which two configurations differ, as `seed 5, not 0; lr …`."""
    pairs = ((f.name, getattr(there, f.name), getattr(asked, f.name)) for f in fields(Config))
    return "; ".join(f"{name} {a!r}, not {b!r}" for name, a, b in pairs if a != b)


def resumed(run: Path, given: dict[str, Any]) -> Config:
    """The configuration of the run in a directory, with the flags given where these are free. A run may also grow: with more
    steps it becomes what a run of so many would have been. Raises InputError for flags that contradict the run."""
    config = replace(load_config(run), out=str(run))
    asked = replace(config, **given).check()
    may = {f.name: getattr(asked, f.name) for f in fields(Config) if f.metadata.get("free")}
    may["steps"] = max(asked.steps, config.steps)
    if other := differences(replace(config, **may), asked):
        raise InputError(f"--resume {run}: the run has its own configuration: {other}")
    return asked
