"""A stand-in for a GPU, where there is none: what training does on one can be followed on any machine.

Its tensors say that they lie on cuda:0, and are computed on the CPU. While a graph is captured, or waiting is forbidden
(`torch.cuda.set_sync_debug_mode("error")`), looking at a value and copying between devices fail; an operation on
tensors of two devices fails at any time. A captured graph does what CUDA's does: nothing happens at its capture, and a
replay repeats the operations without Python, on the same memory, with the numbers that Python had at the time. Kernels,
if asked for, are followed by Triton's interpreter, which is slow (that a compiler takes them, test_kernels.py says). Of
streams, autocast (what would be computed in bfloat16 is in float32) and the GPU's own rounding it knows nothing.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from mirrordescent import fused
from mirrordescent.fused import has_triton
from mirrordescent.lab import job, norm, stem

CUDA = torch.device("cuda", 0)
INSIDE = torch.device("meta")  # what PyTorch takes it for: every build has this device, and autograd works there
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # asked whenever a kernel is defined, Triton's own among them
LOOKS = {"aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::masked_select", "aten::nonzero"}
LOOKS |= {"aten::_unique2", "aten::bincount", "aten::repeat_interleave", "aten::unique_consecutive"}
COPIES = {"aten::copy_", "aten::_to_copy"}
SENDS = {"aten::where"}  # takes a number on the CPU, too, and copies it first
INDEXED = {"aten::index", "aten::index_put", "aten::index_put_"}  # by a mask they look where it is true


class There(Tensor):
    """A tensor of the stand-in; what it holds is on the CPU."""

    held: Tensor
    device = CUDA
    is_cuda = True
    is_meta = False

    @staticmethod
    def __new__(cls, held: Tensor) -> There:
        made: There = Tensor._make_wrapper_subclass(
            cls, held.size(), held.stride(), held.storage_offset(), dtype=held.dtype, device=INSIDE
        )
        made.held = held
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"There({self.held})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.held.__reduce_ex__(protocol)  # a checkpoint, which is read on the CPU

    @classmethod  # which torch's own type does not know to be one
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise AssertionError(f"{func} of a tensor of the stand-in, and it is gone")


def has_interpreter() -> bool:
    """Whether Triton is here, and its interpreter can do what our kernels ask for."""
    if not has_triton():
        return False
    release = importlib.metadata.version("triton").split(".")
    return (int(release[0]), int(release[1])) >= (3, 7)


def there(device: Any) -> bool:
    return device is not None and torch.device(device).type in (CUDA.type, INSIDE.type)


class Asking(TorchFunctionMode):
    """Whoever asks for cuda means the device that PyTorch knows."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is Tensor.cuda:
            func, args = Tensor.to, (args[0], CUDA)
        if there(kwargs.get("device")):
            kwargs["device"] = INSIDE
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") == INSIDE:
            del kwargs["device"]
            return func(*args, **kwargs).to(INSIDE)
        # what a model does whose memory format is changed
        if func == Tensor.data.__set__ and all(isinstance(t, There) for t in args):  # type: ignore[attr-defined]
            args[0].held = args[1].held
        names = (torch.device, str) if func is Tensor.to else torch.device
        return func(*(INSIDE if isinstance(a, names) and there(a) else a for a in args), **kwargs)


class Graph:
    """A CUDA graph of the stand-in."""

    def __init__(self) -> None:
        self.operations: list[tuple[Callable[..., Any], Any, Any, Any]] = []
        self._before: dict[int, tuple[Tensor, Tensor]] = {}  # by memory: all of it, and what was there
        self._own: dict[int, Tensor] = {}

    def add(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """One operation more."""
        for t in tensors((args, kwargs)):
            memory = t.untyped_storage()
            if memory._cdata not in self._own and memory._cdata not in self._before:
                whole = t.as_strided((memory.nbytes() // t.element_size(),), (1,), 0)
                self._before[memory._cdata] = whole, whole.clone()
        out = func(*args, **kwargs)
        self.operations.append((func, args, kwargs, out))
        self._own.update(
            (memory, t) for t in tensors(out) if (memory := t.untyped_storage()._cdata) not in self._before
        )
        return out

    def captured(self) -> None:
        """Nothing has happened yet."""
        for whole, before in self._before.values():
            whole.copy_(before)
        self._before.clear()

    def replay(self) -> None:
        for func, args, kwargs, out in self.operations:
            again = func(*args, **kwargs)
            for old, new in zip(tensors(out), tensors(again), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class Stream:
    def __init__(self, *_: Any) -> None: ...

    def wait_stream(self, _: Any) -> None: ...

    def synchronize(self) -> None: ...


class Machine(TorchDispatchMode):
    """Computes on the CPU what is asked of the stand-in's tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.graph: Graph | None = None  # under capture
        self.forbidden = False  # to wait

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        given, device = tensors((args, kwargs)), kwargs.get("device")
        here = [t for t in given if isinstance(t, There)]
        back = device is not None and not there(device)
        if not here and (device is None or back):
            return func(*args, **kwargs)
        name, apart = func.name().partition(".")[0], [t for t in given if not isinstance(t, There)]
        crosses = name in COPIES or (name in INDEXED and isinstance(args[0], There))
        if not (crosses or name in SENDS):  # a number on the CPU goes along with a kernel
            apart = [t for t in apart if t.dim()]
        assert not (here and any(t.dim() for t in apart)) or crosses, f"{name} finds tensors on two devices"
        if self.forbidden or self.graph is not None:
            looks = name in LOOKS or (name in INDEXED and any(t.dtype == torch.bool for t in tensors(args[1])))
            assert not looks, f"{name} makes the host wait"
            copies = back or apart
            assert not copies, f"{name} copies between devices"
        if device is not None:
            kwargs["device"] = torch.device("cpu")
        args, kwargs = tree_map(lambda t: t.held if isinstance(t, There) else t, (args, kwargs))
        out = func(*args, **kwargs) if self.graph is None else self.graph.add(func, args, kwargs)
        if back:
            return out
        known = {id(t.held): t for t in here}  # what was written to in place
        return tree_map(lambda t: known[id(t)] if id(t) in known else There(t) if isinstance(t, Tensor) else t, out)

    def launch(self, kernel: Callable[..., None], *args: Any, **settings: Any) -> None:
        """A kernel, which is one operation more."""
        args, settings = tree_map(lambda t: t.held if isinstance(t, There) else t, (args, settings))
        if self.graph is None:
            kernel(*args, **settings)
        else:
            self.graph.add(kernel, args, settings)

    @contextmanager
    def capture(self, graph: Graph, **_: Any) -> Iterator[None]:
        assert self.graph is None
        self.graph = graph
        try:
            yield
        finally:
            self.graph = None
            graph.captured()

    def forbid(self, mode: str | int) -> None:
        self.forbidden = mode in ("error", 2)


@contextmanager
def stand_in(*, kernels: bool = False) -> Iterator[None]:
    """While it lasts, PyTorch finds a GPU, and Triton is installed only if there are to be kernels."""
    machine = Machine()
    instead: dict[str, Any] = {
        "CUDAGraph": Graph,
        "Stream": Stream,
        "_lazy_init": lambda: None,
        "current_device": lambda: 0,
        "current_stream": Stream,
        "default_stream": Stream,
        "device": lambda _: nullcontext(),
        "device_count": lambda: 1,
        "empty_cache": lambda: None,
        "get_device_capability": lambda *_: (9, 0),
        "get_device_name": lambda *_: "stand-in",
        "get_sync_debug_mode": lambda: 2 * machine.forbidden,
        "graph": machine.capture,
        "is_available": lambda: True,
        "is_bf16_supported": lambda *_: True,
        "is_current_stream_capturing": lambda: machine.graph is not None,
        "mem_get_info": lambda *_: (2**36, 2**37),
        "set_sync_debug_mode": machine.forbid,
        "stream": lambda _: nullcontext(),
        "synchronize": lambda *_: None,
    }
    with ExitStack() as stack:
        for name, value in instead.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        stack.enter_context(mock.patch.object(job, "halved", job.call))
        if kernels:
            stack.enter_context(interpreted_kernels(machine))
        else:
            for module in (fused, norm, stem):
                stack.enter_context(mock.patch.object(module, "has_triton", return_value=False))
        stack.enter_context(machine)
        stack.enter_context(Asking())
        yield


@contextmanager
def interpreted_kernels(machine: Machine) -> Iterator[None]:
    """While it lasts, a kernel's launch is followed by Triton's interpreter."""
    import numpy as np
    from triton import language as tl
    from triton.runtime.interpreter import GridExecutor, InterpreterBuilder, TensorHandle

    from mirrordescent.lab import passes

    interpreted, cast, binary = GridExecutor.__call__, InterpreterBuilder.cast_impl, InterpreterBuilder.binary_op

    def launched(executor: Any, *args: Any, **settings: Any) -> None:
        machine.launch(functools.partial(interpreted, executor), *args, **settings)

    def rounded(builder: Any, number: Any, dtype: Any) -> Any:
        """A cast, which to bfloat16 is to the nearest, not towards 0 as the interpreter has it."""
        if (number.dtype.scalar, dtype.scalar) != (tl.float32, tl.bfloat16):
            return cast(builder, number, dtype)
        return TensorHandle(torch.tensor(number.data).bfloat16().view(torch.uint16).numpy(), tl.bfloat16)

    def combined(builder: Any, *given: Any) -> Any:
        """An operation on two numbers; if it compares them it gives no number, as the interpreter has it."""
        result = binary(builder, *given)
        return TensorHandle(result.data, tl.int1) if result.data.dtype == np.bool_ else result

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(GridExecutor, "__call__", launched))
        stack.enter_context(mock.patch.object(InterpreterBuilder, "cast_impl", rounded))
        stack.enter_context(mock.patch.object(InterpreterBuilder, "binary_op", combined))
        stack.enter_context(mock.patch.object(passes, "_room", return_value=2**17))
        stack.enter_context(np.errstate(all="ignore"))  # a GPU does not warn either
        yield


def tensors(tree: Any) -> list[Tensor]:
    return [t for t in tree_leaves(tree) if isinstance(t, Tensor)]
