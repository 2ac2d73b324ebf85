"""A GPU that is not there: tensors that say they are on `pretend:0` compute on the CPU, and refuse what CUDA would refuse.

    with pretend_gpu() as gpu:
        policy = Policy.load("tiny", DEVICE, torch.bfloat16)
        ...                     # RuntimeError where a CPU tensor, or generator, meets a pretended one
    gpu.kernels, gpu.waits      # what was launched, and what made the host wait: Counters, by operator and by file:line

How: torch keeps a device slot free, PrivateUse1, and lets Python fill it. A wrapper subclass holds a CPU tensor and claims the
device; a dispatch mode sees every operator before it runs, looks at where its arguments are, and runs it on what they hold.
CUDA's rules that are checked:
    places      the tensors of an operator are on one device; but 0-dim CPU tensors mix, CPU indices index, and copies cross
    generators  are on the device of what they fill
    dtypes      the operator checks them itself, as on CUDA: the CPU's kernels run
    numpy       knows no device
A wait is a copy between the devices, .item(), or a result whose shape depends on numbers (a mask's, nonzero's, unique's).

Import it before anything computes a gradient: autograd's engine counts the devices once. Tests do, being collected first.
"""

import contextlib
import functools
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
NAME, DEVICE = "pretend", "pretend:0"
COPIES = {aten._to_copy, aten.copy_}
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index}
WAITS = {aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.equal, aten.unique_dim, aten._unique2,
         aten.unique_consecutive}  # fmt: skip
FREE = {aten.detach, aten.alias, aten._unsafe_view, aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty,
        aten.new_empty_strided, aten.lift_fresh, aten.is_same_size}  # fmt: skip


class Backend(backend_registration._DummyBackendModule):
    """What `torch.pretend` is."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


class Pretended(torch.Tensor):
    """A tensor on the pretended device. `held` is where its numbers are."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor):
        return torch.Tensor._make_wrapper_subclass(
            cls, held.size(), strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype, device=DEVICE
        )

    def __init__(self, held: Tensor):
        self.held = held

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError(f"{func} outside of `with pretend_gpu()`")

    def __repr__(self) -> str:
        return f"Pretended({self.held!r})"

    def tolist(self) -> list:
        return self.cpu().tolist()

    def numpy(self, **_: Any):
        raise TypeError(f"can't convert {DEVICE} device type tensor to numpy. Use Tensor.cpu() first.")

    def untyped_storage(self) -> torch.UntypedStorage:  # safetensors asks for its address
        return self.held.untyped_storage()

    def __reduce_ex__(self, protocol: int):  # saved as what it holds
        return self.held.detach().__reduce_ex__(protocol)


class Generator:
    """Stands in for `torch.Generator`: a CPU generator that remembers on which device it says it is."""

    real, homes = torch.Generator, {}

    def __new__(cls, device: str | torch.device = "cpu"):
        generator = cls.real()
        cls.homes[generator._cdata] = torch.device(device).type
        return generator


# ── arguments and operators ─────────────────────────────────────────────────────────────────────────────────────────
def mapped(f: Callable, x: Any) -> Any:
    """f of x, or of each of its entries, however nested."""
    return type(x)([mapped(f, y) for y in x]) if isinstance(x, (list, tuple)) else f(x)


def tensors_in(arguments: Any) -> Iterator[Tensor]:
    for x in arguments:
        if isinstance(x, Tensor):
            yield x
        elif isinstance(x, (list, tuple)):
            yield from tensors_in(x)


def tensor(data: Any, real: Callable = torch.tensor, **how: Any) -> Tensor:
    """`torch.tensor`, which reads the numbers of a list of tensors behind the dispatcher's back; here it is given numbers."""
    return real(mapped(lambda x: x.item() if isinstance(x, Pretended) else x, data), **how)


def hold(x: Any) -> Any:
    return x.held if isinstance(x, Pretended) else x


class Kind(NamedTuple):
    """What there is to know of an operator."""

    composite: bool  # in inference mode it arrives whole, and is taken apart here
    view: bool  # it gives its argument's memory another shape: no kernel
    free: bool


@functools.cache
def kind_of(func: torch._ops.OpOverload) -> Kind:
    view = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
    return Kind(func._can_decompose(), view, view or func.overloadpacket in FREE)


def where() -> str:
    """file:line of the innermost caller outside of libraries, then, in brackets, that of the library."""
    frame, library = sys._getframe(2), ""
    while frame:
        path = frame.f_code.co_filename
        if "/torch/" not in path and path != __file__ and not path.startswith("<"):
            spot = f"{path.rsplit('/', 1)[-1]}:{frame.f_lineno}"
            if "site-packages" not in path:
                return f"{spot} ({library})" if library else spot
            library = library or spot
        frame = frame.f_back
    return library or "backward"


# ── the device ──────────────────────────────────────────────────────────────────────────────────────────────────────
class Machine(TorchDispatchMode):
    """Runs every operator on the CPU, after looking at where its arguments are."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels, self.waits = Counter(), Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, op, kind = dict(kwargs or {}), func.overloadpacket, kind_of(func)
        if kind.composite:
            with self:
                return func.decompose(*args, **kwargs)
        tensors = list(tensors_in([*args, *kwargs.values()]))
        before = any(isinstance(x, Pretended) for x in tensors)
        asked = kwargs.get("device")
        after = torch.device(asked).type == NAME if asked is not None else before
        if before and op not in COPIES:
            self.check(func, op, args, tensors)
        if kwargs.get("generator") is not None and after != (Generator.homes.get(kwargs["generator"]._cdata) == NAME):
            raise RuntimeError(f"{func}: expected a generator of the other device [{where()}]")
        if before or after:
            self.count(func, op, args, kwargs, tensors, after)
        if asked is not None and after:
            kwargs["device"] = torch.device("cpu")
        out = self.compute(func, mapped(hold, args), {name: mapped(hold, x) for name, x in kwargs.items()})
        if op is aten.copy_:
            return args[0]
        if not after or op is aten._local_scalar_dense:
            return out
        known = {id(x.held): x for x in tensors if isinstance(x, Pretended)}  # what an in-place operator returns
        with torch.inference_mode(tensors[0].is_inference() if kind.view else torch.is_inference_mode_enabled()):
            return mapped(lambda x: known[id(x)] if id(x) in known else Pretended(x) if isinstance(x, Tensor) else x, out)

    def compute(self, func, args, kwargs):
        """The operator on the CPU, which lacks one: a product of bfloat16 that is summed and kept in float32."""
        if func is aten.mm.dtype:
            return args[0].to(args[2]) @ args[1].to(args[2])
        return func(*args, **kwargs)

    def check(self, func, op, args, tensors) -> None:
        """Raises if CUDA would, for where the arguments are."""
        if op in INDEXING:
            indices = [x for x in args[1] if isinstance(x, Tensor)]
            if not isinstance(args[0], Pretended) and any(isinstance(x, Pretended) for x in indices):
                raise RuntimeError(f"{func}: indices should be on the same device as the indexed tensor (cpu) [{where()}]")
            tensors = [x for x in tensors if not any(x is i for i in indices)]
        strangers = [tuple(x.shape) for x in tensors if not isinstance(x, Pretended) and x.dim() > 0]
        if strangers:
            raise RuntimeError(f"{func}: Expected all tensors to be on the same device; on cpu: {strangers} [{where()}]")

    def count(self, func, op, args, kwargs, tensors, after: bool) -> None:
        """Notes a kernel, and whether the host waits for the device."""
        if not kind_of(func).free:
            self.kernels[str(func)] += 1
        if op in COPIES:
            homes = {isinstance(x, Pretended) for x in tensors} | ({after} if op is aten._to_copy else set())
            if len(homes) == 2 and tensors[-1].numel() and not kwargs.get("non_blocking"):
                to_device = after if op is aten._to_copy else isinstance(args[0], Pretended)
                self.waits[f"{'host to device' if to_device else 'device to host'}  {where()}"] += 1
        elif op in WAITS:
            self.waits[f"{func}  {where()}"] += 1
        elif op in INDEXING:
            indices = [x for x in args[1] if isinstance(x, Tensor)]
            if any(x.dtype == torch.bool for x in indices) and (op is aten.index or args[2].numel() != 1):
                self.waits[f"{func} of a mask  {where()}"] += 1
            if any(not isinstance(x, Pretended) for x in indices):
                self.waits[f"host to device (index)  {where()}"] += 1


@contextlib.contextmanager
def pretend_gpu() -> Iterator[Machine]:
    """Within it, `pretend:0` is a device."""
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(…, device=…) makes a CPU tensor and copies it, visibly
    one_thread = mock.patch.dict(os.environ, HF_DEACTIVATE_ASYNC_LOAD="1")  # where a mode is; transformers loads in others
    try:
        with mock.patch.multiple(torch, Generator=Generator, tensor=tensor), one_thread, Machine() as machine:
            yield machine
    finally:
        torch._C._set_only_lift_cpu_tensors(False)


backend_registration._setup_privateuseone_for_python_backend(NAME, Backend())
