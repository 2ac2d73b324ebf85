"""What a run keeps, so that it may end at any moment: its directory, its log, its checkpoints, and a wish to stop.

    runs/x/config.json          written first: whose directory this is          `claim`
    runs/x/log.jsonl            a row a step                                     `cut_log` when a run goes on
    runs/x/state.pt             adapter, optimizer, step, cursor, whose it is    `save_state`, `load_state`
    runs/x/state.previous.pt    the checkpoint before it

Every file is written beside its place and renamed: a reader, or a kill, never sees half of one.
"""

import io
import json
import math
import operator
import os
import pickle
import signal
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch

from config import CHANGES, Config, InputError, differences, fixed, load_config
from models import Policy, door
from reading import OBJECT, Field, fields, first_line, make_folder, optional, read_json
from support import ranks

CHECKPOINT, PREVIOUS = "state.pt", "state.previous.pt"
WHOLE = Field("a whole number", operator.index)
STATE = {"step": WHOLE, "cursor": WHOLE, "bad_steps": WHOLE, "adapter": OBJECT, "optimizer": OBJECT,
         "config": optional(OBJECT)}  # of a checkpoint; older ones do not say whose they are  # fmt: skip
RESULTS = {"before": OBJECT, "after": OBJECT}  # of results.json


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file beside its place and renames it."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_bytes(content)
    os.replace(partial, path)


def read_results(run: Path) -> dict[str, dict]:
    """The scores before and after of a run that has ended. Raises InputError for a damaged file."""
    return fields(read_json(run / "results.json"), RESULTS, run / "results.json")


def as_json(value: Any) -> str:
    """A value as JSON, in which there is no NaN and no infinity: they are null."""
    return json.dumps(finite(value))


def finite(value: Any) -> Any:
    """The value with None for every number that is not finite."""
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def claim(out: Path, config: Config) -> None:
    """Makes the run's directory and writes config.json. Raises InputError if a run is there already."""
    path = out / "config.json"
    if path.is_file():
        other = differences(load_config(out), config)
        what = f"a run of another configuration ({other})" if other else "this run"
        raise InputError(f"--out {out}: holds {what}; continue it with --resume {out}, or choose another --out")
    make_folder(out, "--out")
    write_whole(path, json.dumps(asdict(config), indent=1).encode())


def go_on(out: Path, config: Config) -> None:
    """Writes down what a run that goes on does otherwise than so far, and from which step on, and says it. What a kill has left
    half written is removed."""
    for partial in out.glob("*.partial"):
        partial.unlink()
    there, step = load_config(out), reached(out)
    if other := differences(config, replace(there, out=config.out)):
        print(f"from here on: {other}")
        if (there.eval_prompts, there.eval_group) != (config.eval_prompts, config.eval_group):
            (out / "before.json").unlink(missing_ok=True)  # the base is measured again, as what comes after will be
        pairs = {name: [value, getattr(config, name)] for name, value in asdict(there).items() if name != "out"}
        changed = {name: [a, b] for name, (a, b) in pairs.items() if a != b}
        content = asdict(config) | {CHANGES: [*changes(out), {"step": step, **changed}]}
        write_whole(out / "config.json", json.dumps(content, indent=1).encode())


def changes(out: Path) -> list[dict]:
    """What the run has done otherwise than before, and from which step on: {"step": 40, "save_every": [50, 10]}, …"""
    path = out / "config.json"
    return read_json(path).get(CHANGES, []) if path.is_file() else []


def changed_at(out: Path, step: int) -> dict:
    """What a step's row of the log says of it: {"changed": …} if the run goes on otherwise from there."""
    found = [{name: pair for name, pair in one.items() if name != "step"} for one in changes(out) if one["step"] == step]
    return {"changed": {name: pair for one in found for name, pair in one.items()}} if found else {}


def cut_log(path: Path, rows: int) -> None:
    """Keeps the first rows of a log: those after the checkpoint that a run goes on from will be written again."""
    kept = path.read_text().splitlines(keepends=True)[:rows] if path.is_file() else []
    write_whole(path, "".join(kept).encode())


def save_state(
    out: Path, policy: Policy, optimizer: torch.optim.Optimizer, config: Config, step: int, cursor: int, bad_steps: int
) -> None:
    """Everything a run needs to go on. The checkpoint before this one stays, as state.previous.pt."""
    weights = {name: p.detach().cpu() for name, p in policy.adapter.named_parameters() if p.requires_grad}
    state = {"step": step, "cursor": cursor, "bad_steps": bad_steps, "config": fixed(config),
             "adapter": weights, "optimizer": optimizer.state_dict()}  # fmt: skip
    buffer = io.BytesIO()
    torch.save(state, buffer)
    if (out / CHECKPOINT).is_file():
        os.replace(out / CHECKPOINT, out / PREVIOUS)  # killed here, the run goes on from the previous one
    write_whole(out / CHECKPOINT, buffer.getvalue())


def load_state(out: Path, policy: Policy, optimizer: torch.optim.Optimizer, config: Config) -> tuple[int, int, int]:
    """Restores adapter and optimizer on every rank, from what rank 0 reads; returns the next step, the sampler's cursor and the
    count of bad steps. Raises InputError for a checkpoint that is damaged or another run's."""
    state = ranks.first(lambda: read_state(out))
    if state is None:
        return 0, 0, 0
    there = state["config"] or {}
    if other := [f"{name} {there[name]!r}, not {own!r}" for name, own in fixed(config).items() if there.get(name, own) != own]:
        raise InputError(f"{out / CHECKPOINT}: the checkpoint is that of another run: {'; '.join(other)}")
    restore(policy, optimizer, state, out / CHECKPOINT)
    return state["step"], state["cursor"], state["bad_steps"]


def reached(out: Path) -> int:
    """The step that a run goes on from."""
    state = read_state(out)
    return state["step"] if state else 0


def read_state(out: Path) -> dict[str, Any] | None:
    """The last checkpoint in a run directory, None if there is none. Raises InputError for a damaged one, and says how to go on
    from the one before it."""
    path = next((out / name for name in (CHECKPOINT, PREVIOUS) if (out / name).is_file()), None)
    if path is None:
        return None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)  # AdamW's step counts stay there
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, pickle.UnpicklingError) as error:
        before = path.name == CHECKPOINT and (out / PREVIOUS).is_file()
        advice = f"remove it to continue from {out / PREVIOUS}" if before else "there is none before it"
        raise InputError(f"{path}: the checkpoint is damaged ({first_line(error)}); {advice}") from error
    return fields(state, STATE, path)


def restore(policy: Policy, optimizer: torch.optim.Optimizer, state: dict, path: Path) -> None:
    """Puts a checkpoint's weights and moments in place. Raises InputError if they are those of another adapter."""
    own = {name: tuple(p.shape) for name, p in policy.adapter.named_parameters() if p.requires_grad}
    there = {name: tuple(getattr(p, "shape", ())) for name, p in state["adapter"].items()}
    for name in sorted(own.keys() | there.keys()):
        if own.get(name) != there.get(name):
            raise InputError(f"{path}: the checkpoint is that of another adapter: {name}: expected the shape {own.get(name)}, "
                             f"by this run's --lora-rank and --lora-layers; found {there.get(name)}")  # fmt: skip
    policy.adapter.load_state_dict(state["adapter"], strict=False)
    with door("the optimizer", path):
        optimizer.load_state_dict(state["optimizer"])


class Interruption:
    """Within it, SIGTERM and Ctrl-C become a wish to stop, granted after the step in progress."""

    def __enter__(self) -> "Interruption":
        self.wished = False
        self.before = {n: signal.signal(n, self._wish) for n in (signal.SIGTERM, signal.SIGINT)}
        return self

    def _wish(self, number: int, frame: FrameType | None) -> None:
        self.wished = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
