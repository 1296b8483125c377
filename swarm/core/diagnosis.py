"""What `swarm doctor` and the Network screen say of this machine and its network: what was found in, ticks out. Pure.

Of the share, `swarm/core/mounts.py` and the mailbox's probe say it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from swarm.core.manifest import FORMAT
from swarm.core.ranks import Kind
from swarm.core.sentences import amount, counted, plain
from swarm.core.sightings import SeenPeer, Sightings
from swarm.core.ticks import Tick, failed, ok, warning

MACHINE, FRAMEWORK, NETWORK, PEERS, SHARE, SETTINGS = "this machine", "framework", "network", "peers", "share", "settings"
TOPICS = (MACHINE, FRAMEWORK, NETWORK, PEERS, SHARE, SETTINGS)
"""Headings, in the order of the list."""

LITTLE_MEMORY_BYTES = 1 << 30
LITTLE_SPACE_BYTES = 1 << 30
STALE_S = 20.0  # an advert that is older says little of whether its machine is on
SLOW_MS = 200.0  # for a connection within a home
NOT_USED = 12  # interfaces that are named
LOCAL_NETWORK = "allow it: System Settings → Privacy & Security → Local Network → your terminal, then start the terminal anew"
KINDS: dict[Kind, str] = {
    "ethernet": "wired",
    "thunderbolt": "Thunderbolt",
    "wifi": "Wi-Fi",
    "other": "of unknown kind",
    "vpn": "a VPN",
    "loopback": "loopback",
}


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What this machine is, as far as training asks for it."""

    platform: str  # 'linux', 'darwin'
    system: str  # for people: 'Linux 6.1.0 x86_64'
    python: str
    version: str  # of swarm
    cpus: int
    memory_bytes: int
    free_memory_bytes: int
    state_dir: str
    state_problem: str = ""  # why nothing can be written there; "": it can
    state_free_bytes: int = 0


class TriedDevice(msgspec.Struct, frozen=True, kw_only=True):
    name: str  # 'cpu', 'cuda:0', 'metal'
    what: str = ""  # 'NVIDIA H200'
    memory_bytes: int = 0  # of its own; 0: it shares the machine's, or does not say
    took_ms: float = 0.0  # for a forward pass, the first one
    error: str = ""  # why there was none, or what was wrong with its result


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """A framework, after a forward pass on each of its devices in a process of its own."""

    framework: str  # torch, mlx
    version: str = ""
    devices: tuple[TriedDevice, ...] = ()
    error: str = ""  # why the process ended before it was done
    hangs_at: str | None = None  # what it had begun and not ended when its time was over: a device's name, "" while loading
    limit_s: float = 0.0


class Carrier(msgspec.Struct, frozen=True, kw_only=True):
    """An interface of this machine."""

    name: str
    address: str  # the best of them
    kind: Kind
    v4: tuple[str, ...] = ()  # all of IPv4
    v6: tuple[str, ...] = ()  # all of IPv6
    multicast: bool = True  # whether it carries any
    speed_bytes_per_s: float = 0.0  # 0: the system does not say
    why_not: str = ""  # why it is not used; "": it is


class Multicast(msgspec.Struct, frozen=True, kw_only=True):
    """What multicast did on one interface."""

    interface: str
    address: str
    sent: bool  # whether the question left
    own: bool  # whether it came back
    packets: int = 0  # of others
    others: int = 0  # machines that were heard
    error: str = ""  # why nothing was sent, in the system's words
    code: str = ""  # of that error: 'EHOSTUNREACH'


class Passphrase(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    there: bool
    fingerprint: str = ""
    mode: int = 0o600  # of the file
    problem: str = ""  # why the file is of no use


# ---- this machine


def machine_ticks(machine: Machine) -> tuple[Tick, ...]:
    whole = f"{machine.system}, Python {machine.python}, swarm {machine.version}, format {FORMAT}"
    return ok("system", whole, topic=MACHINE), _memory(machine), _state(machine)


def _memory(machine: Machine) -> Tick:
    detail = f"{amount(machine.free_memory_bytes)} of {amount(machine.memory_bytes)} free, {counted(machine.cpus, 'processor')}"
    if machine.free_memory_bytes < LITTLE_MEMORY_BYTES:
        return warning("memory", detail, "end other programs before this machine trains", topic=MACHINE)
    return ok("memory", detail, topic=MACHINE)


def _state(machine: Machine) -> Tick:
    if machine.state_problem:
        words = f"{machine.state_dir}: {machine.state_problem}"
        return failed("own files", words, "make it writable, or name another folder with SWARM_STATE_DIR", topic=MACHINE)
    detail = f"{machine.state_dir}, {amount(machine.state_free_bytes)} free"
    if machine.state_free_bytes < LITTLE_SPACE_BYTES:
        remedy = "make room: learners keep what they resume from there, and their logs"
        return warning("own files", detail, remedy, topic=MACHINE)
    return ok("own files", detail, topic=MACHINE)


# ---- frameworks


def framework_ticks(tried: Sequence[Tried], *, nvidia: bool = False) -> tuple[Tick, ...]:
    """`tried`: those that are installed. `nvidia`: whether a driver for NVIDIA's cards is loaded."""
    if not tried:
        words = "neither PyTorch nor MLX is installed: this machine can watch and close rounds, not train"
        return (failed("framework", words, "pip install 'homeswarm[train]'", topic=FRAMEWORK),)
    return tuple(tick for each in tried for tick in _framework(each, nvidia))


def _framework(tried: Tried, nvidia: bool) -> Iterable[Tick]:
    name = f"{tried.framework} {tried.version}".rstrip()
    for device in tried.devices:
        label = f"{tried.framework} {device.name}"
        if device.error:
            remedy = f"see that its driver is loaded and fits {name}; `--device cpu` trains without it"
            if device.name == "cpu":
                remedy = f"install it again: pip install --force-reinstall 'homeswarm[{tried.framework}]'"
            yield failed(label, plain(device.error, 300), remedy, topic=FRAMEWORK)
            continue
        memory = f", {amount(device.memory_bytes)}" if device.memory_bytes else ""
        what = f"{plain(device.what, 60)}{memory}, " if device.what else ""
        yield ok(label, f"{name}, {what}forward pass in {device.took_ms:.0f} ms", topic=FRAMEWORK)
    if tried.hangs_at == "":
        words = f"{name} is still loading after {tried.limit_s:.0f} s"
        yield warning(tried.framework, words, "the first start after an installation is slow: look again", topic=FRAMEWORK)
    elif tried.hangs_at is not None:
        words = f"{name}: no answer for {tried.limit_s:.0f} s"
        remedy = "its driver may hang: restart the machine; `--device cpu` trains without it"
        yield failed(f"{tried.framework} {tried.hangs_at}", words, remedy, topic=FRAMEWORK)
    elif tried.error:
        remedy = f"install it again: pip install --force-reinstall 'homeswarm[{tried.framework}]'"
        yield failed(tried.framework, plain(tried.error, 300), remedy, topic=FRAMEWORK)
    elif tried.framework == "torch" and nvidia and not any("cuda" in device.name for device in tried.devices):
        words = f"an NVIDIA driver is loaded, and {name} sees no CUDA device"
        remedy = "install a build for CUDA (https://pytorch.org/get-started), one that fits the driver; `nvidia-smi` names it"
        yield warning("torch cuda", words, remedy, topic=FRAMEWORK)


# ---- network


def interface_ticks(carriers: Sequence[Carrier]) -> tuple[Tick, ...]:
    """`carriers`: the best first."""
    used = [each for each in carriers if not each.why_not]
    ticks = [_used(each, first=not n) for n, each in enumerate(used)]
    if not used:
        remedy = "connect this machine to the others' network; `--interface NAME` takes one that is left out otherwise"
        ticks.append(failed("interfaces", "no interface leads to other machines", remedy, topic=NETWORK))
    left = [f"{each.name} ({each.why_not})" for each in carriers if each.why_not]
    if left:
        more = f" and {len(left) - NOT_USED} more" if len(left) > NOT_USED else ""
        ticks.append(ok("not used", ", ".join(left[:NOT_USED]) + more, topic=NETWORK))
    return tuple(ticks)


def _used(each: Carrier, *, first: bool) -> Tick:
    bits = each.speed_bytes_per_s * 8
    speed = f", {bits / 1e9:g} Gbit/s" if bits >= 1e9 else f", {bits / 1e6:g} Mbit/s" if bits else ""
    detail = f"{each.address}, {KINDS[each.kind]}{speed}{', used first' if first else ''}"
    if not each.multicast:
        remedy = "switch multicast on (`ip link set NAME multicast on`), or use `--peer HOST`"
        return warning(f"interface {each.name}", f"{detail}; it carries no multicast", remedy, topic=NETWORK)
    return ok(f"interface {each.name}", detail, topic=NETWORK)


def multicast_ticks(heard: Iterable[Multicast], *, platform: str) -> tuple[Tick, ...]:
    ticks = tuple(_multicast(each, platform) for each in heard)
    remedy = "machines find each other in the mailbox, and by `--peer HOST`, too"
    return ticks or (warning("multicast", "not tried: no interface carries any", remedy, topic=NETWORK),)


def _multicast(each: Multicast, platform: str) -> Tick:
    name = f"multicast {each.interface}"
    if not each.sent:
        return failed(name, f"cannot be sent: {plain(each.error, 100)}", _why_not_sent(each, platform), topic=NETWORK)
    others = f"{counted(each.packets, 'packet')} of {counted(each.others, 'other machine')} heard"
    if not each.own:
        remedy = f"a firewall may drop it: {_open('UDP port 5353', platform)}"
        return failed(name, f"sent, and it does not come back; {others}", remedy, topic=NETWORK)
    if not each.others:
        remedy = (
            "nobody else may be there; else let the Wi-Fi router pass multicast between its clients (no 'client isolation', "
            f"no guest network), and {_open('UDP port 5353', platform)}; `--peer HOST` needs no multicast"
        )
        return warning(name, "sent and received, and no other machine is heard", remedy, topic=NETWORK)
    return ok(name, f"sent and received; {others}", topic=NETWORK)


def _why_not_sent(each: Multicast, platform: str) -> str:
    if each.code == "EHOSTUNREACH" and platform == "darwin":
        return LOCAL_NETWORK
    match each.code:
        case "EADDRINUSE":
            return "end the program that holds UDP port 5353 for itself alone, or let it share the port"
        case "EPERM" | "EACCES":
            return f"a firewall forbids it: {_open('UDP port 5353', platform)}"
        case "ENETUNREACH" | "EHOSTUNREACH" | "ENETDOWN" | "EADDRNOTAVAIL":
            return "see that the interface is connected and has an address and a route"
    return "machines find each other through the mailbox, too, and by `--peer HOST`"


def _open(port: str, platform: str) -> str:
    if platform == "darwin":
        return f"let Python receive connections, {port} (System Settings → Network → Firewall → Options)"
    return f"open {port} (ufw allow, or firewall-cmd --add-port)"


def sighting_ticks(seen: Sightings, *, platform: str) -> tuple[Tick, ...]:
    """What discovery itself complains of."""
    ticks = []
    for trouble in seen.trouble:
        remedy = LOCAL_NETWORK if platform == "darwin" and _no_route(trouble) else "machines are found in the mailbox, too"
        ticks.append(warning("discovery", plain(trouble, 300), remedy, topic=NETWORK))
    if seen.ignored:
        words = f"{counted(seen.ignored, 'advert')} made no sense, and {'was' if seen.ignored == 1 else 'were'} ignored"
        ticks.append(warning("adverts", words, "another machine may have a newer swarm: see its version", topic=NETWORK))
    return tuple(ticks)


# ---- peers


def peer_ticks(seen: Sightings, *, now_s: float, platform: str) -> tuple[Tick, ...]:
    """A line for each machine, and how it is seen. `now_s`: in the monotonic time of the sightings."""
    others = [peer for peer in seen.peers if not peer.itself]
    mine = [
        warning(
            "this machine", "another one has the same id", "on a copied home folder: delete the file machine-id", topic=PEERS
        )
        for peer in seen.peers
        if peer.itself and peer.doubled
    ]
    if not others:
        remedy = "start `swarm tui` on another machine of this network; `--peer HOST` asks one that multicast does not reach"
        return (*mine, warning("peers", "no other machine is seen", remedy, topic=PEERS))
    return (*mine, *(_peer(peer, now_s, platform) for peer in others))


def _peer(peer: SeenPeer, now_s: float, platform: str) -> Tick:
    """The worst of what is wrong with it; whether its clock is right is said, and judged by nobody."""
    name, age_s = plain(peer.advert.name, 40), max(0.0, now_s - peer.heard_s)
    said = [f"last advert {age_s:.0f} s ago ({', '.join(peer.how)})"]
    wrong: list[Tick] = []
    if peer.sees_us is not None:
        said.append("sees this machine" if peer.sees_us else "does not see this machine")
    elif peer.ours and "network" in peer.how:
        said.append("has not said yet whether it sees this machine")
    if peer.reached_ms is not None:
        said.append(f"reached at {peer.addresses[0] if peer.addresses else '?'} in {peer.reached_ms:.1f} ms")
    elif peer.unreachable:
        said.append(f"cannot be reached: {plain(peer.unreachable, 120)}")
    if peer.clock_off_s is not None:
        said.append(f"its clock is {clock_words(peer.clock_off_s)}")
    detail = "; ".join(said)
    if peer.reached_ms is None and peer.unreachable:
        remedy = f"on {name}, {_open(f'TCP port {peer.advert.port}' if peer.advert.port else 'its port', '')}"
        if platform == "darwin" and _no_route(peer.unreachable):
            remedy = LOCAL_NETWORK
        judge = failed if age_s <= STALE_S else warning
        if age_s > STALE_S:
            remedy = f"it may be asleep or switched off; else {remedy}"
        wrong.append(judge(name, detail, remedy, topic=PEERS))
    if peer.doubled:
        remedy = "one has a copied home folder: delete the file machine-id there"
        wrong.append(warning(name, f"two machines have its id; {detail}", remedy, topic=PEERS))
    if peer.advert.format != FORMAT:
        which = "this machine" if peer.advert.format > FORMAT else name
        words = f"its format is {peer.advert.format}, this machine's {FORMAT} (swarm {peer.advert.version or '?'}); {detail}"
        wrong.append(warning(name, words, f"upgrade swarm on {which}: they cannot train together", topic=PEERS))
    if not peer.ours:
        remedy = "`swarm key show` compares the fingerprints of the passphrases, `swarm key import` takes another one"
        wrong.append(warning(name, f"of another swarm: its passphrase differs; {detail}", remedy, topic=PEERS))
    elif peer.sees_us is False:
        remedy = (
            f"here, {_open('UDP port 5353', platform)}; there, see that Wi-Fi passes multicast on, or `--peer` this machine"
        )
        wrong.append(warning(name, detail, remedy, topic=PEERS))
    if peer.reached_ms is not None and peer.reached_ms > SLOW_MS:
        wrong.append(warning(name, detail, "it is far away, or on a bad Wi-Fi: use a cable", topic=PEERS))
    worst = sorted(wrong, key=lambda tick: tick.verdict != "failed")
    return worst[0] if worst else ok(name, detail, topic=PEERS)


def clock_words(off_s: float) -> str:
    """'0.3 s ahead', '2 h 5 min behind'."""
    size_s, way = abs(off_s), "ahead" if off_s > 0 else "behind"
    if size_s < 0.05:
        return "the same"
    if size_s < 60:
        return f"{size_s:.1f} s {way}"
    minutes = round(size_s / 60)
    hours, days = minutes // 60, minutes // 1440
    if days:
        return f"{days} d {hours % 24} h {way}"
    return f"{hours} h {minutes % 60} min {way}" if hours else f"{minutes} min {way}"


def _no_route(words: str) -> bool:
    """Whether it is what macOS says to a program that may not use the local network."""
    return "no route to" in words.lower() or "EHOSTUNREACH" in words


# ---- settings, passphrase


def settings_ticks(faults: Sequence[str]) -> tuple[Tick, ...]:
    if not faults:
        return (ok("settings", "as they should be", topic=SETTINGS),)
    return tuple(failed("settings", plain(fault, 300), "mend the file", topic=SETTINGS) for fault in faults)


def passphrase_ticks(passphrase: Passphrase) -> tuple[Tick, ...]:
    if passphrase.there and passphrase.mode & 0o077:
        words = f"{passphrase.path} can be read by others (mode {passphrase.mode & 0o777:04o})"
        return (failed("passphrase", words, f"chmod 600 {passphrase.path}", topic=SETTINGS),)
    if passphrase.problem:
        remedy = "`swarm key import` takes the passphrase of another machine, `swarm key new` makes one"
        return (failed("passphrase", plain(passphrase.problem, 300), remedy, topic=SETTINGS),)
    if not passphrase.there:
        words = "none: the swarm is open, anybody who can write to the share can take part and command"
        remedy = "`swarm key new` makes a passphrase; `swarm key import` takes it to the other machines"
        return (warning("passphrase", words, remedy, topic=SETTINGS),)
    words = f"fingerprint {passphrase.fingerprint}, the same on every machine of this swarm; only its owner can read the file"
    return (ok("passphrase", words, topic=SETTINGS),)
