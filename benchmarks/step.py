"""One optimizer step against torch.optim.SGD and against moving the bytes.

A step has to read w and g and write w: 12 bytes per float32 weight. The machine's own copy speed says how long that
takes at best.

    python benchmarks/step.py                          # what this machine has
    python benchmarks/step.py --out results/step.json
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from recording import device, record
from torch import Tensor, nn

import mirrordescent as md
from mirrordescent.lab.memory import keep_freed_memory
from mirrordescent.lab.models import ResNet18
from mirrordescent.lab.timing import alternating, captured, ratio
from mirrordescent.pending import Batch, gradients

POTENTIALS = ("l2", "l1", "q=1.5", "q=3", "linf", "entropy", "hypentropy", "2 * l2", "quadratic")
# Small enough to leave the weights as they are over thousands of steps.
LR = 1e-12


def weights(shape: torch.Size) -> nn.Parameter:
    w = nn.Parameter(torch.empty(shape, device=device()).uniform_(0.01, 0.1))
    w.grad = torch.randn(shape, device=device())
    return w


def named(potential: str, w: Tensor) -> md.Potential:
    """The potential; "quadratic" is the one with a weight for every element."""
    return md.Quadratic(torch.rand_like(w) + 0.5) if potential == "quadratic" else md.potential(potential)


def rmd_step(optimizer: md.RMD) -> Callable[[], object]:
    """RMD's step alone, of w and z, with the batch and the gradients already there."""
    index = torch.arange(128, device=device())
    slope = torch.full((128,), -0.1, device=device())
    batch = Batch(index, slope, torch.ones((), device=device()), ended=True)

    def step() -> None:
        optimizer._pending.batches.append(batch)
        optimizer._pending.remember(gradients(optimizer._params()))
        optimizer.step()

    return step


def transient(step: Callable[[], object]) -> int | None:
    """The memory that a step needs while it runs, in bytes."""
    if not torch.cuda.is_available():
        return None
    step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before, "a step left memory behind"
    return torch.cuda.max_memory_allocated() - before


def optimizers(params: list[nn.Parameter], path: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """SGD, SMD and RMD with ℓ2 on the same tensors."""
    rmd = md.RMD(params, lr=LR, lam=20 * LR, num_samples=50_000, **path)
    return {
        "sgd": torch.optim.SGD(params, lr=LR, **path).step,
        "smd": md.SMD(params, lr=LR, **path).step,
        "rmd": rmd_step(rmd),
    }


def large_tensor(elements: int, blocks: int, repeats: int) -> dict[str, Any]:
    """Every closed form on one large tensor, against fused SGD and against a copy."""
    w = weights(torch.Size([elements]))
    target = torch.empty_like(w)

    def copy_all() -> None:
        target.copy_(w.detach())

    fast: dict[str, Any] = {"fused": True}
    calls: dict[str, Callable[[], object]] = {"copy": copy_all, **optimizers([w], fast)}
    on_gpu = w.is_cuda
    results: dict[str, Any] = {}
    times = alternating(calls, blocks=blocks, repeats=repeats, device=device())
    copy = median(times["copy"]) / (8 * elements)  # seconds per byte moved
    results["copy_gb_per_s"] = 1e-9 / copy
    for name in ("smd", "rmd"):
        found = ratio(times, name, "sgd")
        results[f"{name} l2 / sgd"] = {"ratio": found.middle, "quartiles": [found.low, found.high]}
    for name in POTENTIALS:
        with torch.no_grad():
            w.uniform_(0.01, 0.1)
        psi = named(name, w)
        path = fast if on_gpu or psi.linear is not None else {}
        step = md.SMD([w], lr=LR, potential=psi, **path).step
        fewer = 1 if on_gpu or psi.linear is not None else 10  # a path of many operations, on a CPU
        times = alternating({name: step}, blocks=-(-blocks // fewer), repeats=-(-repeats // fewer), device=device())
        took = median(times[name])
        moved = elements * (16 if name == "quadratic" else 12)
        results[f"smd {name}"] = {
            "ms": took * 1e3,
            "of_copy_speed": moved * copy / took,
            "transient_bytes": transient(step),
        }
        foreach = md.SMD([w], lr=LR, potential=psi, foreach=True).step
        results[f"smd {name}"]["foreach_transient_per_weight"] = (
            (transient(foreach) or 0) / elements / 4 if on_gpu else None
        )
        del step, foreach
    return results


def iterated(elements: int, blocks: int) -> dict[str, Any]:
    """Potentials without a closed form, which are inverted by iteration, against the q-norm for q = 3."""
    w = weights(torch.Size([elements]))
    found: dict[str, md.Potential] = {
        "q=3": md.QNorm(3),
        "l2 + 0.1 * q=3": md.potential("l2 + 0.1 * q=3"),
        "a function of one's own": md.Convex(lambda w: w.square() / 2 + w**4 / 4, name="own"),
    }
    calls: dict[str, Callable[[], object]] = {
        name: md.SMD([w], lr=1e-6, potential=psi).step for name, psi in found.items()
    }
    times = alternating(calls, blocks=blocks, repeats=1, device=device())
    results: dict[str, Any] = {}
    for name in list(found)[1:]:
        ratios = ratio(times, name, "q=3")
        results[f"smd {name} / smd q=3"] = {"ratio": ratios.middle, "quartiles": [ratios.low, ratios.high]}
    return results


def resnet_tensors(blocks: int, repeats: int) -> dict[str, Any]:
    """ResNet-18's 62 tensors: on a GPU under graph replay and eagerly, on the CPU as it is."""
    params = [weights(w.shape) for w in ResNet18().parameters()]
    results: dict[str, Any] = {}
    ways: dict[str, tuple[dict[str, Any], bool]] = {
        "foreach": ({"foreach": True}, False),
        "fused": ({"fused": True}, False),
    }
    if torch.cuda.is_available():
        ways["fused, graph"] = ({"fused": True}, True)
    for way, (path, graph) in ways.items():
        calls = optimizers(params, path)
        if graph:
            calls = {name: captured(call) for name, call in calls.items()}
        times = alternating(calls, blocks=blocks, repeats=repeats, device=device())
        for name in ("smd", "rmd"):
            found = ratio(times, name, "sgd")
            results[f"{way}: {name} / sgd"] = {"ratio": found.middle, "quartiles": [found.low, found.high]}
        if torch.cuda.is_available():
            results[f"{way}: sgd us"] = median(times["sgd"]) * 1e6
    for name in ("q=3", "linf", "entropy", "hypentropy"):
        if torch.cuda.is_available():
            with torch.no_grad():
                for w in params:
                    w.uniform_(0.01, 0.1)
            step = captured(md.SMD(params, lr=LR, potential=name, fused=True).step)
            results[f"fused, graph: smd {name} us"] = (
                median(alternating({"x": step}, blocks=blocks, repeats=repeats, device=device())["x"]) * 1e6
            )
    return results


def show(title: str, results: dict[str, Any]) -> None:
    print(f"\n{title}")
    for name, value in results.items():
        if isinstance(value, dict) and "ratio" in value:
            print(f"  {name:34} {value['ratio']:.3f}   [{value['quartiles'][0]:.3f}, {value['quartiles'][1]:.3f}]")
        elif isinstance(value, dict):
            parts = [f"{100 * value['of_copy_speed']:.0f} % of copy speed"]
            if value["transient_bytes"] is not None:
                parts.append(f"transient {value['transient_bytes']} bytes")
                parts.append(f"foreach needs {value['foreach_transient_per_weight']:.1f} x the weights")
            print(f"  {name:34} {', '.join(parts)}")
        else:
            print(f"  {name:34} {value:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, help="the large tensor (default: 10^9 on a GPU, 2^24 on the CPU)")
    parser.add_argument("--out", type=Path, help="where to write the record")
    arguments = parser.parse_args()
    keep_freed_memory()  # as the command rmd does
    on_gpu = torch.cuda.is_available()
    elements = arguments.elements or (10**9 if on_gpu else 1 << 24)
    large = large_tensor(elements, blocks=11, repeats=10)
    show(f"one tensor of {elements:,} weights", large)
    without = iterated(min(elements, 1 << 20), blocks=11)
    show("without a closed form", without)
    many = resnet_tensors(blocks=21, repeats=200 if on_gpu else 20)
    show("ResNet-18's 62 tensors", many)
    results = {"elements": elements, "large tensor": large, "without a closed form": without, "resnet-18": many}
    record("step", results, arguments.out)


if __name__ == "__main__":
    main()
