"""The spec of local training, and what of it every framework shares."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.errors import UsageError
from swarm.core.training import OPTIMIZER_OPTIONS, LocalTraining
from swarm.tasks.local import LossScale, check_trainable, clip_factor, native_arguments

NAMES = {name for options in OPTIMIZER_OPTIONS.values() for name in options}
ADAM = ("betas", "eps", "weight_decay", "amsgrad")


def spec(optimizer: str, **options: Any) -> LocalTraining:
    if optimizer == "momentum":
        options = {"momentum": 0.5, **options}
    return LocalTraining(optimizer=optimizer, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("optimizer", OPTIMIZER_OPTIONS)
def test_options_are_the_given_ones_or_the_tables(optimizer: str) -> None:
    table = OPTIMIZER_OPTIONS[optimizer]  # type: ignore[index]
    for name in NAMES:
        value: Any = True if name in ("nesterov", "bias_correction") else 0.25
        more = {"momentum": 0.5} if name in ("dampening", "nesterov") else {}
        if name in table:
            assert spec(optimizer, **{**more, name: value}).option(name) == value
            assert spec(optimizer).option(name) == (0.5 if table[name] is None else table[name])
        else:
            with pytest.raises(ValueError, match=f"{optimizer} has no {name}; it has lr"):
                spec(optimizer, **{name: value})
            with pytest.raises(KeyError):
                spec(optimizer).option(name)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"optimizer": "momentum"}, "momentum needs its momentum"),
        ({"optimizer": "sgd", "nesterov": True}, "nesterov needs a momentum"),
        ({"optimizer": "sgd", "nesterov": True, "momentum": 0.9, "dampening": 0.1}, "no dampening"),
        ({"optimizer": "sgd", "dampening": 0.1}, "dampening needs a momentum"),
        ({"optimizer": "adam", "eps": 0.0}, "eps must be >= 1e-15"),
        ({"optimizer": "adamw", "beta2": 1.0}, "beta2 must be < 1"),
        ({"optimizer": "lamb"}, "optimizer must be one of sgd"),
        ({"clip_grad_norm": -1.0}, "clip_grad_norm must be >= 0"),
        ({"clip_grad_norm": math.inf}, "clip_grad_norm must be a finite number"),
        ({"lr": math.nan}, "lr must be a finite number"),
        ({"schedule": "cosine"}, "schedule cosine needs schedule_rounds"),
        ({"schedule_rounds": 3}, "schedule_rounds needs a schedule"),
        ({"native": {"eps": math.inf}}, "native option eps must be finite"),
    ],
)
def test_a_spec_that_means_nothing_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        LocalTraining(**given)


@given(
    schedule=st.sampled_from(["constant", "cosine", "step"]),
    rounds=st.integers(1, 50),
    warmup=st.integers(0, 20),
    round=st.integers(0, 200),
    done=st.floats(0, 1, exclude_max=True),
)
def test_a_rate_is_between_zero_and_the_given_one(schedule: Any, rounds: int, warmup: int, round: int, done: float) -> None:
    more = {} if schedule == "constant" else {"schedule_rounds": rounds}
    made = LocalTraining(lr=0.3, schedule=schedule, warmup_rounds=warmup, **more)
    assert 0 <= made.rate(round, done) <= 0.3


def test_schedules() -> None:
    assert LocalTraining(lr=0.3).rate(1000, 0.5) == 0.3
    cosine = LocalTraining(lr=0.3, schedule="cosine", schedule_rounds=10)
    assert [cosine.rate(0, 0.0), cosine.rate(5, 0.0), cosine.rate(10, 0.0), cosine.rate(99, 0.9)] == pytest.approx(
        [0.3, 0.15, 0, 0]
    )
    step = LocalTraining(lr=0.3, schedule="step", schedule_rounds=2, schedule_factor=0.5)
    assert [step.rate(round, 0.9) for round in range(6)] == pytest.approx([0.3, 0.3, 0.15, 0.15, 0.075, 0.075])
    warm = LocalTraining(lr=0.3, warmup_rounds=2)
    assert [warm.rate(0, 0.0), warm.rate(0, 0.5), warm.rate(1, 0.5), warm.rate(2, 0.0)] == pytest.approx([0, 0.075, 0.225, 0.3])


@given(norm=st.floats(0, 1e30), limit=st.none() | st.floats(0, 1e30))
def test_clipping_never_lengthens_and_keeps_to_the_limit(norm: float, limit: float | None) -> None:
    factor = clip_factor(LocalTraining(clip_grad_norm=limit), norm)
    assert 0 <= factor <= 1
    if limit is None:
        assert factor == 1
    else:
        tiny = norm * 5e-324  # a factor below the normal numbers is exact to their spacing only
        assert norm * factor <= limit * (1 + 1e-12) + tiny
        assert factor == 1 or norm >= limit
    if limit == 0:
        assert factor == 0


@given(st.lists(st.booleans(), max_size=400))
def test_the_loss_scale_is_a_power_of_two_within_its_bounds(finite: list[bool]) -> None:
    scale, good = LossScale(LocalTraining(local_dtype="F16")), 0
    for one in finite:
        before = scale.value
        if one:
            scale.kept()
            good += 1
            grown = good >= 100 and before < 2.0**15
            assert scale.value == (before * 2 if grown else before)
            good = 0 if grown else good
        else:
            assert scale.halved() == (before > 1)
            assert scale.value == max(1.0, before / 2)
            good = 0
        assert 1 <= scale.value <= 2**15
        assert math.frexp(scale.value)[0] == 0.5


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_only_f16_scales_the_loss(dtype: Any) -> None:
    scale = LossScale(LocalTraining(local_dtype=dtype))
    assert scale.value == 1
    assert not scale.halved()


def test_native_arguments_are_the_specs_options_and_those_of_native() -> None:
    made = native_arguments(spec("adamw", beta1=0.5, native={"amsgrad": True, "eps": 1e-6}), kind="AdamW", accepted=ADAM)
    assert made == {"betas": (0.5, 0.999), "eps": 1e-6, "weight_decay": 0.01, "amsgrad": True}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"native": {"amsgrat": True}}, "'amsgrat' is none of AdamW; it has amsgrad, betas, eps, weight_decay"),
        ({"eps": 1e-8, "native": {"eps": 1e-6}}, "eps is given twice"),
        ({"beta2": 0.9, "native": {"betas": 0.9}}, "beta2 is given twice"),
        ({"bias_correction": False, "native": {"amsgrad": True}}, "AdamW has no bias_correction"),
    ],
)
def test_native_options_that_do_not_fit_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        native_arguments(spec("adamw", **options), kind="AdamW", accepted=ADAM)


@pytest.mark.parametrize(("dtype", "fits"), [("torch.float32", True), ("mlx.core.float32", True), ("torch.float64", False)])
def test_only_f32_is_trained(dtype: str, fits: bool) -> None:
    if fits:
        check_trainable({"w": dtype})
    else:
        with pytest.raises(UsageError, match="w is float64"):
            check_trainable({"w": dtype})
    with pytest.raises(UsageError, match="no trainable"):
        check_trainable({})
