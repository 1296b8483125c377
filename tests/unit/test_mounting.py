"""URLs of shares: what is one, what is not, and what is done with it on each system."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.errors import UsageError
from swarm.core.mounting import Desktop, Share, parse_share, share_of, way, ways_in_words

MAC = Desktop(system="darwin", user="ann", uid=501)
GNOME = Desktop(system="linux", gio=True, user="ann", uid=1000)
PLAIN = Desktop(system="linux", user="ann", uid=1000)
SYSTEMS = (MAC, GNOME, PLAIN)

GOOD = {
    "smb://nas/swarm": "smb://nas/swarm",
    "SMB://NAS.Local/Swarm Data/": "smb://nas.local/Swarm%20Data",
    "cifs://nas/x$": "smb://nas/x%24",
    "smb://192.168.1.5:4450/a/b": "smb://192.168.1.5:4450/a/b",
    "smb://[FE80::1]/a": "smb://[fe80::1]/a",
    "nfs://nas/export/swarm": "nfs://nas/export/swarm",
    "afp://time-capsule.local/Data": "afp://time-capsule.local/Data",
    "smb://nas/O\u0308ffentlich": "smb://nas/%C3%96ffentlich",  # as macOS writes an Ö
    "smb://nas/%C3%96ffentlich": "smb://nas/%C3%96ffentlich",
    "smb://my_nas/a.b_c-d+e(f)": "smb://my_nas/a.b_c-d%2Be%28f%29",
}
HOSTILE = [
    "smb://nas/$(reboot)/x",
    "smb://nas/`reboot`",
    "smb://nas/a;reboot",
    "smb://nas/a|b",
    "smb://nas/a&b",
    "smb://nas/a\nb",
    "smb://nas/a\n",
    "smb://nas/a%0ab",
    "smb://nas/a%00",
    "smb://nas/'a'",
    'smb://nas/"a"',
    "smb://nas/a\\b",
    "smb://nas/%5c..%5c",
    "smb://nas/../etc",
    "smb://nas/..",
    "smb://nas/%2e%2e/etc",
    "smb://nas/.ssh",
    "smb://nas/a%2f..%2fb",
    "smb://nas/a//b",
    "smb://nas/-o",
    "smb://nas/%2do",
    "smb://nas/x,uid=0",
    "smb://nas/%",
    "smb://nas/%4",
    "smb://nas/%ff",
    "smb://nas/\u202ex",
    "smb://nas/a\u2028b",
    "smb://nas/a?b",
    "smb://nas/a#b",
    "smb://nas/~root",
    "smb://nas/*",
    "smb://-oProxyCommand=x/a",
    "smb://nas;x/a",
    "smb://$(x)/a",
    "smb://n\u0430s/a",  # a Cyrillic letter in a host
    "smb://ann:secret@nas/a",
    "smb://ann@nas/a",
    "smb://nas:0/a",
    "smb://nas:70000/a",
    "smb://nas:x/a",
    "smb://1.2.3/a",
    "smb://[::1/a",
    "smb://[nas]/a",
    "smb://a..b/x",
    "smb:///a",
    "smb://nas",
    "smb://nas/",
    "smb:nas/a",
    " smb://nas/a",
    "http://nas/a",
    "file:///etc",
    "javascript://nas/a",
    "ssh://nas/a",
    "smb://nas/" + "/".join("abcdefghi"),
    "smb://nas/" + "a" * 300,
    "",
]


@pytest.mark.parametrize("text", GOOD)
def test_a_url_is_taken_apart_and_put_together_again(text: str) -> None:
    share = parse_share(text)
    assert share.url == GOOD[text]
    assert parse_share(share.url) == share


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_no_url_of_a_share_is_refused_in_one_harmless_line(text: str) -> None:
    assert share_of(text) is None
    with pytest.raises(UsageError) as caught:
        parse_share(text)
    assert "\n" not in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_windows_path_is_told_what_to_write() -> None:
    with pytest.raises(UsageError, match="write smb://nas/swarm"):
        parse_share("\\\\nas\\swarm")


_TEXT = st.text(st.characters(), max_size=40)


@given(st.one_of(_TEXT, st.builds("smb://{}/{}".format, _TEXT, _TEXT), st.builds("nfs://nas/{}".format, _TEXT)))
def test_whatever_is_let_through_is_one_harmless_word_of_a_command(text: str) -> None:
    share = share_of(text)
    if share is None:
        return
    assert share.host.isascii()
    assert not share.host.startswith("-")
    assert set(share.url) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-:/%[]")
    for part in share.path:
        assert part.isprintable()
        assert part not in (".", "..")
        assert part[0] not in "-.~$ "
        assert not set(part) & set("/\\;|&<>`'\"*?#\n,=:")
    for system in SYSTEMS:
        how = way(share, system)
        for argument in how.argv or ():
            assert argument.isprintable()
        if how.argv is not None:
            assert how.argv[-1] == share.volume.url
        for line in (line for line in how.words if line.startswith("  ")):
            assert shlex.join(shlex.split(line)) == line.strip()  # quoted: a shell takes it as these very words


def test_macos_opens_it() -> None:
    how = way(parse_share("smb://nas/swarm/runs"), MAC)
    assert how.argv == ("open", "smb://nas/swarm")
    assert how.appears == "/Volumes/swarm"
    assert not how.asks
    assert "  open smb://nas/swarm" in how.words


def test_gnome_mounts_it() -> None:
    how = way(parse_share("smb://nas:4450/Swarm"), GNOME)
    assert how.argv == ("gio", "mount", "smb://nas:4450/Swarm")
    assert how.appears == "/run/user/1000/gvfs/smb-share:server=nas,port=4450,share=swarm"
    assert how.asks
    assert way(parse_share("afp://nas/Data"), GNOME).appears == "/run/user/1000/gvfs/afp-volume:host=nas,volume=Data"


@pytest.mark.parametrize(
    ("url", "system", "command"),
    [
        ("smb://nas/swarm", PLAIN, "sudo mount -t cifs //nas/swarm /mnt/swarm -o username=ann,uid=1000"),
        ("smb://nas:4450/My Data", PLAIN, "sudo mount -t cifs '//nas/My Data' /mnt/my-data -o username=ann,uid=1000,port=4450"),
        ("nfs://nas/export/swarm", PLAIN, "sudo mount -t nfs nas:/export/swarm /mnt/swarm"),
        ("nfs://nas/export/swarm", GNOME, "sudo mount -t nfs nas:/export/swarm /mnt/swarm"),
        ("nfs://[fd00::1]:2050/x", PLAIN, "sudo mount -t nfs -o port=2050 '[fd00::1]:/x' /mnt/x"),
    ],
)
def test_elsewhere_an_administrator_does(url: str, system: Desktop, command: str) -> None:
    how = way(parse_share(url), system)
    assert how.argv is None
    assert f"  {command}" in how.words
    assert how.words[1] == f"  sudo mkdir -p {how.appears}"


def test_a_mount_point_that_is_in_use_is_left_alone() -> None:
    system = Desktop(system="linux", user="ann", uid=1000, taken=("/", "/mnt/swarm", "/mnt/swarm-2"))
    assert way(parse_share("smb://nas/swarm"), system).appears == "/mnt/swarm-3"


def test_a_strange_user_name_reaches_no_option() -> None:
    system = Desktop(system="linux", user="ann,uid=0 $(x)", uid=1000)
    assert any("username=YOU,uid=1000" in line for line in way(parse_share("smb://nas/swarm"), system).words)


def test_afp_on_linux_without_gnome_says_what_to_do_instead() -> None:
    how = way(parse_share("afp://nas/Data"), PLAIN)
    assert how.argv is None
    assert "SMB" in how.words[0]


def test_the_folder_in_a_share_is_told() -> None:
    share = parse_share("smb://nas/swarm/a/b")
    assert (share.volume.url, share.below) == ("smb://nas/swarm", "a/b")
    assert ways_in_words("0" * 32, share, way(share, MAC))[0] == "mount smb://nas/swarm; the mailbox is in its folder a/b"
    nfs = parse_share("nfs://nas/a/b")
    assert (nfs.volume, nfs.below) == (nfs, "")


def test_without_a_url_the_words_say_whom_to_ask() -> None:
    words = " ".join(ways_in_words("12345678" + "0" * 24, None, None))
    assert "12345678…" in words
    assert "--share" in words
    assert "--mailbox" in words


def test_a_share_is_a_value() -> None:
    assert parse_share("smb://nas/a") == Share(scheme="smb", host="nas", path=("a",))
