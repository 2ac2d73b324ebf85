"""Several processes, one trajectory: prompts are split over ranks, their gradients summed in the prompts' order, and nothing
else is shared.

`torchrun --nproc-per-node 8 train.py …` starts one process a GPU. Every rank holds the whole model and draws the same batch of
prompts; rank r takes every world-th of them. Seeds never depend on the rank, so 1 and 8 GPUs walk the same path.

Wherever ranks meet (`gather`, `meet`, `first`, …) each says first whether it is well. A rank that meets an error goes to the
next meeting to tell it, wherever the others come from: all end at once, with its message and one status, and none waits for
another. A rank that dies tells nothing, but its connections break; one that never comes is named when the time is up.
"""

import os
import signal
import socket
import sys
import time
import traceback
import uuid
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cache
from itertools import count
from threading import Thread
from typing import NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from config import InputError
from reading import first_line

TIMEOUT = 30.0  # minutes that ranks wait for one another
PAUSE = 0.02  # seconds between two looks at who is there
PATIENCE = 5.0  # seconds that the job's table has to answer when something is wrong
T = TypeVar("T")


class Trouble(NamedTuple):
    """Why a rank cannot go on, in words, and the status that all ranks end with."""

    status: int
    message: str
    rank: int
    host: str


class Told(Exception):
    """What went wrong on some rank, on all of them."""

    def __init__(self, troubles: list[Trouble]) -> None:
        super().__init__(troubles[0].message)
        self.troubles = troubles


class Lost(Exception):
    """A rank is gone, or never came."""


# ── a process among others ──────────────────────────────────────────────────────────────────────────────────────────
def start(minutes: float = TIMEOUT) -> str:
    """Joins the process group if torchrun started this process. Returns this rank's device. Raises Lost for a missing rank."""
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(local())
    if "WORLD_SIZE" in os.environ and not dist.is_initialized():
        number, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"  # ranks speak over gloo: NCCL's memory may be what is short
        limit = timedelta(minutes=minutes)
        try:
            own = dist.PrefixStore(roll_call(number, size, limit), table())
            dist.init_process_group(backend, store=own, rank=number, world_size=size, timeout=limit)
        except RuntimeError as error:
            raise Lost(f"the {size} processes cannot reach one another: {first_line(error)}") from error
    return f"cuda:{local()}" if cuda else "cpu"


@cache
def table() -> dist.Store:
    """What all processes of the job can read and write, kept by torchrun on the first host or, if that may not, by rank 0."""
    return next(iter(dist.rendezvous("env://")))[0]


def entry(key: str) -> str:
    """An entry of the job's table, "" if there is none."""
    return table().get(key).decode() if table().check([key]) else ""


def roll_call(number: int, size: int, limit: timedelta) -> str:
    """A name for this start of the job, when all its processes are here. Raises Lost that names those who are not.

    torchrun's table outlives a restart. In it lie the addresses of processes that have died, and one that believed them would
    wait for ever. So rank 0 writes down whom it sees, until everybody on that list has answered.
    """
    own, deadline = f"{socket.gethostname()}/{uuid.uuid4().hex}", time.monotonic() + limit.total_seconds()
    table().set(f"here/{number}", own)
    while time.monotonic() < deadline:
        if number == 0:
            table().set("seen", " ".join(entry(f"here/{r}") for r in range(size)))
        if own in (seen := entry("seen")).split():
            table().set(f"heard/{number}", seen)
        if number == 0 and all(entry(f"heard/{r}") == seen for r in range(size)):
            table().set("all here", seen)
        if own in entry("all here").split():
            return entry("all here")
        time.sleep(PAUSE)
    raise Lost(missing([r for r in range(size) if entry(f"heard/{r}") != entry("seen")]))


def finish() -> None:
    """Leaves the process group."""
    if dist.is_initialized():
        dist.destroy_process_group()
        for kept in (table, job, meetings):
            kept.cache_clear()


def rank() -> int:
    """This process's number, 0 if it is alone."""
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    """How many processes there are."""
    return dist.get_world_size() if dist.is_initialized() else 1


def local() -> int:
    """This process's number on its host."""
    return int(os.environ.get("LOCAL_RANK", "0"))


# ── meetings ────────────────────────────────────────────────────────────────────────────────────────────────────────
def exchange(trouble: Trouble | None, items: list) -> list[list]:
    """The items of every rank. Raises Told if some rank is in trouble, and Lost if one is not there."""
    said: list = [(trouble, items)] * world()
    if world() > 1:
        try:
            mine = next(meetings())
            table().set(f"{job()}/meetings/{rank()}", str(mine))
            dist.all_gather_object(said, (trouble, items))
        except RuntimeError as error:
            gone = "rank 0 or its host is gone, or answers no more"
            raise Lost(in_time(lambda: missing([r for r in range(world()) if met(r) < mine]), gone)) from error
    if troubles := [trouble for trouble, _ in said if trouble]:
        raise Told(troubles)
    return [items for _, items in said]


@cache
def job() -> str:
    """The name of this start of the job."""
    return entry("all here")


@cache
def meetings() -> Iterator[int]:
    """The numbers of this rank's meetings."""
    return count(1)


def met(rank: int) -> int:
    """How many meetings of this start of the job a rank has come to."""
    return int(entry(f"{job()}/meetings/{rank}") or 0)


def in_time(question: Callable[[], T], otherwise: T) -> T:
    """What the job's table answers, or otherwise: whoever keeps it may be dead, or stopped, and then it would never answer."""
    answers: list[T] = []

    def ask() -> None:
        with suppress(RuntimeError):
            answers.append(question())

    (asking := Thread(target=ask, daemon=True)).start()
    asking.join(PATIENCE)
    return answers[0] if answers else otherwise


def missing(ranks: Sequence[int]) -> str:
    """Which ranks are not where the others are, in words."""
    hosts = {r: entry(f"here/{r}").partition("/")[0] for r in ranks}
    named = ", ".join(f"rank {r}{f' on {host}' if host else ''}" for r, host in hosts.items()) or "a rank"
    return f"{named} did not come within --timeout, or has died; what it said itself, if anything, says why"


def gather(items: Sequence) -> list:
    """The items of all ranks on every rank, in the order that `share` took them from."""
    parts = exchange(None, list(items))
    return [parts[i % len(parts)][i // len(parts)] for i in range(sum(map(len, parts)))]


def share(items: Sequence) -> list:
    """This rank's part: every world-th item, from the rank's own number on. May be empty."""
    return list(items[rank() :: world()])


def meet() -> None:
    """Waits until all ranks are here and well."""
    exchange(None, [])


def anyone(flag: bool) -> bool:
    """Whether the flag is set on some rank."""
    return any(gather([flag]))


def first(action: Callable[[], T], source: int = 0) -> T:
    """What an action gives that rank 0 alone does (or another source), on every rank. What goes wrong there ends them all."""
    result = [action() if rank() == source else None]
    meet()
    if world() > 1:
        dist.broadcast_object_list(result, source)
    return result[0]


def once_a_host(action: Callable[[], T]) -> T:
    """What an action gives that the first process of each host does before the others: they find what it fetched."""
    result = [action()] if local() == 0 else []
    meet()
    return result[0] if result else action()


# ── an end for all ──────────────────────────────────────────────────────────────────────────────────────────────────
def command(name: str, action: Callable[[], int | None], debug: bool = False) -> int:
    """Runs what a program does and leaves the process group: its status (None is 0), or with a message 2 for wrong input, 3
    for a device without enough memory and 1 for a rank that is gone, on all ranks alike. debug shows the cause."""
    try:
        status = action() or 0
        meet()  # none leaves while another may still fail
        return status
    except Told as told:
        return end(name, told.troubles)
    except Lost as lost:
        if first_to_say():
            print(f"{name}: {lost}", file=sys.stderr, flush=True)
        return 1
    except Exception as error:
        trouble = trouble_of(error)
        troubles = tell(trouble)
        if debug or trouble.status == 1:
            if world() == 1:
                raise
            traceback.print_exc()
        return end(name, troubles)
    finally:
        finish()


def parse(parser: ArgumentParser, argv: Sequence[str] | None) -> Namespace:
    """The flags of the command line. A rank on which they are wrong tells the others."""
    try:
        return parser.parse_args(argv)
    except SystemExit as leaving:
        if leaving.code:
            tell(Trouble(2, "wrong flags; its own output says which", *here()))
        raise


def trouble_of(error: Exception) -> Trouble:
    """What an error means to all ranks."""
    if isinstance(error, InputError):
        return Trouble(2, str(error), *here())
    if isinstance(error, torch.OutOfMemoryError):
        return Trouble(3, "; ".join(["out of memory", *getattr(error, "__notes__", [])]), *here())
    return Trouble(1, "".join(traceback.format_exception_only(error)).strip(), *here())


def here() -> tuple[int, str]:
    """This process's number, before it has joined too, and its host."""
    return int(os.environ.get("RANK", "0")), socket.gethostname()


def tell(trouble: Trouble) -> list[Trouble]:
    """Goes to the other ranks' next meeting, to tell them; returns all who do so."""
    try:
        start()
        exchange(trouble, [])
    except Told as told:
        return told.troubles
    except Lost:
        pass
    return [trouble]


def end(name: str, troubles: list[Trouble]) -> int:
    """Says what is wrong, in one line a host, when all ranks have been told; returns the status of them all."""
    one = troubles[0]
    alike = len(troubles) == world() and len({trouble.message for trouble in troubles}) == 1
    if local() == 0:
        place = "" if alike else f"rank {one.rank} on {one.host}: "
        print(f"{name}: {place}{one.message}", file=sys.stderr, flush=True)
    try:
        meet()  # torchrun stops the others as soon as one leaves: all lines are written before
        if world() > 1:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # they leave by themselves, with the same status
    except Lost:
        pass
    return one.status


def first_to_say() -> bool:
    """Whether no process of this host has spoken of a loss so far: the first process may itself be what is lost."""
    return in_time(lambda: table().add(f"{job()}/said/{socket.gethostname()}", 1) == 1, True)


# ── the sum of gradients ────────────────────────────────────────────────────────────────────────────────────────────
class GradientSum:
    """The sum of the prompts' gradients, added one after the other in the prompts' order. Floating-point sums depend on their
    order: in this one, any number of ranks gives the same bits."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters, self.terms = parameters, []  # each (D,): all parameters in one row

    def add(self) -> None:
        """Takes the gradient of one more prompt of this rank from the parameters."""
        term = flat([torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters])
        for p in self.parameters:
            p.grad = None
        self.terms = [self.terms[0] + term] if self.terms and world() == 1 else [*self.terms, term]

    def finish(self, n: int) -> None:
        """Puts the sum over all n prompts of the ranks into the parameters."""
        (total,) = self.terms if world() == 1 else [sum_in_order(self.terms, n, flat(self.parameters))]
        for p, part in zip(self.parameters, total.split([p.numel() for p in self.parameters])):
            p.grad = part.view_as(p)
        self.terms = []


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """All numbers of some tensors in one row (D,)."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def sum_in_order(terms: Sequence[Tensor], n: int, like: Tensor) -> Tensor:
    """The sum (D,) of n terms, the i-th of which is on rank i % world, added in their order.

    Each rank adds up one part of the D numbers. It receives that part of all n terms and sends its sum back: D (1 + n / world)
    numbers a rank, which at one term a rank is what a ring all-reduce sends.
    """
    ranks, rows = world(), -(-n // world())
    width = -(-like.numel() // ranks)
    own = like.new_zeros(rows, ranks * width)
    for row, term in zip(own, terms):
        row[: len(term)] = term
    out = own.view(rows, ranks, width).transpose(0, 1).contiguous()  # (ranks, rows, width): to each rank its part
    parts = torch.empty_like(out)  # (ranks, rows, width): from each rank its terms
    dist.all_to_all_single(parts, out)
    total, *rest = parts.transpose(0, 1).reshape(-1, width)[:n]  # by term: row · ranks + rank
    for term in rest:
        total = total + term
    whole = like.new_empty(ranks * width)
    dist.all_gather_single(whole, total.contiguous())
    return whole[: like.numel()]
