"""Several processes, one trajectory: prompts are split over ranks, gradients summed, and nothing else is shared.

`torchrun --nproc-per-node 8 train.py …` starts one process a GPU. Every rank holds the whole model and draws the same batch of
prompts; rank r takes every world-th of them. Seeds never depend on the rank, so 1 and 8 GPUs walk the same path.
"""

import os
import sys
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import nn

from config import InputError


class Told(InputError):
    """Wrong input that another rank has met and tells of."""


def start() -> str:
    """Joins the process group if torchrun started this process. Returns this rank's device."""
    local = int(os.environ.get("LOCAL_RANK", 0))
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(local)
    if "WORLD_SIZE" in os.environ and not dist.is_initialized():
        dist.init_process_group("nccl" if cuda else "gloo")
    return f"cuda:{local}" if cuda else "cpu"


def finish() -> None:
    """Leaves the process group."""
    if dist.is_initialized():
        dist.destroy_process_group()


def command(name: str, action: Callable[[], int | None], debug: bool = False) -> int:
    """Runs what a program does and leaves the process group: its status (None is 0), or with a message 2 for wrong input and 3
    for a device without enough memory. debug lets both through with their cause."""
    try:
        return action() or 0
    except Told:
        return 2
    except InputError as error:
        if debug:
            raise
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    except torch.OutOfMemoryError as error:
        if debug:
            raise
        print(f"{name}: out of memory", *getattr(error, "__notes__", []), sep="; ", file=sys.stderr)
        return 3
    finally:
        finish()


def rank() -> int:
    """This process's number, 0 if it is alone."""
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    """How many processes there are."""
    return dist.get_world_size() if dist.is_initialized() else 1


def share(items: Sequence) -> list:
    """This rank's part: every world-th item, from the rank's own number on. May be empty."""
    return list(items[rank() :: world()])


def gather(items: Sequence) -> list:
    """The items of all ranks on every rank, in the order that `share` took them from."""
    if world() == 1:
        return list(items)
    parts: list = [None] * world()
    dist.all_gather_object(parts, list(items))
    return [parts[i % world()][i // world()] for i in range(sum(map(len, parts)))]


def first(action: Callable[[], object]) -> None:
    """Does something on rank 0 alone. What is wrong input there ends every rank, so that none waits for another."""
    error = None
    if rank() == 0:
        try:
            action()
        except InputError as wrong:
            error = wrong
    if anyone(error is not None):
        raise error or Told


def anyone(flag: bool) -> bool:
    """Whether the flag is set on some rank."""
    return any(gather([flag]))


def sum_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Sums the gradients over the ranks in one flat all-reduce. A rank that had no prompt contributes zeros."""
    if world() == 1:
        return
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat)
    for p, part in zip(parameters, flat.split([g.numel() for g in grads])):
        p.grad = part.view_as(p)
