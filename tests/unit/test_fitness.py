"""What is said of a share that was tried out."""

from __future__ import annotations

import pytest

from swarm.core import fitness
from swarm.core.fitness import Answer, Race, conclusion, judged, race_tick
from swarm.core.ticks import Tick, failed, ok, warning, wrong


def bids(*won: bool) -> dict[int, Answer]:
    """Answers of processes of which these won; all read what the first winner wrote."""
    first = next((n for n, each in enumerate(won) if each), 0)
    return {n: Answer(wrote=f"w{n}", won=each, read=f"w{first}", whole=True) for n, each in enumerate(won)}


def changed(answers: dict[int, Answer], n: int, **fields: object) -> dict[int, Answer]:
    one = answers[n]
    known = {"wrote": one.wrote, "won": one.won, "error": one.error, "read": one.read, "whole": one.whole}
    return answers | {n: Answer(**(known | fields))}  # type: ignore[arg-type]


def test_one_winner_whose_record_all_read_is_as_it_should_be() -> None:
    assert judged("7", bids(False, True, False)) == {}


def test_two_winners_are_named() -> None:
    assert judged("7", bids(True, False, True)) == {"doubles": "7 (processes 1, 3)"}


def test_a_record_without_a_winner_is_told_unless_a_call_failed() -> None:
    answers = bids(False, False)
    assert judged("7", answers) == {"unwon": "7"}
    assert judged("7", changed(answers, 1, error="EIO")) == {"errors": "EIO"}


@pytest.mark.parametrize("fault", [{"read": ""}, {"read": "w0"}, {"whole": False}])
@pytest.mark.parametrize("who", [0, 1])
def test_what_reads_back_differently_is_told_whoever_reads_it(fault: dict[str, object], who: int) -> None:
    assert judged("7", changed(bids(False, True), who, **fault)) == {"changed": "7"}


def test_a_winner_that_was_replaced_by_a_loser_is_told() -> None:
    answers = bids(True, False)
    for n in answers:
        answers = changed(answers, n, read="w1")
    assert judged("7", answers) == {"changed": "7"}


def test_of_who_failed_nothing_else_is_asked() -> None:
    assert judged("7", changed(bids(True, False), 1, error="EIO", read="", whole=False)) == {"errors": "EIO"}


WELL = Race(processes=8, records=100, took_s=2.0)


@pytest.mark.parametrize(
    ("race", "verdict", "words"),
    [
        (WELL, "ok", "8 processes created 100 records at once"),
        (Race(processes=8, records=100, doubles=("3 (processes 1, 2)",)), "failed", "1 record had more than one winner: 3 ("),
        (Race(processes=8, records=9, unwon=("4", "5")), "failed", "2 records had no winner: 4, 5"),
        (Race(processes=8, records=9, changed=tuple("1234")), "failed", "4 records read back differently than"),
        (Race(processes=8, records=50, stuck=3), "failed", "3 of 8 processes got no answer"),
        (Race(processes=8, records=2, errors=("EIO", "EIO")), "failed", "none went well: EIO"),
        (Race(processes=8, records=50, errors=("EIO",)), "warning", "1 call failed again and again: EIO"),
        (Race(processes=8, records=50, ended=1), "warning", "1 of 8 processes ended"),
        (Race(processes=8, records=3, took_s=4.2), "warning", "only 3 records in 4 s"),
    ],
)  # fmt: skip
def test_a_race_in_words(race: Race, verdict: str, words: str) -> None:
    tick = race_tick(race)
    assert (tick.verdict, words in tick.detail) == (verdict, True), tick
    assert bool(tick.remedy) == (verdict != "ok")


def test_a_double_win_weighs_more_than_whatever_else_happened() -> None:
    found = race_tick(Race(processes=8, records=3, doubles=("3",), stuck=2, ended=1, errors=("EIO",) * 3))
    assert "more than one winner" in found.detail
    assert "SMB or NFS" in found.remedy


@pytest.mark.parametrize(
    ("tick", "verdict", "words"),
    [
        (fitness.visibility_tick([0.0, 0.0002]), "ok", "at once"),
        (fitness.visibility_tick([0.1, 0.9, 0.2]), "ok", "after 200 ms, at most 900 ms"),
        (fitness.visibility_tick([0.1, 1.2, 0.2]), "warning", "at most 1200 ms"),
        (fitness.invisible_tick(5.0), "failed", "within 5 s"),
        (fitness.listing_tick(made=1000, wanted=1000, took_s=[0.3], missing=0, doubled=0), "ok", "1,000 names in 300 ms"),
        (fitness.listing_tick(made=1000, wanted=1000, took_s=[0.3], missing=0, doubled=2), "ok", "2 names given twice"),
        (fitness.listing_tick(made=1000, wanted=1000, took_s=[1.3], missing=0, doubled=0), "warning", "slow"),
        (fitness.listing_tick(made=100, wanted=1000, took_s=[0.2], missing=0, doubled=0), "warning", "2 s for as many"),
        (fitness.listing_tick(made=9, wanted=9, took_s=[0.1], missing=1, doubled=0), "failed", "1 that had just been made"),
        (fitness.sync_tick([0.02], folders=True), "ok", "fsync 20 ms"),
        (fitness.sync_tick([0.02], folders=False), "ok", "a folder cannot be synced here, and need not be"),
        (fitness.sync_tick([0.6], folders=True), "warning", "slow"),
        (fitness.speed_tick(write_bytes_per_s=5e7, read_bytes_per_s=1e9), "ok", "writes 50.0 MB/s, reads 1.00 GB/s"),
        (fitness.speed_tick(write_bytes_per_s=1e6, read_bytes_per_s=1e9), "warning", "little"),
        (fitness.names_tick(folds=True), "ok", "harmless"),
        (fitness.names_tick(folds=False), "ok", "capitals are told from small letters"),
        (fitness.clock_tick(0.3), "ok", "agree"),
        (fitness.clock_tick(-7200.0), "ok", "2 h 0 min behind: no clocks are compared"),
    ],
)
def test_measurements_in_words(tick: Tick, verdict: str, words: str) -> None:
    assert (tick.verdict, words in tick.detail) == (verdict, True), tick
    assert bool(tick.remedy) == (verdict != "ok")
    assert tick.topic == "share"


def test_the_verdict_names_what_it_comes_from() -> None:
    well, doubtful = ok("race", "x"), warning("speed", "little", "wire")
    bad, worse = failed("writable", "No space left", "make room"), failed("race", "two winners", "no")
    assert (conclusion([well]).verdict, conclusion([well]).detail) == ("ok", "fit")
    found = conclusion([well, doubtful, warning("clock", "")])
    assert (found.verdict, found.detail) == ("warning", "fit, with warnings: speed, clock")
    found = conclusion([doubtful, bad, worse])
    assert (found.verdict, found.detail, found.remedy) == ("failed", "not fit: No space left; race", "make room")


def test_the_verdict_is_not_counted_once_more() -> None:
    ticks = [ok("a"), warning("b", ""), failed("c", "")]
    assert wrong([*ticks, conclusion(ticks)]) == wrong(ticks) == (1, 1)
