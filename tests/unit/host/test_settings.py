"""The settings file: checked field by field, and changed as little as possible."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarm.core.errors import UsageError
from swarm.host import settings
from swarm.host.paths import settings_file

TEXT = """# my machines
ascii = true  # an old terminal

mailboxes = [
    "/old",
]

[later]
thing = 1
"""


@pytest.fixture
def file(state_dir: Path) -> Path:
    path = settings_file()
    path.parent.mkdir(parents=True)
    return path


def test_no_file_is_no_fault(state_dir: Path) -> None:
    assert settings.load() == (settings.Settings(), ())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ascii = 3", "ascii = 3"),
        ('mailboxes = "/x"', "mailboxes = '/x'"),
        ("mailboxes = [1]", "mailboxes = [1]"),
        ("asci = true", "did you mean 'ascii'?"),
        ("colour = 1", "there are name, mailboxes, theme"),
        ("ascii = ", "the defaults are used"),
        ('hours = "22"', "hours = '22'"),
        ('hours = "25-7"', "25:00 is no time of the day"),
        ("hours = 22", "hours = 22"),
        ("nice = 20", "nice = 20"),
        ("interval_s = 0.1", "interval_s = 0.1"),
        ("interval_s = 11", "<= 10"),
        ('name = " studio"', "one line of plain text"),
        ('name = "a\\u202eb"', "one line of plain text"),
        ('notify = "notify-send swarm"', "notify = "),
        ("price_per_kwh = -1", "price_per_kwh = -1"),
        ("keymap = 3", "keymap = 3"),
        ("keymap = {pause = 3}", "keymap = "),
        ("idle_only = 1", "idle_only = 1"),
        ("\x00", "the defaults are used"),
    ],
)
def test_a_bad_value_is_named_and_its_default_used(file: Path, text: str, words: str) -> None:
    file.write_text(text)
    found, [fault] = settings.load()
    assert found == settings.Settings()
    assert str(file) in fault
    assert words in fault
    assert "\n" not in fault


def test_a_bad_value_takes_no_other_down(file: Path) -> None:
    file.write_text('ascii = "yes"\nmailboxes = ["/a", "/b"]\nwhat = 1\n')
    found, faults = settings.load()
    assert found == settings.Settings(mailboxes=("/a", "/b"))
    assert len(faults) == 2


def test_a_very_long_value_is_cut(file: Path) -> None:
    file.write_text(f"ascii = '{'x' * 1000}'")
    assert len(settings.load()[1][0]) < len(str(file)) + 150


@pytest.mark.parametrize("content", [b"\xff\xfe", None], ids=["no text", "a folder"])
def test_a_file_that_cannot_be_read_is_named_and_left_alone(file: Path, content: bytes | None) -> None:
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)
    assert str(file) in settings.load()[1][0]
    with pytest.raises(UsageError, match="not changed") as caught:
        settings.remember_mailbox("/new")
    assert str(file) in str(caught.value)
    assert file.is_dir() if content is None else file.read_bytes() == content


def test_remembering_puts_first_and_keeps_comments(file: Path) -> None:
    file.write_text(TEXT)
    settings.remember_mailbox("/new")
    text = file.read_text()
    assert settings.load()[0] == settings.Settings(mailboxes=("/new", "/old"), ascii=True)
    assert "# my machines\nascii = true  # an old terminal\n" in text
    assert "[later]\nthing = 1\n" in text
    settings.remember_mailbox("/old")
    assert settings.load()[0].mailboxes == ("/old", "/new")
    assert list(file.parent.iterdir()) == [file]


def test_what_is_first_already_is_not_written_again(file: Path) -> None:
    file.write_text(TEXT)
    settings.remember_mailbox("/old")
    assert file.read_text() == TEXT


def test_the_first_mailbox_makes_the_file_and_its_folder(state_dir: Path) -> None:
    settings.remember_mailbox("/new")
    assert settings.load() == (settings.Settings(mailboxes=("/new",)), ())


def test_a_link_to_the_file_stays_a_link(file: Path, tmp_path: Path) -> None:
    (tmp_path / "dotfiles.toml").write_text("ascii = true\n")
    file.symlink_to(tmp_path / "dotfiles.toml")
    settings.remember_mailbox("/new")
    assert file.is_symlink()
    assert settings.load()[0] == settings.Settings(mailboxes=("/new",), ascii=True)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SWARM_CONFIG", str(tmp_path / "file" / "x" / "settings.toml"))
    with pytest.raises(UsageError, match=str(tmp_path / "file")):
        settings.remember_mailbox("/new")


def test_what_is_given_counts_more_than_the_environment_and_that_more_than_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="which mailbox"):
        settings.mailbox_location(None)
    file.write_text('mailboxes = ["/c", "/d"]')
    assert settings.mailbox_location(None) == "/c"
    monkeypatch.setenv("SWARM_MAILBOX", "/b")
    assert settings.mailbox_location(None) == "/b"
    assert settings.mailbox_location("/a") == "/a"


def test_a_location_is_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert settings.mailbox_location("m") == str(tmp_path / "m")
    assert settings.mailbox_location("~/m") == "/home/somebody/m"
    assert settings.mailbox_location("s3://bucket/m") == "s3://bucket/m"


def test_a_current_folder_that_is_gone_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert settings.mailbox_location("/absolute") == "/absolute"
    with pytest.raises(UsageError, match="absolute path"):
        settings.mailbox_location("m")


def test_a_saved_value_leaves_the_rest_and_its_comments(file: Path) -> None:
    file.write_text(TEXT + "[keymap]\npause = 'p'  # mine\nstop = 's'\n")
    settings.save("theme", "nord")
    settings.save("interval_s", 2.5)
    settings.save("ascii", False)
    settings.save("keymap", {"pause": "p", "freeze": ["f", "space"]})
    settings.save("notify", ("notify-send", "swarm"))
    found = settings.load()[0]
    assert (found.theme, found.interval_s, found.ascii, found.notify) == ("nord", 2.5, False, ("notify-send", "swarm"))
    assert found.keymap == {"pause": "p", "freeze": ("f", "space")}
    text = file.read_text()
    assert "# my machines\nascii = false # an old terminal\n" in text.replace("  #", " #")
    assert "pause = 'p'  # mine\n" in text
    settings.save("price_per_kwh", 0.3)
    settings.save("price_per_kwh", None)
    assert settings.load()[0].price_per_kwh is None
    assert "price_per_kwh" not in file.read_text()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [("hours", "22", "hours: "), ("nice", 20, "nice: "), ("interval_s", "fast", "interval_s: "), ("colour", 1, "no setting")],
)
def test_what_is_no_value_is_not_saved(file: Path, name: str, value: object, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        settings.save(name, value)
    assert not file.exists()


def test_every_setting_says_what_it_is(state_dir: Path) -> None:
    every = list(settings.described())
    assert [each.name for each in every] == list(settings.Settings.__struct_fields__)
    assert all(each.help for each in every)


def test_a_first_start_is_one_without_settings_and_mailboxes(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings.first_start()
    monkeypatch.setenv("SWARM_MAILBOX", "/b")
    assert not settings.first_start()
    monkeypatch.delenv("SWARM_MAILBOX")
    file.write_text("")
    assert not settings.first_start()
