import itertools
from collections.abc import Callable

import engine
import numpy as np
import pytest
import step
import torch
import unsaid
from engine import Kernel, Update
from PIL import Image
from torch import Tensor, nn

import mirrordescent as md
from mirrordescent.lab.data import Data
from mirrordescent.lab.runs import Run

RUN = Run(model="cnn", reduction="batch", potential="2 * l2", lam=1.2, batch_size=4)


def data() -> Data:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (12, 3, 8, 8), dtype=torch.uint8, generator=generator)
    y = torch.randint(10, (12,), generator=generator)
    return Data("noise", x, y, x, y, 10, mean=(0.5,) * 3, std=(0.25,) * 3)


def scaled(picture: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255


def steps(updating: Callable[[Run, nn.Module, int], Update]) -> Tensor:
    torch.manual_seed(0)  # of the DataLoader's order
    device = torch.device("cpu")
    loop = engine.plain_steps(RUN, data(), scaled, device, updating, workers=0, bfloat16=False)
    return torch.tensor(list(itertools.islice(loop, 9)))  # three epochs: z comes into play


def test_the_plain_loops_algorithm_2_is_the_librarys() -> None:
    printed, library = steps(engine.printed_update), steps(engine.library_update)
    torch.testing.assert_close(printed, library)
    assert len(printed[:, 0].unique()) == 9


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("sm90_xmma_wgrad_indexed_implicit_gemm_bf16bf16_bf16f32", "convolutions, weights"),
        ("_ZN17cutlass__5x_cudnn6KernelINS_52Conv2dWgradOutputGradientTile", "convolutions, weights"),
        ("sm90_xmma_dgrad_implicit_gemm_bf16bf16", "convolutions, data"),
        ("cutlass_tensorop_bf16_s16816fprop_optimized_bf16", "convolutions, forward"),
        ("void precomputed_convolve_sgemm<float, 1024, 5>", "convolutions, forward"),
        ("triton_poi_fused__native_batch_norm_legit_functional_convolution_backward_2", "batch norm and relu"),
        ("_gradient_sums", "batch norm and relu"),
        ("triton_poi_fused__to_copy_29", "casts and layouts"),
        ("_patches", "casts and layouts"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<float>", "optimizer"),
        ("_step", "optimizer"),
        ("Memset (Unknown)", "the rest"),
    ],
)
def test_a_kernels_group(name: str, group: str) -> None:
    assert engine.group_of(name) == group


def test_a_profile_adds_up() -> None:
    seen = [Kernel("fprop", 0, 4), Kernel("fprop", 2, 6), Kernel("dgrad", 3, 5), Kernel("memset", 8, 10)]
    found = engine.summed(seen, steps=2)
    assert (found["us"], found["kernel_us"], found["between_kernels_us"]) == (5.0, 6.0, 1.0)
    assert found["kernels"] == 2.0
    assert found["kernels_at_once"] == pytest.approx(12 / 8)
    assert found["groups"]["convolutions, forward"] == {"us": 4.0, "number": 1.0}


def test_a_step_of_rmd_by_itself_moves_w_and_z() -> None:
    """What is timed is a whole step, with the batch and the gradients already there."""
    w = nn.Parameter(torch.ones(4))
    w.grad = torch.full((4,), 0.5)
    optimizer = md.RMD([w], lr=0.1, lam=1.0, num_samples=200)
    take = step.rmd_step(optimizer)
    for count in (1, 2):
        take()
        torch.testing.assert_close(w.detach(), torch.full((4,), 1 - 0.05 * count))
        torch.testing.assert_close(optimizer.aux.values[:128], torch.full((128,), 0.01 * count))
    assert not optimizer.aux.values[128:].any()


def test_a_batch_in_parts_is_normalised_part_by_part_and_the_first_is_kept() -> None:
    torch.manual_seed(0)
    norm, alone = nn.BatchNorm2d(4), nn.BatchNorm2d(4)
    x = torch.randn(8, 4, 6, 6)
    outputs = unsaid.in_parts(lambda model, x: model(x), 4)(nn.Sequential(norm), x)
    rest = [nn.BatchNorm2d(4)(part) for part in x[2:].chunk(3)]
    assert torch.equal(outputs, torch.cat([alone(x[:2]), *rest]))
    for name, held in alone.state_dict().items():
        assert name == "num_batches_tracked" or torch.equal(norm.state_dict()[name], held)
    assert norm.momentum == alone.momentum
    assert not torch.allclose(outputs, alone(x))
