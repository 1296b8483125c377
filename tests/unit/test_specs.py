"""Specs: one source of defaults, ranges and help, enforced wherever a spec is made."""

import math
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from swarm.core.options import MAX_INT, Option, check_ranges, options
from swarm.core.specs import DiLoCo

BY_NAME = {option.name: option for option in options(DiLoCo)}


def valid() -> st.SearchStrategy[DiLoCo]:
    @st.composite
    def build(draw: st.DrawFn) -> DiLoCo:
        sync_every = draw(st.integers(1, 1000))
        beat_s = draw(st.floats(0.01, 60))
        return DiLoCo(
            sync_every=sync_every,
            fragments=draw(st.integers(1, sync_every)),
            overlap_steps=draw(st.integers(0, sync_every - 1)),
            quorum_size=draw(st.integers(1, 100)),
            start_learners=draw(st.none() | st.integers(1, 100)),
            grace_s=draw(st.none() | st.floats(0, 1e6)),
            outer_lr=draw(st.floats(1e-6, 10)),
            outer_momentum=draw(st.floats(0, 0.999)),
            delta_dtype=draw(st.sampled_from([None, "F32", "F16", "BF16"])),
            beat_s=beat_s,
            lease_s=draw(st.floats(2 * beat_s, 3600)),
            keep_s=draw(st.floats(0.1, 1e6)),
        )

    return build()


@given(valid())
def test_what_can_be_made_can_be_written_and_read(spec: DiLoCo) -> None:
    assert msgspec.json.decode(msgspec.json.encode(spec), type=DiLoCo) == spec


def test_the_tag_names_the_method() -> None:
    assert msgspec.json.decode(msgspec.json.encode(DiLoCo()))["method"] == "diloco"
    assert msgspec.json.decode(b'{"method":"diloco"}', type=DiLoCo) == DiLoCo()
    with pytest.raises(msgspec.ValidationError, match="fedavg"):
        msgspec.json.decode(b'{"method":"fedavg"}', type=DiLoCo)


def test_defaults_are_those_of_the_paper_and_the_format() -> None:
    spec = DiLoCo()
    assert (spec.outer_lr, spec.outer_momentum) == (0.7, 0.9)
    assert (spec.beat_s, spec.lease_s, spec.keep_s) == (5, 30, 600)
    assert spec.fragments == 1
    assert spec.overlap_steps == 0


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("sync_every", 0),
        ("sync_every", -(10**400)),
        ("sync_every", 10**400),
        ("sync_every", MAX_INT + 1),
        ("sync_every", 1.5),
        ("sync_every", True),
        ("sync_every", "20"),
        ("sync_every", None),
        ("fragments", 0),
        ("fragments", 101),
        ("overlap_steps", -1),
        ("overlap_steps", 100),
        ("quorum_size", 0),
        ("start_learners", 0),
        ("start_learners", 1.5),
        ("grace_s", -0.1),
        ("grace_s", math.inf),
        ("outer_lr", 0.0),
        ("outer_lr", -1),
        ("outer_lr", math.nan),
        ("outer_lr", 10**400),
        ("outer_momentum", -0.1),
        ("outer_momentum", 1.0),
        ("delta_dtype", "F8"),
        ("delta_dtype", "f32"),
        ("beat_s", 0),
        ("beat_s", 0.001),  # a forged manifest must not make its learners hammer the share …
        ("beat_s", 16.0),
        ("beat_s", 60.1),  # … nor whoever lists the runs wait for two beats without end
        ("lease_s", 0),
        ("lease_s", 9.9),
        ("lease_s", 3601),
        ("lease_s", math.inf),
        ("lease_s", math.nan),
        ("keep_s", 0),
        ("keep_s", "600"),
    ],
    ids=lambda value: str(value)[:12],
)
def test_a_value_out_of_range_is_refused_with_its_name(field: str, bad: Any) -> None:
    with pytest.raises(ValueError, match=field if field != "beat_s" else "beat_s|lease_s") as made:
        DiLoCo(**{field: bad})
    assert str(bad)[:20] in str(made.value) or field == "beat_s"
    if not (isinstance(bad, float) and not math.isfinite(bad)) and bad is not None:
        body = msgspec.json.encode({"method": "diloco", field: bad})
        with pytest.raises(msgspec.ValidationError, match=field if field != "beat_s" else "beat_s|lease_s"):
            msgspec.json.decode(body, type=DiLoCo)


def test_messages_name_field_and_value() -> None:
    with pytest.raises(ValueError, match=r"^sync_every must be >= 1, got 0$"):
        DiLoCo(sync_every=0)
    with pytest.raises(ValueError, match=r"^outer_momentum must be < 1, got 1\.5$"):
        DiLoCo(outer_momentum=1.5)
    with pytest.raises(ValueError, match=r"^fragments must be <= sync_every \(20\), got 21$"):
        DiLoCo(sync_every=20, fragments=21)
    with pytest.raises(ValueError, match=r"^overlap_steps must be < sync_every \(20\), got 20$"):
        DiLoCo(sync_every=20, overlap_steps=20)
    with pytest.raises(ValueError, match=r"^lease_s must be >= 2 × beat_s \(20\), got 19$"):
        DiLoCo(beat_s=10, lease_s=19)
    with pytest.raises(ValueError, match=r"^delta_dtype must be one of F32, F16, BF16, F8_E4M3, F4, got 'F2'$"):
        DiLoCo(delta_dtype="F2")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^in_flight must be <= fragments \(2\), got 3$"):
        DiLoCo(fragments=2, in_flight=3)
    with pytest.raises(ValueError, match=r"^global_batch_size must be >= start_learners \(4\), got 3$"):
        DiLoCo(quorum_size=4, global_batch_size=3)
    with pytest.raises(ValueError, match=r"^follow must be true or false, got 1$"):
        DiLoCo(follow=1)  # type: ignore[arg-type]


def test_a_global_batch_is_shared_by_the_starters() -> None:
    assert DiLoCo().batch_size is None
    assert DiLoCo(global_batch_size=32, quorum_size=4).batch_size == 8
    assert DiLoCo(global_batch_size=32, start_learners=5).batch_size == 7


@given(st.integers(1, 50), st.none() | st.integers(1, 50))
def test_the_starters_are_the_quorum_unless_said_otherwise(quorum: int, start: int | None) -> None:
    assert DiLoCo(quorum_size=quorum, start_learners=start).starters == (quorum if start is None else start)


def test_every_field_is_an_option_in_order() -> None:
    assert list(BY_NAME) == [field.name for field in msgspec.structs.fields(DiLoCo)]
    for field in msgspec.structs.fields(DiLoCo):
        option = BY_NAME[field.name]
        assert option.default == field.default
        assert option.help, f"{field.name} has no help"
        assert not option.help.endswith(".")
        assert option.optional == (field.default is None)
        assert option.type in (int, float, str, bool)


def test_an_option_is_derived_right() -> None:
    assert BY_NAME["sync_every"] == Option(
        "sync_every", int, 100, False, (), 1, "inner steps between two rounds of one fragment (H)", ((">=", 1),)
    )
    start, grace, dtype = BY_NAME["start_learners"], BY_NAME["grace_s"], BY_NAME["delta_dtype"]
    assert (start.type, start.optional, start.minimum, start.choices) == (int, True, 1, ())
    assert (grace.type, grace.optional, grace.minimum, grace.default) == (float, True, 0, None)
    assert (dtype.type, dtype.optional, dtype.minimum, dtype.choices) == (
        str,
        True,
        None,
        ("F32", "F16", "BF16", "F8_E4M3", "F4"),
    )
    follow = BY_NAME["follow"]
    assert (follow.type, follow.optional, follow.default, follow.choices) == (bool, False, True, ())
    assert (BY_NAME["outer_lr"].type, BY_NAME["outer_lr"].default, BY_NAME["outer_lr"].minimum) == (float, 0.7, 0)


@given(st.data())
def test_the_minimum_of_an_option_is_where_the_range_ends(data: st.DataObject) -> None:
    option = data.draw(st.sampled_from([o for o in BY_NAME.values() if o.minimum is not None]))
    assert option.minimum is not None
    below = option.type(option.minimum - data.draw(st.integers(1, 1000)))
    with pytest.raises(ValueError, match=f"^{option.name} must be >=? ?{option.minimum:g}, got"):
        DiLoCo(**{option.name: below})


class Every(msgspec.Struct, frozen=True):
    """Each kind of limit once."""

    low: Annotated[int, Meta(ge=2, le=5)] = 2
    open: Annotated[float, Meta(gt=0, lt=1)] = 0.5
    word: Literal["a", "b"] = "a"
    flag: bool = False
    text: str = ""

    def __post_init__(self) -> None:
        check_ranges(self)


@given(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.sampled_from("abc"))
def test_check_ranges_agrees_with_decoding(low: int, open: float, word: str) -> None:
    body = msgspec.json.encode({"low": low, "open": open, "word": word})
    try:
        decoded = msgspec.json.decode(body, type=Every)
    except msgspec.ValidationError:
        with pytest.raises(ValueError, match="must be"):
            Every(low, open, word)  # type: ignore[arg-type]
    else:
        assert Every(low, open, word) == decoded  # type: ignore[arg-type]
