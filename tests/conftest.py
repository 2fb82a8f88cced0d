from __future__ import annotations

import pytest
import torch
from hypothesis import settings

pytest.register_assert_rewrite("cases", "reference", "official_files", "browser", "findings")  # says both sides

# The same examples on every machine: a failure in CI is a failure here.
settings.register_profile("repeatable", derandomize=True, deadline=None)  # nor does a busy machine fail it
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
