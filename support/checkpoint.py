"""What a run keeps, so that it may end at any moment: its directory, its log, its checkpoints, and a wish to stop.

    runs/x/config.json          written first: whose directory this is          `claim`
    runs/x/log.jsonl            a row a step                                     `cut_log` when a run goes on
    runs/x/state.pt             adapter, optimizer, step, cursor                 `save_state`, `load_state`
    runs/x/state.previous.pt    the checkpoint before it

Every file is written beside its place and renamed: a reader, or a kill, never sees half of one.
"""

import io
import json
import os
import pickle
import signal
from dataclasses import asdict
from pathlib import Path
from types import FrameType, TracebackType

import torch

from config import Config, InputError, differences, load_config
from models import Policy

CHECKPOINT, PREVIOUS = "state.pt", "state.previous.pt"


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file beside its place and renames it."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_bytes(content)
    os.replace(partial, path)


def claim(out: Path, config: Config) -> None:
    """Makes the run's directory and writes config.json. Raises InputError if a run is there already."""
    path = out / "config.json"
    if path.is_file():
        other = differences(load_config(out), config)
        what = f"a run of another configuration ({other})" if other else "this run"
        raise InputError(f"--out {out}: holds {what}; continue it with --resume {out}, or choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(asdict(config), indent=1).encode())


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

    def _wish(self, number: int, frame: FrameType | None) -> None:
        self.wished = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
