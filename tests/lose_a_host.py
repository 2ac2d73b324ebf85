"""Two hosts, that is, two folders that share nothing: both, one process, three, a host lost and back; and one that differs.

    python tests/lose_a_host.py [--steps 12]

Not collected by pytest: it takes some minutes. Exits with 0 if every run ends with the adapter of an undisturbed one, by its
SHA-256, if the lost host came back into the job that ran, and if a host with other data is refused by name on both.
"""

import argparse
import hashlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from mortal import train

from toy import world

SHORT = ["--prompts-per-step", "3", "--group-size", "4", "--eval-prompts", "1", "--eval-group", "2", "--save-every", "1",
         "--sample-rows", "1", "--data", "world"]  # fmt: skip
PORT = 29_711
JOIN = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # without it no host can join a job that runs: see docs/gpus.md


class Host:
    """A folder with a copy of the data, and what torchrun starts in it."""

    def __init__(self, folder: Path, data: Path) -> None:
        self.folder, self.jobs = folder, 0
        shutil.copytree(data, folder / "world")

    def start(self, nodes: str, processes: int, port: int, *flags: str) -> subprocess.Popen:
        """torchrun with this host as one of `nodes`."""
        self.jobs += 1
        torchrun = ["-m", "torch.distributed.run", "--nnodes", nodes, "--nproc-per-node", str(processes),
                    "--rdzv-id", str(port), "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}",
                    "--max-restarts", "0" if nodes == "2" else "3"]  # fmt: skip
        out = (self.folder / f"{self.jobs}.txt").open("w")
        return subprocess.Popen([sys.executable, *torchrun, train.__file__, *SHORT, *flags], cwd=self.folder, stdout=out,
                                stderr=out, env=os.environ | {"OMP_NUM_THREADS": "1"} | (JOIN if ":" in nodes else {}),
                                start_new_session=True)  # fmt: skip

    def said(self, word: str) -> list[str]:
        """The lines of the last job with this word."""
        text = (self.folder / f"{self.jobs}.txt").read_text(errors="replace").replace("\r", "\n")
        return [line for line in text.splitlines() if word in line]

    def adapter(self, run: str) -> str:
        """The SHA-256 of a run's adapter."""
        return hashlib.sha256((self.folder / run / "adapter" / "adapter_model.safetensors").read_bytes()).hexdigest()[:16]

    def rows(self, run: str) -> int:
        """Rows of a run's log."""
        log = self.folder / run / "log.jsonl"
        return log.read_text().count("\n") if log.is_file() else 0


def both(a: Host, b: Host, port: int, *flags: str) -> None:
    """A job of one process on each host, to its end."""
    jobs = [host.start("2", 1, port, *flags) for host in (a, b)]
    print("two hosts", *flags, [job.wait() for job in jobs], flush=True)


def lose_and_return(a: Host, b: Host, port: int, *flags: str) -> bool:
    """--nnodes 1:2: the second host dies, the first goes on alone, the second comes back. Whether the log says so."""
    jobs = [a.start("1:2", 1, port, *flags)]
    wait(lambda: listens(port), jobs[0])  # on it torchrun's rendezvous lives: with this host it would be lost
    jobs.append(b.start("1:2", 1, port, *flags))
    wait(lambda: a.rows("lost") >= 2, jobs[0])
    os.killpg(jobs[1].pid, signal.SIGKILL)
    workers_of(jobs[1], b)
    before, start = a.rows("lost"), time.monotonic()
    print(f"second host killed after {before} rows", flush=True)
    wait(lambda: a.rows("lost") >= before + 2, jobs[0])
    print(f"the first alone: {a.rows('lost')} rows after {time.monotonic() - start:.0f} s; the second comes back", flush=True)
    again = b.start("1:2", 1, port, *flags)
    print("statuses", jobs[0].wait(), again.wait(), flush=True)
    ranks = [len(json.loads(line).get("ranks", [0])) for line in (a.folder / "lost" / "log.jsonl").open()]
    print("processes of each step:", *ranks, flush=True)
    return [n for n, _ in itertools.groupby(ranks)] == [2, 1, 2]


def workers_of(job: subprocess.Popen, host: Host) -> None:
    """Kills what torchrun had started: its processes have sessions of their own."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            mine = (process / "cwd").resolve() == host.folder.resolve()
        except OSError:
            continue
        if mine:
            os.kill(int(process.name), signal.SIGKILL)
    job.wait()


def listens(port: int) -> bool:
    """Whether somebody answers on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait(ready: Callable[[], bool], job: subprocess.Popen) -> None:
    """Until something is so, or the job has ended."""
    while not ready() and job.poll() is None:
        time.sleep(0.1)


def differ(a: Host, b: Host, port: int) -> bool:
    """Whether other data on the second host is refused, by name, on both."""
    path = b.folder / "world" / "instances.json"
    text = json.loads(path.read_text())
    text["annotations"][0]["bbox"][2] -= 1
    path.write_text(json.dumps(text))
    start = time.monotonic()
    both(a, b, port, "--steps", "2", "--out", "differs")
    lines = a.said("train.py: ")[:1] + b.said("train.py: ")[:1]
    print(*lines, f"after {time.monotonic() - start:.0f} s", sep="\n", flush=True)
    return len(lines) == 2 and all("rank 1 on " in line and "data: expected what rank 0 has" in line for line in lines)


def main() -> int:
    """One undisturbed run, and those that are not."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=12, help="steps of each run")
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as place:
        world.WORLD_SPLITS = {"train": 60}
        data = world.draw_world(Path(place, "drawn"), seed=0)["train"]
        a, b = (Host(Path(place, name), data) for name in "ab")
        length = ["--steps", str(steps)]
        print("undisturbed, one process", a.start("1", 1, PORT, *length, "--out", "calm").wait(), flush=True)
        both(a, b, PORT + 1, *length, "--out", "moved", "--stop-after", "2")
        both(a, b, PORT + 2, *length, "--out", "moved", "--resume", "--stop-after", "4")
        alone = [*length, "--out", "moved", "--resume"]
        print("one process", a.start("1", 1, PORT + 3, *alone, "--stop-after", "6").wait(), flush=True)
        print("three processes", a.start("1", 3, PORT + 4, *alone).wait(), flush=True)
        came_back = lose_and_return(a, b, PORT + 5, *length, "--out", "lost", "--resume")
        if not (a.folder / "lost" / "adapter").is_dir():
            print(*a.said("")[-40:], sep="\n")
            return 1
        sums = {run: a.adapter(run) for run in ("calm", "moved", "lost")}
        rows = {run: a.rows(run) for run in sums}
        print(sums, rows, "runs on the second host:", [p.parent.name for p in b.folder.glob("*/config.json")], flush=True)
        refused = differ(a, b, PORT + 6)
        return 0 if len(set(sums.values())) == 1 and set(rows.values()) == {steps} and came_back and refused else 1


if __name__ == "__main__":
    sys.exit(main())
