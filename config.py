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

import answers
import ced
import grpo
from reading import LIST, Field, InputError, optional, read_json, require
from reading import fields as checked

# What `rollout.regions_of` can take for the evidence.
EVIDENCE = ("boxes", "attributed", "attributed-policy", "random", "centre")


def arg(default: Any, help: str, before: Any = None, **bounds: Any) -> Any:
    """A Config field: its default, the help text of its flag, and its bounds: least, most, above, choices. One that came later
    says what the code did before it was there; a run from then goes on with that."""
    return field(default=default, metadata={"help": help, "bounds": bounds, "before": before})


def later(default: Any, help: str, **bounds: Any) -> Any:
    """A Config field that came later, whose default is what the code did before it was there."""
    return arg(default, help, before=default, **bounds)


def free(default: Any, help: str, **bounds: Any) -> Any:
    """A Config field that changes nothing of a run's trajectory, so that a run which goes on may change it."""
    return field(default=default, metadata={"help": help, "bounds": bounds, "free": True})


SPANS = ("answer", "evidence")
INSTRUCTION = "First think inside <think> </think>, then give only the final answer inside <answer> </answer>."
METHOD_NAMES = "correctness, additive, papo, vppo, answer-ced, cot-ced, correct-only, rs-grpo, rs-ced, mixed, outcome or step"


@dataclass(frozen=True)
class Config:
    """Every number of a run, with the paper's defaults; every field is a flag of train.py."""

    backbone: str = arg("tiny", "tiny, qwen2.5-vl-3b, qwen2.5-vl-7b, qwen3-vl-8b, qwen3.5-9b, org/name[@revision], or a folder")
    method: str = arg("answer-ced", f"{METHOD_NAMES}: a row of METHODS")
    data: str = arg("coco", "coco (val2017, fetched once), toy, a COCO-format folder or a .jsonl file")
    cache: str = free("~/.cache/evidence-rl", "where --data coco is kept")
    families: str = arg(
        "attribute,counting,spatial", "what is trained on; all families of the data are measured",
        before="attribute,counting,spatial,presence",
    )  # fmt: skip
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
    instruction: str = later(INSTRUCTION, f"follows a question about one image; it has to ask for the answer {answers.FORMAT}")
    max_prompt_tokens: int = arg(4096, "longest prompt, image tokens included; longer ones are refused, never cut")
    # 2 judge
    evidence: str = later("boxes", f"where an answer's evidence is: {', '.join(EVIDENCE)}", choices=EVIDENCE)
    evidence_steps: int = later(6, "attributed: steps from the image's mean token to the image", least=1)
    evidence_mass: float = later(0.8, "attributed: share of the attributions that the region holds", above=0, most=1)
    evidence_most: float = later(1 / 3, "attributed: largest share of the visual tokens that it owns", above=0, most=1)
    evidence_rows: int = free(64, "answers x steps in one pass of an attribution, 0 for all: less memory, same result", least=0)
    max_overlap: float = later(0.1, "largest share of a null region's tokens that an attributed one owns", least=0, most=1)
    k: int = arg(3, "K: non-evidence regions of an audit", least=1)
    span: str = later("answer", "which tokens an audit scores: of the answer, or of the recorded evidence", choices=SPANS)
    intervention: str = arg("mean", "what replaces a region's tokens (Eq. 1)", choices=ced.INTERVENTIONS)
    ring: int = arg(2, "how far, in tokens, the neighbours reach whose mean replaces a region (Eq. 1)", least=1)
    max_iou: float = arg(0.05, "largest overlap of a non-evidence box with the evidence", least=0, most=1)
    eps_margin: float = arg(0.1, "epsilon of Eq. 3, in nats", above=0)
    tau_g: float = arg(0.2, "gate temperature of Eq. 5", above=0)
    eps_tie: float = arg(0.1, "tie-breaker of Eq. 4", least=0)
    lam: float = arg(0.1, "lambda: weight of the margin in --method additive")
    r_correct: float = arg(1.0, "R_ans of a right answer")
    r_wrong: float = arg(0.0, "R_ans of a wrong answer; below 0, Eq. 4 spares the wrong answer that did not look")
    # 2 judge, of answers in four stages (related/rs_grpo.py)
    pages: int = later(3, "pages that are retrieved for a question of one's own library", least=1)
    evidence_weight: float = later(3.0, "RS-GRPO: weight of a page with evidence in R_perception, others having 1", above=0)
    step_weight: float = later(0.1, "StepGRPO: weight of the share of pages that are recorded right", least=0)
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
    eval_prompts: int = free(40, "questions of each family and split in the evaluations before and after", least=1)
    eval_group: int = free(8, "answers sampled to each of them", least=1)
    eval_every: int = free(0, "steps between evaluations on the way, into log.jsonl; 0: only before and after", least=0)
    save_every: int = free(50, "steps between checkpoints, at which the two pictures are drawn again", least=1)

    def check(self) -> "Config":
        """This configuration if it can run. Raises InputError with the flag, what was expected and what was found."""
        for f in fields(self):
            if expected := outside(getattr(self, f.name), **f.metadata["bounds"]):
                raise InputError(f"{flag(f.name)}: expected {expected}; found {getattr(self, f.name)!r}")
        if not self.r_correct > self.r_wrong:
            raise InputError(f"--r-correct: expected more than --r-wrong, {self.r_wrong}; found {self.r_correct}")
        if not answers.asks_for_answer(self.instruction):
            raise InputError(f"--instruction: expected one that asks for the final answer {answers.FORMAT}: `answers.py` reads "
                             f"no other; found {self.instruction!r}")  # fmt: skip
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
TINY_RECIPE = {"data": "toy", "families": "attribute,counting,spatial,presence", "steps": 60, "prompts_per_step": 4,
               "group_size": 16, "lr": 1e-3, "max_new_tokens": 16}  # fmt: skip


# What methods need that ask about pages: DAPO's clip, the token mean and no KL (RS-GRPO's Eq. 10); an audit of what looks; and
# room for pages and four stages (the group and both lengths are the released code's).
PAGES_RECIPE = {"temperature": 1.2, "clip_low": 0.2, "clip_high": 0.28, "average": "token", "beta": 0.0, "span": "evidence",
                "group_size": 8, "max_new_tokens": 1536, "max_prompt_tokens": 15000}  # fmt: skip
RECIPES = dict.fromkeys(("rs-grpo", "rs-ced", "mixed", "outcome", "step"), PAGES_RECIPE)


# ── flags → Config ──────────────────────────────────────────────────────────────────────────────────────────────────
def flag(name: str) -> str:
    """`eps_margin` → `--eps-margin`."""
    return "--" + name.replace("_", "-")


def add_config_flags(parser: argparse.ArgumentParser) -> None:
    """A flag for every field of Config; those that are not given stay out of the parsed arguments."""
    for f in fields(Config):
        recipe = f"; tiny: {TINY_RECIPE[f.name]}" if f.name in TINY_RECIPE else ""
        recipe += f"; about pages: {PAGES_RECIPE[f.name]}" if f.name in PAGES_RECIPE else ""
        text = f"{f.metadata['help']} (default: {f.default}{recipe})".replace("%", "%%")
        kind = {"action": argparse.BooleanOptionalAction} if isinstance(f.default, bool) else {"type": type(f.default)}
        parser.add_argument(flag(f.name), **kind, default=argparse.SUPPRESS, help=text)


def recipe_of(backbone: str, method: str) -> dict[str, Any]:
    """What a backbone and a method need otherwise than the paper."""
    return (TINY_RECIPE if backbone == "tiny" else {}) | RECIPES.get(method, {})


def configure(given: dict[str, Any]) -> Config:
    """The configuration of a new run: the flags given, then the backbone's recipe, then the paper's defaults."""
    config = Config(**(recipe_of(*(given.get(name, getattr(Config, name)) for name in ("backbone", "method"))) | given))
    if config.prompts_per_step == 0:  # written down, so that a run that goes on keeps it on any number of processes
        config = replace(config, prompts_per_step=int(os.environ.get("WORLD_SIZE", "1")))
    if not config.out:
        config = replace(config, out=f"runs/{Path(config.backbone).name}-{config.method}-{config.seed}")
    return config.check()


# ── a run's own Config ──────────────────────────────────────────────────────────────────────────────────────────────
CHANGES = "changes"  # in config.json, beside the fields: what a run that went on has done otherwise, and from which step on


def load_config(run: Path, going_on: bool = False) -> Config:
    """The configuration of a run directory. Raises InputError if there is none; and where the run is going_on, for a field that
    is not there, changes what is computed, and does not say what the code did before it had that field."""
    path = Path(run) / "config.json"
    if not path.is_file():
        raise InputError(f"{path}: expected the configuration of a run; found no such file")
    found, table = read_json(path), {f.name: optional(Field(f.type.__name__, typed(f.type))) for f in fields(Config)}
    values = checked(found, table | {CHANGES: optional(LIST)}, path)
    if unknown := found.keys() - values.keys():
        raise InputError(f"{path}: {', '.join(sorted(unknown))}: expected a field of this version's configuration")
    absent = {f.name: f.metadata for f in fields(Config) if values[f.name] is None}
    older = {name: of["before"] for name, of in absent.items() if of.get("before") is not None}
    if going_on and (silent := [name for name, of in absent.items() if name not in older and not of.get("free")]):
        raise InputError(f"{path}: {', '.join(silent)}: expected a value; found none, and a default may not be what the run "
                         "began with")  # fmt: skip
    values = {name: value for name, value in values.items() if name != CHANGES and value is not None}
    try:
        return Config(**(older | values)).check()
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


def fixed(config: Config) -> dict[str, Any]:
    """What a run cannot change while it goes on: all but free fields, its steps, which may grow, and where it is."""
    names = [f.name for f in fields(Config) if not f.metadata.get("free") and f.name not in ("steps", "out")]
    return {name: getattr(config, name) for name in names}


def contradiction(there: Config, asked: Config, reached: int = 0) -> str:
    """The fields in which a run that has reached a step cannot become what is asked: all that differ and are not free. It may
    become longer, or end earlier, but not before that step: then it is what a run of so many steps would have been."""
    may = {f.name: getattr(asked, f.name) for f in fields(Config) if f.metadata.get("free")}
    may["steps"] = asked.steps if asked.steps >= reached else there.steps
    return differences(replace(there, **may), asked)


def resumed(run: Path, given: dict[str, Any], there: Config | None = None, reached: int = 0) -> Config:
    """The configuration of the run in a directory with the flags given: there, if another host has read it. Raises InputError
    for flags that contradict a run that has reached so many steps."""
    there = replace(there or load_config(run), out=str(run))
    asked = replace(there, **given).check()
    if other := contradiction(there, asked, reached):
        raise InputError(f"--resume {run}: the run has its own configuration: {other}")
    return asked
