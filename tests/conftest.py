from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings
from standin import stand_in

pytest.register_assert_rewrite("cases", "reference", "official_files", "browser", "findings")  # says both sides

# The same examples on every machine: a failure in CI is a failure here.
settings.register_profile("repeatable", derandomize=True, deadline=None)  # nor does a busy machine fail it
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _gpu(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where there is none, tests of a GPU that need none of its kernels run on a stand-in."""
    if torch.cuda.is_available() or not request.node.get_closest_marker("cuda"):
        yield
    elif request.node.get_closest_marker("standin"):
        with stand_in():
            yield
    else:
        pytest.skip("needs a CUDA device")
