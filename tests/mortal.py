"""train.py with one process that meets an error, or its end: what kill_elastic.py and lose_a_host.py start with torchrun.

    MORTAL='[["audit", 1, 3, "kill"], ...]' MORTAL_LOG=ends.txt torchrun … tests/mortal.py <flags of train.py>

The first entry that has not happened is what this start of the workers meets: here, rank 1 is killed when it is in the phase
for the 3rd time. What has happened is a line of the log. It can be kill (SIGKILL), stop (SIGSTOP), memory, input or a bug. Not
collected by pytest.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

import torch  # noqa: E402

import report  # noqa: E402
import rollout  # noqa: E402
import train  # noqa: E402
from config import InputError  # noqa: E402
from models import Policy  # noqa: E402
from support import checkpoint, elastic, ranks  # noqa: E402

LOG = Path(os.environ.get("MORTAL_LOG", "ends.txt"))
PHASES: dict[str, list[tuple[Any, str]]] = {  # where a phase begins: functions, by the module that calls them
    "start": [(elastic, "settle")],
    "evaluation before": [(train, "measure_base")],
    "encode": [(Policy, "encode")],
    "sample": [(Policy, "sample")],
    "audit": [(rollout, "audit_answers")],
    "learn": [(train, "learn")],
    "all-reduce": [(ranks.GradientSum, "finish")],
    "between renames": [(checkpoint, "write_whole")],  # of state.pt alone: the one before has its new name already
    "evaluation after": [(train, "measure")],
    "results": [(report, "draw")],
}


def happen(what: str) -> None:
    """What a process may meet."""
    if what == "memory":
        raise torch.OutOfMemoryError("CUDA out of memory")
    if what == "input":
        raise InputError("a.png: the image does not decode")
    if what == "bug":
        raise RuntimeError("rank is unwell")
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[what])


def at(function: Callable, phase: str, n: int, what: str) -> Callable:
    """The function, but that something happens at its n-th call."""
    calls: list[int] = []

    def wrapped(*args: Any, **more: Any) -> Any:
        calls.append(1)
        if phase == "between renames" and args[0].name != checkpoint.CHECKPOINT:
            calls.pop()
        elif len(calls) == n:
            with LOG.open("a") as log:
                log.write(f"rank {ranks.here()[0]}, {phase}, call {n}: {what}\n")
            happen(what)
        return function(*args, **more)

    return wrapped


def main() -> int:
    """Prepares this start's end, and trains."""
    plan, happened = json.loads(os.environ.get("MORTAL", "[]")), LOG.read_text().count("\n") if LOG.is_file() else 0
    if happened < len(plan):
        phase, rank, n, what = plan[happened]
        if rank == int(os.environ.get("RANK", "0")):
            for owner, name in PHASES[phase]:
                setattr(owner, name, at(getattr(owner, name), phase, n, what))
    return train.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
