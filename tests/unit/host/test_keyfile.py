"""The file that holds the swarm's passphrase, and the commands that make it."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path

import pytest

from swarm.cli import run
from swarm.core.errors import PassphraseError
from swarm.core.trust import SwarmKey, stretched
from swarm.host import keyfile

PASSPHRASE = "correct horse battery staple"


@pytest.fixture
def file(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("SWARM_KEY_FILE", raising=False)
    path = keyfile.key_file()
    assert path is not None
    return path


def typed(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_what_is_kept_is_found_again_by_its_owner_alone(file: Path) -> None:
    assert keyfile.load_key() is None
    made = keyfile.keep(f"  {PASSPHRASE}\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    found = keyfile.kept()
    assert found is not None
    assert found.passphrase == PASSPHRASE
    assert made.fingerprint == found.key.fingerprint == SwarmKey(stretched(PASSPHRASE)).fingerprint
    assert os.listdir(file.parent) == [file.name]


def test_it_is_readable_by_nobody_else_from_its_first_byte_on(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (modes.append(stat.S_IMODE(os.fstat(fd).st_mode)), real(fd)))
    before = os.umask(0)
    try:
        keyfile.keep(PASSPHRASE)
    finally:
        os.umask(before)
    assert modes == [0o600]


def test_the_passphrase_is_stretched_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keyfile.keep(PASSPHRASE)
    monkeypatch.setattr(keyfile, "stretched", lambda passphrase: pytest.fail("stretched again"))
    assert keyfile.load_key() is not None


@pytest.mark.parametrize("edit", [lambda text: text.replace("staple", "stable"), lambda text: "\n".join(text.split("\n")[:2])])
def test_a_passphrase_that_was_written_by_hand_counts(file: Path, edit) -> None:
    keyfile.keep(PASSPHRASE)
    file.write_text(edit(file.read_text()))
    found = keyfile.kept()
    assert found is not None
    assert found.key.fingerprint == SwarmKey(stretched(found.passphrase)).fingerprint


def test_a_passphrase_that_was_written_by_hand_is_stretched_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keyfile._stretched_once.cache_clear()
    times: list[str] = []

    def counted(passphrase: str) -> bytes:
        times.append(passphrase)
        return stretched(passphrase)

    monkeypatch.setattr(keyfile, "stretched", counted)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch(0o600)
    for words in (PASSPHRASE, PASSPHRASE.upper()):  # of the same size
        file.write_text(f'passphrase = "{words}"\n')
        fingerprint = SwarmKey(stretched(words)).fingerprint
        for _ in range(3):
            key = keyfile.load_key()
            assert key is not None
            assert key.fingerprint == fingerprint
    assert times == [PASSPHRASE, PASSPHRASE.upper()]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o777, 0o620])
def test_a_file_that_others_can_read_is_refused_with_the_remedy(file: Path, mode: int) -> None:
    keyfile.keep(PASSPHRASE)
    file.chmod(mode)
    with pytest.raises(PassphraseError, match=f"chmod 600 {file}") as raised:
        keyfile.load_key()
    assert "\n" not in str(raised.value)
    assert PASSPHRASE not in str(raised.value)


@pytest.mark.parametrize(
    "text", ["", "passphrase = 3", "passphrase", "key = 'x'", "\0", b"\xff".decode("latin-1"), "[passphrase]"]
)
def test_a_file_without_a_passphrase_is_named(file: Path, text: str) -> None:
    file.parent.mkdir()
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(PassphraseError, match=r"passphrase\.toml"):
        keyfile.load_key()


def test_a_folder_in_its_place_is_named(file: Path) -> None:
    file.mkdir(parents=True, mode=0o700)
    for attempt in (keyfile.load_key, lambda: keyfile.keep(PASSPHRASE), keyfile.forget):
        with pytest.raises(PassphraseError, match=r"passphrase\.toml"):
            attempt()


def test_the_environment_names_another_file_or_none(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keyfile.keep(PASSPHRASE)
    monkeypatch.setenv("SWARM_KEY_FILE", "")
    assert keyfile.load_key() is None
    with pytest.raises(PassphraseError, match="SWARM_KEY_FILE"):
        keyfile.keep(PASSPHRASE)
    monkeypatch.setenv("SWARM_KEY_FILE", str(tmp_path / "elsewhere"))
    with pytest.raises(PassphraseError, match="SWARM_KEY_FILE"):  # to train in the open instead would be a surprise
        keyfile.load_key()
    keyfile.keep("another good passphrase")
    assert (tmp_path / "elsewhere").exists()
    found = keyfile.kept()
    assert found is not None
    assert found.passphrase == "another good passphrase"


def test_a_new_one_is_strong_and_can_be_read_aloud() -> None:
    made = {keyfile.fresh() for _ in range(50)}
    assert len(made) == 50
    for passphrase in made:
        assert keyfile.weakness(passphrase) == ""
        assert [len(group) for group in passphrase.split("-")] == [5] * 5
        heard = passphrase.upper().replace("-", " ").replace("0", "O").replace("1", "l")
        assert keyfile.tidied(f"{heard}\n") == passphrase
    assert keyfile.tidied("Café au lait, twice") == keyfile.tidied("Cafe\u0301 au lait, twice")
    assert keyfile.tidied("Hello O my l1ttle swarm") == "Hello O my l1ttle swarm"


@pytest.mark.parametrize(
    "passphrase",
    [
        "",
        "short",
        "aaaaaaaaaaaaaaaa",
        "abababababababab",
        "x" * 1001,
        "two\nlines of it",
        "bell\x07bell\x07bell",
        "abcde" * 201,
    ],
)
def test_a_weak_one_is_refused_with_a_reason(file: Path, passphrase: str) -> None:
    with pytest.raises(PassphraseError) as raised:
        keyfile.keep(passphrase)
    assert str(raised.value)
    assert not file.exists()


# Commands


def test_new_show_import_and_forget(file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(["key", "new"]) == 0
    made, told = capsys.readouterr()
    found = keyfile.kept()
    assert found is not None
    assert made == f"{found.passphrase}\n"
    assert found.key.fingerprint in told
    assert found.passphrase not in told
    assert run(["key", "show"]) == 0
    assert capsys.readouterr() == (made, f"fingerprint {found.key.fingerprint}\n")

    assert run(["key", "new"]) == 2
    typed(monkeypatch, f"{PASSPHRASE}\n")
    assert run(["key", "import"]) == 2
    assert "--replace" in capsys.readouterr().err
    assert keyfile.kept().passphrase == found.passphrase
    typed(monkeypatch, made)
    assert run(["key", "import"]) == 0  # the same again
    typed(monkeypatch, f"{PASSPHRASE}\nand more")
    assert run(["key", "import", "--replace"]) == 0
    assert keyfile.kept().passphrase == PASSPHRASE
    assert PASSPHRASE not in "".join(capsys.readouterr())

    assert run(["key", "forget"]) == 2  # nobody can be asked
    assert file.exists()
    assert run(["key", "forget", "--yes"]) == 0
    assert not file.exists()
    assert run(["key", "forget"]) == 0
    assert run(["key", "show"]) == 2


@pytest.mark.parametrize(
    ("given", "reason"), [("", "no passphrase on standard input"), ("tooshort\n", "8 characters"), ("y" * 9999, "same few")]
)
def test_import_says_what_is_wrong(file: Path, given: str, reason: str, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    typed(monkeypatch, given)
    assert run(["key", "import"]) == 2
    assert reason in capsys.readouterr().err
    assert not file.exists()


def test_a_passphrase_is_no_argument(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["key", "import", PASSPHRASE]) == 2
    assert not file.exists()
