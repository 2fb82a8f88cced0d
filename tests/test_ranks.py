"""Several ranks are one: two that share a batch train as one does on all of it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import ranks
import torch
from ranks import CASES, LOCAL, NOT_SHARDED, RISING, SHARDED, batches, loss, optimizer_of, problem, stepped
from torch import Tensor

import mirrordescent as md

WORLD = 2

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="needs gloo"
)


NO_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=NO_CUDA)])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank ended with; one GPU serves all of them."""
    folder = tmp_path_factory.mktemp("ranks")
    words = [
        [sys.executable, ranks.__file__, str(rank), str(WORLD), str(folder), request.param] for rank in range(WORLD)
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [subprocess.Popen(word, env=environment, stderr=subprocess.PIPE, text=True) for word in words]
    try:
        for process in processes:
            _, said = process.communicate(timeout=120)
            assert process.returncode == 0, said
    finally:
        for process in processes:
            process.kill()
    return [torch.load(folder / f"{rank}.pt", map_location="cpu", weights_only=True) for rank in range(WORLD)]


def alone(case: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """One rank on all samples of a step; under Algorithm 2 each rank's are a batch of their own."""
    _, _, model = problem()
    optimizer = optimizer_of(case, model)
    for index in batches(WORLD * LOCAL * case.get("micro", 1)):
        optimizer.zero_grad()
        parts = index.split(LOCAL) if case.get("reduction") == "batch" else [index]
        for part in parts:
            (loss(optimizer, model, part) / len(parts)).backward()
        if "clip" in case:
            optimizer.clip_grad_norm_(case["clip"])
        optimizer.step()
    return model.weight.detach(), optimizer.aux.values


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_train_as_one_does(found: list[dict[str, Any]], name: str) -> None:
    w, z = alone(CASES[name])
    for rank in found:
        torch.testing.assert_close(rank[name]["w"], w, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(rank[name]["z"], z, rtol=1e-12, atol=1e-12)
    assert torch.equal(found[0][name]["z"], found[1][name]["z"])
    assert z.count_nonzero() > len(z) / 2


def test_uneven_ranks_stay_on_the_way_to_the_minimiser(found: list[dict[str, Any]]) -> None:
    """w − w₀ = −λ Xᵀz for ½‖w‖² and a linear model: what makes z = r the condition of the minimiser."""
    x, _, model = problem()
    for rank in found:
        moved = rank["uneven"]["w"] - model.weight.detach()
        torch.testing.assert_close(moved[0], -0.5 * x.T @ rank["uneven"]["z"], rtol=1e-12, atol=1e-12)
        assert float(moved.norm()) > 0.1


def test_a_rank_may_train_a_model_of_its_own(found: list[dict[str, Any]]) -> None:
    for rank, of_rank in enumerate(found):
        _, _, model = problem()
        optimizer = optimizer_of({}, model)
        for index in batches(LOCAL)[rank:]:
            optimizer.zero_grad()
            loss(optimizer, model, index).backward()
            optimizer.step()
        torch.testing.assert_close(of_rank["own"]["w"], model.weight.detach(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(of_rank["own"]["z"], optimizer.aux.values, rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore:a batch of 3 after one of 6")  # as the other rank is empty
@pytest.mark.parametrize("convention", ["paper", "objective"])
def test_a_rank_without_samples_gives_none(found: list[dict[str, Any]], convention: str) -> None:
    """Gradients of 0 are averaged with the others', which weigh half then; z's steps under "paper" do not."""
    _, _, model = problem()
    optimizer = optimizer_of({"lam_convention": convention}, model)
    for k, index in enumerate(batches(2 * LOCAL)):
        optimizer.zero_grad()
        if k % 2:
            loss(optimizer, model, index).backward()
            optimizer.step()
            continue
        (loss(optimizer, model, index[:LOCAL]) / 2).backward()
        before = optimizer.aux.values.clone()
        optimizer.step()
        if convention == "objective":
            optimizer.aux.values.copy_((before + optimizer.aux.values) / 2)
    for rank in found:
        torch.testing.assert_close(rank["empty"][convention]["w"], model.weight.detach(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(rank["empty"][convention]["z"], optimizer.aux.values, rtol=1e-12, atol=1e-12)


def test_gradients_of_0_count_and_what_is_not_finite_moves_no_z(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert rank["zero"].count_nonzero() == WORLD * LOCAL
        assert not rank["nan"].any()


def test_ranks_that_do_not_train_together_are_told(found: list[dict[str, Any]]) -> None:
    for rank in found:
        models, z = rank["told"]
        assert "gradients differ between the 2 ranks" in models
        assert "z differs between the ranks" in z
        assert rank["smd"]
        assert "process_group is of other ranks" in rank["of others"]


@pytest.mark.parametrize("name", SHARDED)
def test_each_rank_steps_the_part_that_it_has(found: list[dict[str, Any]], name: str) -> None:
    """Large enough to be stepped in pieces, cut along rows and along columns, evenly or not."""
    whole = stepped(SHARDED[name], WORLD, sharded=False)
    for rank in found:
        torch.testing.assert_close(rank["sharded"][name], whole, rtol=1e-12, atol=1e-12)


def test_every_rank_finds_the_step_size_of_the_whole(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert rank["size of shards"] == pytest.approx(md.step_size([RISING], "linf"), rel=1e-5)


def test_a_potential_that_needs_a_whole_tensor_is_refused_where_it_is_sharded(found: list[dict[str, Any]]) -> None:
    for rank in found:
        for name in NOT_SHARDED:
            assert "is sharded (a DTensor), and potential" in rank["refused shards"][name]
