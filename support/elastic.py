"""A run that outlives its machines: which run goes on, who still has it, and whether all ranks mean the same one.

    flags ─settle─▶ Config, and whether its run goes on          one command line for the first start and every restart
    configuration, data, weights, versions ─agree─▶ alike on every rank, or refused by name

Hosts share nothing. Rank 0 reads and writes the run directory and the others hear of it. Which host has rank 0 is torchrun's to
say: a host that gets it without having the run takes it over from the one that is furthest.
"""

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

import data
from config import Config, InputError, configure, contradiction, load_config, resumed
from models import Policy
from reading import make_folder
from support import ranks
from support.checkpoint import reached, write_whole

HERE = Path()  # --resume without a value: the run in --out if there is one
PLACES = ("backbone", "data", "cache", "out")  # may differ from host to host: what is found there is compared instead
KEPT = ("config.json", "before.json", "log.jsonl", "state.pt", "state.previous.pt")  # what a run needs to go on elsewhere
SCRATCH = "evidence-rl-"  # how the names of temporary folders begin
GLIMPSE = 4  # numbers of each weight that are looked at


# ── which run ───────────────────────────────────────────────────────────────────────────────────────────────────────
def settle(given: dict[str, Any], resume: Path | None) -> tuple[Config, bool]:
    """The configuration that flags mean, and whether it is that of a run that goes on: the one in `resume`; or without a value
    (HERE), or if torchrun has restarted this process, the one in --out if it has begun. Raises InputError for flags that
    contradict the run."""
    fresh = configure(given)
    if resume is None and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0:
        resume = HERE
    if resume is None:
        return fresh, False
    out = Path(fresh.out) if resume == HERE else resume
    asked = given
    if resume == HERE:  # the whole command line, but for what depends on how many processes there are
        asked = {name: value for name, value in asdict(fresh).items() if name != "prompts_per_step" or name in given}
    take_over(out, asked)
    there, step = ranks.first(lambda: begun(out, required=resume != HERE))
    if there is None:
        return fresh, False
    if resume == HERE and (other := contradiction(replace(there, out=str(out)), replace(there, **asked), step)):
        raise InputError(f"--out {out}: holds a run of another configuration ({other}); choose another --out")
    return resumed(out, asked, there, step), True


def begun(out: Path, required: bool) -> tuple[Config | None, int]:
    """The configuration of the run in a directory and the step of its last checkpoint; None if there is no run and none is
    required. Raises InputError for one that cannot go on."""
    if not required and not (out / "config.json").is_file():
        return None, 0
    return load_config(out, going_on=True), reached(out)


def take_over(out: Path, asked: dict[str, Any]) -> None:
    """Gives rank 0 the run of the host that is furthest, if that is another: torchrun numbers hosts anew when one comes or
    goes. Directories of other runs do not count; one on rank 0 stays as it is, and is refused."""
    steps = ranks.gather([progress(out, asked) if ranks.local() == 0 else -1])
    keeper, occupied = steps.index(max(steps)), ranks.first(lambda: steps[0] < 0 and (out / "config.json").is_file())
    if steps[keeper] == steps[0] or occupied:
        return
    content = ranks.first(lambda: {n: (out / n).read_bytes() for n in KEPT if (out / n).is_file()}, source=keeper)
    if ranks.rank() == 0:
        print(f"{out}: taken over from the host of rank {keeper}, at step {steps[keeper]}")
        make_folder(out, "--out")
        for name, file in content.items():
            write_whole(out / name, file)


def progress(out: Path, asked: dict[str, Any]) -> int:
    """How far the run is that a directory of this host holds; -1 if it holds none that could become what is asked."""
    try:
        there, step = begun(out, required=True)
        there = replace(there, out=str(out))
        return -1 if contradiction(there, replace(there, **asked), step) else step
    except InputError:  # no run, or a damaged one: on rank 0 the same is said in its place
        return -1


# ── whether all ranks mean the same ─────────────────────────────────────────────────────────────────────────────────
def agree(config: Config, policy: Policy, splits: dict[str, Sequence[data.Sample]]) -> None:
    """Raises InputError on every rank that has another configuration, other samples, weights or versions than rank 0."""
    compare({
        "configuration": [f"{f.name} {getattr(config, f.name)!r}" for f in fields(config) if compared(f.name, f.metadata)],
        "data": [f"{split} sample {s.id}: {s.question} {s.answer}, boxes {[(p.boxes, p.size) for p in s.pages]}"
                 for split, samples in splits.items() for s in samples],
        "weights": [weight(name, p) for name, p in policy.model.named_parameters()],
        "versions": [f"{module.__name__} {module.__version__}" for module in (torch, transformers)],
    })  # fmt: skip


def compared(name: str, metadata: Any) -> bool:
    """Whether a field must be alike on all ranks: not where things are, nor how many rows go through a device at a time."""
    return name not in PLACES and not name.endswith("_rows")


def weight(name: str, p: torch.Tensor) -> str:
    """A parameter in words: its name and shape, whether it is trained, its first numbers."""
    kind = "trained" if p.requires_grad else "frozen"
    return f"{kind} {name} {tuple(p.shape)}, {p.detach().flatten()[:GLIMPSE].tolist()} ..."


def compare(parts: dict[str, list[str]]) -> None:
    """Raises InputError on every rank of which a part, told in lines, is not that of rank 0."""
    own = {name: hashlib.sha256("\n".join(lines).encode()).hexdigest() for name, lines in parts.items()}
    everyone = ranks.gather([own])
    for name, lines in parts.items():
        if any(other[name] != everyone[0][name] for other in everyone):
            expected = ranks.first(partial(list, lines))
            if lines != expected:
                raise InputError(f"{name}: {first_difference(expected, lines)}")
            ranks.meet()  # where they say it


def first_difference(expected: list[str], found: list[str]) -> str:
    """Where two lists of lines part."""
    i = next((i for i, (a, b) in enumerate(zip(expected, found)) if a != b), min(len(expected), len(found)))
    a, b = (lines[i] if i < len(lines) else "nothing more" for lines in (expected, found))
    return f"expected what rank 0 has, {a}; found {b}"


# ── temporary files ─────────────────────────────────────────────────────────────────────────────────────────────────
@contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder, locked while its process lives: a killed process cannot remove its own, and the next one does."""
    for left in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*"):
        if not in_use(left / "lock"):
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=SCRATCH) as folder:
        with Path(folder, "unlocked").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            os.replace(Path(folder, "unlocked"), Path(folder, "lock"))  # nobody ever sees a lock that is free too early
            yield Path(folder)


def in_use(lock: Path) -> bool:
    """Whether a process holds this lock. A folder without one is only just being made, or is not ours to remove."""
    try:
        with lock.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False
