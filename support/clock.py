"""What a step costs while it runs: seconds by part, peak memory, and what to do when a device has too little of it."""

import re
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from config import Config, flag


class Clock:
    """Seconds spent in each named part of a step, all times together. A part that runs out of memory is named in the error."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        except torch.OutOfMemoryError as error:
            error.add_note(f"in the part `{name}` of a step, at a peak of {peak_memory():.1f} GiB")
            raise
        self.seconds[name] = round(self.seconds.get(name, 0.0) + time.perf_counter() - start, 4)


def peak_memory() -> float:
    """GiB at this process's worst moment: of the GPU's memory if there is one, else resident."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    status = Path("/proc/self/status")
    if status.is_file():  # Linux, where getrusage's count would start from the peak of the process that started this one
        return int(re.search(r"VmHWM:\s+(\d+) kB", status.read_text())[1]) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**30  # macOS, in bytes


def less_memory(config: Config) -> str:
    """What to try after running out of it: half of each number of rows, which changes no result, and then of other numbers."""
    everything = {"audit_rows": (config.k + 1) * config.group_size, "update_rows": config.group_size, "sample_rows": 1}
    half = {name: max(1, (getattr(config, name) or rows) // 2) for name, rows in everything.items()}
    rows = " ".join(f"{flag(name)} {value}" for name, value in half.items())
    smaller = f"--group-size {max(2, config.group_size // 2)} or --max-new-tokens {max(1, config.max_new_tokens // 2)}"
    return f"the same with less: --resume {config.out} {rows}; or another run: {smaller}"
