"""What a mount means for a mailbox in it."""

from __future__ import annotations

import pytest

from swarm.core.mounts import Mount, innermost, mount_ticks, with_parameters, with_smb_settings

LOCAL = Mount(point="/", device="/dev/sda1", kind="ext4", options="rw,relatime")
NFS = Mount(point="/mnt/nas", device="nas:/export", kind="nfs4", options="rw,vers=4.2,hard,lookupcache=pos")
CIFS = Mount(
    point="/mnt/nas", device="//annabel@nas/swarm", kind="cifs", options="rw,vers=3.1.1,username=annabel,closetimeo=0,actimeo=1"
)


def told(mount: Mount, path: str = "/mnt/nas/box") -> list[tuple[str, str]]:
    found = mount_ticks(path, mount)
    for tick in found:
        assert tick.topic == "share"
        assert bool(tick.remedy) == (tick.verdict != "ok"), tick
        assert "annabel" not in tick.detail + tick.remedy
    return [(tick.name, tick.verdict) for tick in found]


WELL = [("file system", "ok"), ("mount options", "ok")]
NOT_WELL = [("file system", "ok"), ("mount options", "warning")]


def test_the_innermost_mount_counts_and_of_two_at_one_point_the_later() -> None:
    over = Mount(point="/mnt/nas", device="other", kind="cifs")
    mounts = [NFS, LOCAL, over, Mount(point="/mnt/nas2", device="", kind="nfs4")]
    assert innermost("/mnt/nas/box", mounts) is over
    assert innermost("/mnt/nas", mounts) is over
    assert innermost("/mnt/nas22", mounts) is LOCAL
    assert innermost("/x", []).kind == "unknown"


def test_a_local_disk_and_well_mounted_shares_are_well() -> None:
    assert told(LOCAL, "/home/box") == [("file system", "ok")]
    assert told(NFS) == told(CIFS) == WELL
    assert mount_ticks("/mnt/nas/box", NFS)[1].detail == "vers=4.2, hard, lookupcache=pos"


@pytest.mark.parametrize(
    ("mount", "options", "advice"),
    [
        (NFS, "rw,soft,lookupcache=pos", "hard"),
        (NFS, "rw,softerr,lookupcache=none", "hard"),
        (NFS, "rw,hard", "lookupcache=positive"),
        (NFS, "rw,soft", "hard,lookupcache=positive"),
        (NFS, "rw,hard,lookupcache=pos,acdirmax=60", "actimeo=5"),
        (CIFS, "rw,vers=3.1.1", "closetimeo=0"),
        (CIFS, "rw,closetimeo=5", "closetimeo=0"),
        (CIFS, "rw,closetimeo=0,cache=loose", "cache=strict"),
        (Mount(point="/mnt/nas", device="annabel@nas:", kind="fuse.sshfs"), "rw,user_id=1000", "dir_cache=no"),
    ],
)
def test_options_with_which_a_share_is_seen_late_or_fails(mount: Mount, options: str, advice: str) -> None:
    changed = Mount(point=mount.point, device=mount.device, kind=mount.kind, options=options)
    assert told(changed) == NOT_WELL
    assert f"-o {advice} " in mount_ticks("/mnt/nas/box", changed)[1].remedy


NFSSTAT = """/Volumes/x from nas:/x
  -- Original mount options:
     General mount flags: 0x0
     NFS parameters: vers=3,soft
     File system locations:
       /x @ nas (10.0.0.2)
  -- Current mount parameters:
     General mount flags: 0x4000018 nodev,nosuid
     NFS parameters: vers=3,tcp,port=2049,nomntudp,{soft},nointr,noresvport,conn,callumnt,{names},acdirmin=5,acdirmax=60,sec=sys
     Status flags: 0x0
"""


@pytest.mark.parametrize(
    ("soft", "names", "advice"),
    [
        ("hard", "nonegnamecache", ""),
        ("hard", "negnamecache", "nonegnamecache"),
        ("soft", "nonegnamecache", "hard"),
        ("soft", "negnamecache", "hard,nonegnamecache"),
    ],
)
def test_nfs_of_macos_is_judged_by_what_nfsstat_tells(soft: str, names: str, advice: str) -> None:
    plain = Mount(point="/Volumes/x", device="nas:/x", kind="nfs", options="rw,nodev,nosuid")
    mount = with_parameters(plain, NFSSTAT.format(soft=soft, names=names))
    assert told(mount) == (NOT_WELL if advice else WELL)
    last = mount_ticks("/Volumes/x", mount)[1]
    if advice:
        assert f"-o {advice} (" in last.remedy
        assert "fstab" not in last.remedy
    else:
        assert last.detail == "vers=3, hard, acdirmax=60, nonegnamecache"
    assert with_parameters(plain, "nfsstat: no such mount") == plain


def test_what_macos_mounts_tells_no_options_to_judge() -> None:
    told_by_macos = "rw,nodev,nosuid,automounted"
    for kind in ("nfs", "smbfs"):
        assert told(Mount(point="/Volumes/x", device="//annabel@nas/x", kind=kind, options=told_by_macos)) == WELL[:1]


SMBFS = Mount(point="/Volumes/x", device="//annabel@NAS.local/x", kind="smbfs", options="rw,nodev,nosuid")
SHORT = "[default]\ndir_cache_max = 5\ndir_cache_min=1\n"


@pytest.mark.parametrize(
    ("system", "user", "advice"),
    [
        ("", "", "dir_cache_max=5, dir_cache_min=1"),
        (SHORT, "", ""),
        ("", SHORT, ""),
        (SHORT, "[default]\ndir_cache_max=60\n", "dir_cache_max=5"),
        (f"[default]\ndir_cache_max=60\n[nas.local]\n{SHORT.partition(']')[2]}", "", ""),
        ("[default]\ndir_cache_max=5\n", "", "dir_cache_min=1"),
        ("[other.local]\ndir_cache_max=5\n", "", "dir_cache_max=5, dir_cache_min=1"),
        (f"{SHORT}soft=yes # or so\n", "", "soft=no"),
        (f"{SHORT}soft=yes\n", "[nas.local]\nsoft=no\n", ""),
        ("soft\n[default\n=\n[]\ndir_cache_max=often\n", "", "dir_cache_max=5, dir_cache_min=1"),
        (f"{SHORT}dir_cache_max=often\n", "", "dir_cache_max=5"),
        (f"#{SHORT}", "", "dir_cache_max=5, dir_cache_min=1"),
    ],
)
def test_smb_of_macos_is_judged_by_its_settings(system: str, user: str, advice: str) -> None:
    mount = with_smb_settings(SMBFS, [system, user])
    assert told(mount) == (NOT_WELL if advice else WELL)
    last = mount_ticks("/Volumes/x", mount)[1]
    if advice:
        assert f"below a line [default]: {advice}, each" in last.remedy
        assert "fstab" not in last.remedy
    else:
        assert last.detail == "soft=no, dir_cache_max=5, dir_cache_min=1"


@pytest.mark.parametrize(
    "mount",
    [
        Mount(point="/mnt/nas", device="remote:", kind="fuse.rclone", options="rw"),
        Mount(point="/mnt/nas", device="remote:x", kind="rclone"),
        Mount(point="/mnt/nas", device="nas:/export", kind="nfs4", options="ro,hard,lookupcache=pos"),
    ],
)
def test_where_no_mailbox_must_be(mount: Mount) -> None:
    assert told(mount) == [("file system", "failed")]


@pytest.mark.parametrize("kind", ["tmpfs", "overlay", "ramfs"])
def test_what_is_soon_gone_is_a_warning(kind: str) -> None:
    assert told(Mount(point="/", device=kind, kind=kind, options="rw"), "/box") == [("file system", "warning")]


@pytest.mark.parametrize("path", ["/mnt/nas/box", "/Volumes/swarm", "/media/x/y"])
def test_a_mount_point_at_which_nothing_is_mounted_is_a_warning(path: str) -> None:
    assert [tick.verdict for tick in mount_ticks(path, LOCAL)] == ["warning"]
    assert "is the share mounted?" in mount_ticks(path, LOCAL)[0].remedy
