"""The service's file: read back as systemd and launchd read it, whatever stands in its paths."""

from __future__ import annotations

import configparser
import os
import plistlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.cli import run
from swarm.core.errors import UsageError
from swarm.host import service
from swarm.host.keyfile import key_file
from swarm.host.paths import settings_file, state_dir

ODD = '/srv/my share/100% größer "quoted" $HOME \\ back/模型;x'
words = st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=30)


def unit_of(text: str) -> configparser.RawConfigParser:
    found = configparser.RawConfigParser(strict=False, delimiters=("=",), comment_prefixes=("#", ";"))
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read_string(text)
    return found


def split(line: str) -> list[str]:
    """As systemd.syntax(7) has it: double quotes, backslashes, and %% for a per cent sign."""
    found, position = [], 0
    escapes = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}
    while position < len(line):
        assert line[position] == '"', line[position:]
        position += 1
        word = ""
        while line[position] != '"':
            if line[position] == "\\":
                word += escapes[line[position + 1]]
                position += 2
            elif line[position] == "%":
                assert line[position + 1] == "%", "a specifier"
                word += "%"
                position += 2
            else:
                word += line[position]
                position += 1
        found.append(word)
        position += 1
        assert line[position : position + 1] in ("", " ")
        position += 1
    return found


def argument(word: str) -> str:
    """With variables replaced, of which there must be none."""
    assert "$" not in word.replace("$$", ""), word
    return word.replace("$$", "$")


@given(st.lists(words, max_size=5), words)
def test_a_unit_says_what_was_meant(arguments: list[str], value: str) -> None:
    text = service.systemd_unit(["/bin/swarm", *arguments], nice=10, environment={"SWARM_STATE_DIR": f"/{value}"})
    found = unit_of(text)["Service"]
    program, *rest = split(found["ExecStart"])
    assert [program, *map(argument, rest)] == ["/bin/swarm", *arguments]
    assert split(found["Environment"]) == [f"SWARM_STATE_DIR=/{value}"]


def test_a_units_policy() -> None:
    found = unit_of(service.systemd_unit(["/bin/swarm", "join", "--wait"], nice=7, environment={}))
    assert found["Install"]["WantedBy"] == "default.target"
    settings = dict(found["Service"])
    assert settings["Restart"] == "on-failure"
    assert settings["RestartPreventExitStatus"] == "2"
    assert settings["SuccessExitStatus"] == "130"
    assert settings["KillMode"] == "mixed"
    assert settings["Nice"] == "7"
    assert "Environment" not in settings


@given(st.lists(words, min_size=1, max_size=5), words)
def test_an_agent_says_what_was_meant(arguments: list[str], value: str) -> None:
    text = service.launchd_agent(arguments, nice=10, environment={"SWARM_STATE_DIR": value})
    found = plistlib.loads(text.encode())
    assert found["ProgramArguments"] == arguments
    assert found["EnvironmentVariables"] == {"SWARM_STATE_DIR": value}
    assert found["KeepAlive"] == {"SuccessfulExit": False}
    assert (found["RunAtLoad"], found["Nice"], found["Label"]) == (True, 10, service.LABEL)
    assert service.MARK in text


@pytest.mark.parametrize("make", [service.systemd_unit, service.launchd_agent])
def test_what_no_file_can_hold_is_refused(make: object) -> None:
    with pytest.raises(UsageError, match="control character"):
        make(["/bin/swarm", "a\x1bb"], nice=0, environment={})  # type: ignore[operator]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_itself_accepts_the_unit(tmp_path: Path) -> None:
    folder = tmp_path / "an odd 100% place"
    folder.mkdir()
    program = folder / "swarm größe"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "swarm.service"
    unit.write_text(service.systemd_unit([str(program), ODD, "--x=y"], nice=10, environment={"SWARM_STATE_DIR": ODD}))
    done = subprocess.run(
        ["systemd-analyze", "--user", "verify", str(unit)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)},
    )
    said = [line for line in (done.stdout + done.stderr).splitlines() if "swarm" in line]
    assert said == []


# The commands


@pytest.fixture
def home(tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "home of 100% größe"
    place.mkdir()
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("SWARM_PASSPHRASE", "open sesame")
    return place


def installed(home: Path) -> Path:
    return home / ".config" / "systemd" / "user" / "swarm.service"


def test_what_is_installed_is_removed_and_nothing_else(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = installed(home).with_name("other.service")
    other.parent.mkdir(parents=True)
    other.touch()
    options = ["--only", "tiny *", "--method", "diloco", "--max-memory", "8G", "--idle-only", "--hours", "22-7", "--nice", "5"]
    assert (
        run(["service", "install", "--manager", "systemd", *options, "--mailbox", "share/my box", "--data", "text 1.txt"]) == 0
    )
    said = capsys.readouterr().err
    for step in ("systemctl --user daemon-reload", "systemctl --user enable --now swarm.service", "loginctl enable-linger"):
        assert f"  {step}\n" in said
    text = installed(home).read_text()
    assert "sesame" not in text
    assert unit_of(text)["Service"]["Nice"] == "5"
    command = [argument(word) for word in split(unit_of(text)["Service"]["ExecStart"])]
    assert command[command.index("join") :] == [
        "join",
        "--wait",
        "--only=tiny *",
        "--method=diloco",
        "--max-memory=8G",
        "--idle-only",
        "--hours=22-7",
        "--nice=5",
        f"--data={os.path.abspath('text 1.txt')}",
        "--mailbox",
        os.path.abspath("share/my box"),
    ]
    assert os.path.isabs(command[0])
    places = [split(line.partition("=")[2]) for line in text.splitlines() if line.startswith("Environment=")]
    assert [f"SWARM_CACHE_DIR={os.environ['SWARM_CACHE_DIR']}"] in places
    assert run(["service", "install", "--manager", "systemd"]) == 0  # once more, with other options
    assert "--only" not in installed(home).read_text()
    assert "Nice=10" in installed(home).read_text()
    assert run(["service", "uninstall", "--manager", "systemd"]) == 0
    assert not installed(home).exists()
    assert list(installed(home).parent.iterdir()) == [other]
    assert run(["service", "uninstall", "--manager", "systemd"]) == 0
    assert "there is no" in capsys.readouterr().err


def environment_of(text: str) -> dict[str, str]:
    lines = [split(line.partition("=")[2]) for line in text.splitlines() if line.startswith("Environment=")]
    return dict(word.split("=", 1) for [word] in lines)


def test_a_service_finds_what_the_shell_that_installed_it_found(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SWARM_CONFIG", "SWARM_STATE_DIR", "SWARM_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(home / name))
    key = key_file()
    assert key is not None
    told = environment_of(service.text_of("systemd", ["join"], nice=0))
    assert (told["SWARM_CONFIG"], told["SWARM_STATE_DIR"]) == (str(settings_file()), str(state_dir()))
    assert "SWARM_KEY_FILE" not in told  # one that is made later lies beside the settings
    key.parent.mkdir(parents=True)
    key.touch()
    assert environment_of(service.text_of("systemd", ["join"], nice=0))["SWARM_KEY_FILE"] == str(key)


def test_a_service_is_told_of_a_mailbox_in_a_bucket(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWARM_MAILBOX", "S3://bucket/home/")
    assert environment_of(service.text_of("systemd", ["join"], nice=0))["SWARM_MAILBOX"] == "s3://bucket/home"


@pytest.mark.parametrize(
    "url", ["s3://me:hush-hush@bucket/home", "s3://bucket?secret=hush-hush", "smb://me:hush-hush@nas/home"]
)
def test_no_secret_in_a_mailboxs_url_gets_into_the_file_of_a_service(
    home: Path, monkeypatch: pytest.MonkeyPatch, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SWARM_MAILBOX", url)
    assert run(["service", "install", "--manager", "systemd"]) == 2
    told = capsys.readouterr()
    assert "hush-hush" not in told.err + told.out
    assert list(home.iterdir()) == []


def test_a_service_keeps_out_the_passphrase_that_was_left_out(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWARM_KEY_FILE", "")
    assert environment_of(service.text_of("systemd", ["join"], nice=0))["SWARM_KEY_FILE"] == ""


def test_the_command_of_the_file_runs(home: Path) -> None:
    assert run(["service", "install", "--manager", "systemd"]) == 0
    command = [argument(word) for word in split(unit_of(installed(home).read_text())["Service"]["ExecStart"])]
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, check=False, cwd=home)
    assert done.returncode == 0, done.stderr
    assert "Take part in a run" in done.stdout


def test_print_writes_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["service", "install", "--manager", "launchd", "--print", "--on-ac-only"]) == 0
    found = plistlib.loads(capsys.readouterr().out.encode())
    assert found["ProgramArguments"][-1] == "--on-ac-only"
    assert found["Nice"] == 10
    assert list(home.iterdir()) == []


def test_the_agent_is_written_where_launchd_looks(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["service", "install", "--manager", "launchd"]) == 0
    path = home / "Library" / "LaunchAgents" / f"{service.LABEL}.plist"
    assert plistlib.loads(path.read_bytes())["ProgramArguments"][-2:] == ["join", "--wait"]
    assert f"launchctl bootstrap gui/{os.getuid()} '{path}'" in capsys.readouterr().err
    assert run(["service", "uninstall", "--manager", "launchd"]) == 0
    assert not path.exists()


def test_a_file_of_somebody_else_is_left_alone(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    installed(home).parent.mkdir(parents=True)
    installed(home).write_text("[Service]\n")
    assert run(["service", "install", "--manager", "systemd"]) == 2
    assert run(["service", "uninstall", "--manager", "systemd"]) == 2
    assert "not made by swarm" in capsys.readouterr().err
    assert installed(home).read_text() == "[Service]\n"


def test_a_service_that_is_enabled_is_not_pulled_away(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["service", "install", "--manager", "systemd"]) == 0
    wants = installed(home).parent / "default.target.wants"
    wants.mkdir()
    (wants / "swarm.service").symlink_to(installed(home))
    assert run(["service", "uninstall", "--manager", "systemd"]) == 2
    assert "systemctl --user disable --now swarm.service" in capsys.readouterr().err
    assert installed(home).exists()


def test_status(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["service", "status", "--manager", "systemd"]) == 1
    assert "not installed" in capsys.readouterr().err
    assert run(["service", "install", "--manager", "systemd"]) == 0
    capsys.readouterr()
    assert run(["service", "status", "--manager", "systemd"]) == 0
    shown = capsys.readouterr().out
    assert "not enabled: systemctl --user enable --now swarm.service" in shown
    assert "nobody stands by here" in shown
    assert run(["service", "status", "--manager", "systemd", "--json"]) == 0
    assert '"installed":true' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [(("--hours", "25-7"), "--hours"), (("--max-memory", "x"), "--max-memory"), (("--learner-id", "A B"), "A B")],
)
def test_wrong_options_write_nothing(
    home: Path, options: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["service", "install", "--manager", "systemd", *options]) == 2
    assert words in capsys.readouterr().err
    assert list(home.iterdir()) == []


def test_another_system_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "freebsd")
    with pytest.raises(UsageError, match="systemd"):
        service.manager_here()
