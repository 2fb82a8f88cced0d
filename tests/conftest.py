from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings
from standin import has_interpreter, stand_in

pytest.register_assert_rewrite("cases", "reference", "official_files", "browser", "findings")  # says both sides

# The same examples on every machine: a failure in CI is a failure here.
settings.register_profile("repeatable", derandomize=True, deadline=None)  # nor does a busy machine fail it
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _gpu(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where there is none, a test of a GPU runs on a stand-in, if that can do what it needs."""
    if torch.cuda.is_available() or not request.node.get_closest_marker("cuda"):
        yield
    elif marker := request.node.get_closest_marker("standin"):
        kernels = marker.kwargs.get("kernels", False)
        if kernels and not has_interpreter():
            pytest.skip("needs a CUDA device, or Triton 3.7")
        with stand_in(kernels=kernels):
            yield
    else:
        pytest.skip("needs a CUDA device")
