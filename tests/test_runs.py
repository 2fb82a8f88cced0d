"""A run is a value: equal contents have equal ids, and what is accepted changes the result."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrordescent.lab.runs import Run, derived

runs = st.builds(
    Run,
    corruption=st.sampled_from([0.0, 0.1, 0.4]),
    lam=st.one_of(st.floats(0.1, 100), st.just(math.inf)),
    potential=st.sampled_from(["l2", "q=3", "2 * l2"]),
    reduction=st.sampled_from(["sample", "batch"]),
    lr=st.floats(1e-3, 0.1),
    epochs=st.integers(1, 500),
    seed=st.integers(0, 2**31),
)


@given(runs)
def test_json_and_back_is_the_same_run(run: Run) -> None:
    again = Run.from_dict(json.loads(json.dumps(run.to_dict(), allow_nan=False)))
    assert again == run
    assert again.id == run.id


@given(runs, runs)
def test_ids_are_equal_where_the_contents_are(one: Run, other: Run) -> None:
    assert (one.id == other.id) == (one == other)


def test_every_setting_is_in_the_id() -> None:
    other: dict[str, Any] = {
        "data": "mnist",
        "label": "species",
        "without": "id",
        "test": "test.csv",
        "test_share": 0.3,
        "corruption": 0.4,
        "model": "cnn",
        "start": "near-zero",
        "augment": "crop",
        "loss": "elr",
        "algorithm": "smd",
        "lam": 3.0,
        "potential": "q=3",
        "reduction": "batch",
        "penalty": "huber",
        "lr": 0.2,
        "momentum": 0.9,
        "batch_size": 64,
        "epochs": 7,
        "stop": "never",
        "patience": 7,
        "every": 7,
        "precision": "float32",
        "seed": 7,
    }
    changed = {name: Run(**{name: value}).id for name, value in other.items()}
    changed["acceleration"] = Run(algorithm="sgd", momentum=0.9, acceleration="nesterov").id
    changed["decay"] = Run(algorithm="sgd", decay=5e-4).id
    changed["mixup"] = Run(algorithm="sgd", mixup=0.2).id
    changed["schedule"] = Run(algorithm="sgd", schedule="cosine").id
    changed["noise"] = Run(noise="pair", corruption=0.1).id
    changed["memory"] = Run(loss="elr", memory=0.9).id
    changed["noise_file"] = Run(noise="file", noise_file="a.txt").id
    assert set(changed) == {field.name for field in dataclasses.fields(Run)}
    assert len({*changed.values(), Run().id}) == len(changed) + 1


def test_whole_numbers_and_text_are_the_numbers_they_say() -> None:
    assert Run(lam=2) == Run(lam=2.0) == Run.from_dict({"lam": "2"})
    assert Run.from_dict({"epochs": "10"}).epochs == 10


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algoritm": "sgd"}, "unknown setting 'algoritm' \\(did you mean 'algorithm'\\?\\)"),
        ({"model": "ccn"}, "model must be one of .* got 'ccn' \\(did you mean 'cnn'\\?\\)"),
        ({"lam": "two"}, "lam must be a number, got 'two'"),
        ({"lam": 0}, "lam must be > 0"),
        ({"lam": math.nan}, "lam must be > 0"),
        ({"lam": 0.05}, "lr/lam must be < 2"),
        ({"epochs": 1.5}, "epochs must be a whole number"),
        ({"epochs": True}, "epochs must be a whole number"),
        ({"data": 3}, "data must be text"),
        ({"corruption": 1.1}, "corruption must be in \\[0, 1\\]"),
        ({"potential": "l3"}, "unknown potential 'l3'"),
        ({"algorithm": "sgd", "lam": 2}, "lam is for rmd and weight-decay"),
        ({"algorithm": "weight-decay"}, "weight-decay needs lam"),
        ({"decay": 1e-4}, "decay is for sgd"),
        ({"algorithm": "sgd", "decay": -1e-4}, "decay must be >= 0"),
        ({"schedule": "cosine"}, "schedule is for sgd"),
        ({"mixup": 0.2}, "mixup is for sgd"),
        ({"algorithm": "sgd", "mixup": -1}, "mixup must be >= 0"),
        ({"algorithm": "sgd", "loss": "elr", "mixup": 0.2}, "mixup does not go with loss 'elr'"),
        ({"memory": 0.9}, "memory does nothing with loss 'ce'"),
        ({"loss": "elr", "memory": 1.0}, r"memory must be in \[0, 1\)"),
        ({"algorithm": "sgd", "acceleration": "nesterov"}, "'nesterov' does nothing without momentum"),
        ({"loss": "cse"}, "loss must be one of ce, gce, elr, got 'cse'"),
        ({"algorithm": "sgd", "potential": "l1"}, "potential is for smd and rmd"),
        ({"algorithm": "smd", "reduction": "batch"}, "reduction is for rmd"),
        ({"algorithm": "smd", "penalty": "huber"}, "penalty is for rmd"),
        ({"algorithm": "weight-decay", "lam": math.inf}, "that is sgd"),
        ({"noise": "pair"}, "noise 'pair' does nothing without corruption"),
        ({"stop": "never", "patience": 7}, "patience does nothing"),
        ({"data": "a.csv", "test": "b.csv", "test_share": 0.3}, "test_share does nothing"),
        ({"data": ""}, "data must be a name or a path"),
        ({"noise": "file"}, "noise 'file' needs noise_file"),
        ({"noise_file": "a.txt"}, "noise_file does nothing with noise 'uniform'"),
        ({"noise": "file", "noise_file": "a.txt", "corruption": 0.1}, "corruption does nothing"),
    ],
)
def test_what_does_not_fit_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Run.from_dict(settings)


def test_streams_differ() -> None:
    assert len({derived(seed, name, epoch) for seed in range(5) for name in "ab" for epoch in range(5)}) == 50


BEYOND: dict[str, Any] = {"momentum": 1.0, "lr": 0.0, "every": 0, "batch_size": 0, "patience": 0, "epochs": math.inf}


@pytest.mark.parametrize("name", BEYOND)
def test_the_ends_of_what_is_allowed(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Run(**{name: BEYOND[name]})


def test_more_ends_of_what_is_allowed() -> None:
    for settings in ({"decay": math.inf}, {"mixup": math.inf}):
        with pytest.raises(ValueError, match=next(iter(settings))):
            Run(algorithm="sgd", **settings)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="lam"):
        Run(lam=10**400)
    assert Run(corruption=1.0).corruption == 1
    assert Run().lam == 2
    assert "mixup" in Run(algorithm="sgd", mixup=0.2).title


def test_derived_seeds_do_not_meet() -> None:
    assert len({derived(0, "order", k) for k in range(2000)}) == 2000
