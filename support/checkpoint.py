"""What a run keeps, so that it may end at any moment: its directory, its log, its checkpoints, and a wish to stop.

    runs/x/config.json          written first: whose directory this is          `claim`
    runs/x/log.jsonl            a row a step                                     `cut_log` when a run goes on
    runs/x/state.pt             adapter, optimizer, step, cursor                 `save_state`, `load_state`
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
from dataclasses import asdict
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch

from config import Config, InputError, differences, load_config
from models import Policy, door
from reading import OBJECT, Field, fields, first_line, make_folder, read_json

CHECKPOINT, PREVIOUS = "state.pt", "state.previous.pt"
WHOLE = Field("a whole number", operator.index)
STATE = {"step": WHOLE, "cursor": WHOLE, "bad_steps": WHOLE, "adapter": OBJECT, "optimizer": OBJECT}  # of a checkpoint
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
    """Writes down what a run that goes on does otherwise than so far, and says it."""
    if other := differences(config, load_config(out)):
        print(f"from here on: {other}")
        write_whole(out / "config.json", json.dumps(asdict(config), indent=1).encode())


def cut_log(path: Path, rows: int) -> None:
    """Keeps the first rows of a log: those after the checkpoint that a run goes on from will be written again."""
    kept = path.read_text().splitlines(keepends=True)[:rows] if path.is_file() else []
    write_whole(path, "".join(kept).encode())


def save_state(out: Path, policy: Policy, optimizer: torch.optim.Optimizer, step: int, cursor: int, bad_steps: int) -> None:
    """Everything a run needs to go on. The checkpoint before this one stays, as state.previous.pt."""
    weights = {name: p.detach().cpu() for name, p in policy.adapter.named_parameters() if p.requires_grad}
    state = {"step": step, "cursor": cursor, "bad_steps": bad_steps, "adapter": weights, "optimizer": optimizer.state_dict()}
    buffer = io.BytesIO()
    torch.save(state, buffer)
    if (out / CHECKPOINT).is_file():
        os.replace(out / CHECKPOINT, out / PREVIOUS)  # killed here, the run goes on from the previous one
    write_whole(out / CHECKPOINT, buffer.getvalue())


def load_state(out: Path, policy: Policy, optimizer: torch.optim.Optimizer) -> tuple[int, int, int]:
    """Restores adapter and optimizer; returns the next step, the sampler's cursor and the count of bad steps.

    Raises InputError for a damaged checkpoint, and says how to go on from the one before it.
    """
    path = next((out / name for name in (CHECKPOINT, PREVIOUS) if (out / name).is_file()), None)
    if path is None:
        return 0, 0, 0
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)  # AdamW's step counts stay there
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, pickle.UnpicklingError) as error:
        before = path.name == CHECKPOINT and (out / PREVIOUS).is_file()
        advice = f"remove it to continue from {out / PREVIOUS}" if before else "there is none before it"
        raise InputError(f"{path}: the checkpoint is damaged ({first_line(error)}); {advice}") from error
    state = fields(state, STATE, path)
    restore(policy, optimizer, state, path)
    return state["step"], state["cursor"], state["bad_steps"]


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
