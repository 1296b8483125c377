"""Fixed states for the Network screen: a home with three other machines, and what the doctor found in it."""

from __future__ import annotations

import msgspec

from swarm import api
from swarm.api.doctor import Examination
from swarm.core import diagnosis
from swarm.core.adverts import PeerAdvert
from swarm.core.mounts import Mount, mount_ticks
from swarm.core.ticks import checking, ok
from tui.messages import NetworkShown


def peer(
    name: str, *, id: str = "a", version: str = "0.1.0", accelerators: tuple[str, ...] = (), state: str = "idle", **more: object
) -> api.SeenPeer:
    advert = PeerAdvert(
        peer=id * 32,
        name=name,
        boot=id * 8,
        version=version,
        state=state,  # type: ignore[arg-type]
        accelerators=accelerators,
        port=27273,
    )
    seen = {"how": ("network",), "addresses": ("10.0.0.9",), "heard_s": 97.0, **more}
    return api.SeenPeer(advert=advert, **seen)  # type: ignore[arg-type]


def sightings() -> api.Sightings:
    """A home with three other machines, one of which does not hear this one, and one that cannot be reached."""
    return api.Sightings(
        peers=(
            peer("linux-3090", id="b", accelerators=("cuda RTX 3090",), state="training", how=("network", "mailbox"),
                 sees_us=True, reached_ms=0.6, clock_off_s=-0.3),
            peer("mbp", id="c", accelerators=("mps Apple M3 Pro",), sees_us=False, reached_ms=7.42, clock_off_s=7260.0),
            peer("nas", id="d", heard_s=88.0,
                 unreachable="no answer within 2 s: it is off or asleep, or a firewall lies between"),
            peer("studio", id="a", accelerators=("mps Apple M2 Max",), state="watching", itself=True, heard_s=100.0),
        )
    )  # fmt: skip


def network_shown(*, found: Examination | None = None, seen: api.Sightings | None = None) -> NetworkShown:
    """As the feed posts it, 12 s after the examination."""
    seen = sightings() if seen is None else seen
    return NetworkShown(examination(seen) if found is None else found, seen, 100.0, report="swarm doctor: 2 failed\n")


def examination(seen: api.Sightings) -> Examination:
    machine = diagnosis.Machine(
        platform="darwin", system="macOS 15.3 arm64", python="3.12.8", version="0.1.0", cpus=12, memory_bytes=64 << 30,
        free_memory_bytes=38 << 30, state_dir="/Users/ann/Library/Application Support/swarm", state_free_bytes=200 << 30,
    )  # fmt: skip
    torch = diagnosis.Tried(
        framework="torch",
        version="2.9.1",
        devices=(
            diagnosis.TriedDevice(name="cpu", what="8 threads", took_ms=3.0),
            diagnosis.TriedDevice(name="mps", took_ms=88),
        ),
    )
    carriers = [
        diagnosis.Carrier(name="en0", address="10.0.0.2", kind="ethernet", speed_bytes_per_s=1.25e9),
        diagnosis.Carrier(name="en1", address="10.0.0.3", kind="wifi", speed_bytes_per_s=50e6),
        diagnosis.Carrier(name="utun3", address="100.64.0.7", kind="vpn", why_not="a VPN"),
    ]
    heard = [
        diagnosis.Multicast(interface="en0", address="10.0.0.2", sent=True, own=True, packets=14, others=5),
        diagnosis.Multicast(
            interface="en1", address="10.0.0.3", sent=False, own=False, error="No route to host", code="EHOSTUNREACH"
        ),
    ]
    share = Mount(point="/Volumes/swarm", device="//ann@nas/swarm", kind="smbfs", options="rw,nodev")
    return Examination(
        ticks=(
            *diagnosis.machine_ticks(machine),
            *diagnosis.framework_ticks([torch]),
            *diagnosis.interface_ticks(carriers),
            *diagnosis.multicast_ticks(heard, platform="darwin"),
            *diagnosis.peer_ticks(seen, now_s=100.0, platform="darwin"),
            *mount_ticks("/Volumes/swarm/box", share),
            ok("timings", "create 41 ms, write 18 ms, list 2.1 ms, read 3.0 ms, delete 4.4 ms", topic="share"),
            *diagnosis.settings_ticks(()),
            *diagnosis.passphrase_ticks(diagnosis.Passphrase(path="", there=False)),
        ),
        sightings=seen,
        now_s=88.0,
        took_s=4.2,
        done=True,
    )


ALONE = api.Sightings(peers=tuple(each for each in sightings().peers if each.itself))


def looking() -> Examination:
    """Half of it is known."""
    whole = examination(ALONE)
    late = ("peers", "framework")
    ticks = tuple(
        checking(tick.topic, topic=tick.topic) if tick.topic in late else tick
        for tick in whole.ticks
        if tick.topic not in late or tick.name in ("peers", "torch cpu")
    )
    return msgspec.structs.replace(whole, ticks=ticks, done=False)
