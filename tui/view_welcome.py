"""What the page of the first start says: values in, words out. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tui import text

if TYPE_CHECKING:
    from swarm.api.welcoming import Begun, Folder, Machine
    from tui.widgets.toned import Line

_FRAMEWORKS = {"torch": "PyTorch", "mlx": "MLX"}


def headline() -> Line:
    return (("swarm ▸ ", "dim"), ("first start", "strong"), ("  nothing is written before you say so", "dim"))


def name_lines(typed: str, machine: Machine | None) -> Iterator[Line]:
    if fault := name_fault(typed):
        yield (("✗ ", "bad"), (fault, ""))
    elif machine is None:
        yield (("◌ ", "dim"), ("looking at this machine …", "dim"))
    else:
        own = "" if typed.strip() in ("", machine.name) else f", in place of {text.plain(machine.name, 40)}"
        yield (("✓ ", "good"), (f"other machines see it under this name{own}", "dim"))


def name_fault(typed: str) -> str:
    name = typed.strip()
    if len(name) > 64:
        return "at most 64 characters"
    return "" if text.plain(name, 64) == name else "one line of plain text"


def folder_lines(folder: Folder | None, machine: Machine | None, home: str) -> Iterator[Line]:
    """`folder`: None while it is looked at."""
    if folder is None:
        yield (("◌ ", "dim"), ("looking at the folder …", "dim"))
    elif not folder.path:
        yield (("○ ", "dim"), ("without a mailbox: Home tells how one is made later", "dim"))
    elif (fault := folder.fault) is not None:
        yield (("✗ ", "bad"), (text.plain(fault.detail, 200), ""))
        yield (("  ", ""), (text.plain(fault.remedy, 200), "dim"))
    else:
        found = [tick for tick in folder.ticks if tick.detail]
        worst = next((tick for tick in found if tick.verdict == "warning"), None)
        words = "; ".join(text.plain(tick.detail, 120) for tick in found)
        yield (("⚠ ", "warn") if worst else ("✓ ", "good"), (words, ""))
        if worst:
            yield (("  ", ""), (text.plain(worst.remedy, 200), "dim"))
    if machine is not None and machine.shares:
        places = ", ".join(text.short_path(text.plain(share, 60), home) for share in machine.shares[:3])
        yield (("  ", ""), (f"shares mounted here: {places}", "dim"))


def framework_lines(machine: Machine | None) -> Iterator[Line]:
    if machine is None:
        yield (("◌ ", "dim"), ("looking what is installed …", "dim"))
    elif machine.frameworks:
        names = " and ".join(_FRAMEWORKS.get(each, each) for each in machine.frameworks)
        yield (("✓ ", "good"), (f"{names} {'is' if len(machine.frameworks) == 1 else 'are'} installed", "dim"))
    else:
        yield (("✗ ", "bad"), ("neither PyTorch nor MLX is installed: this machine can watch, and close rounds", ""))
        yield (("  to train: ", ""), (machine.remedy, "accent"))


def passphrase_lines(machine: Machine | None, *, signed: bool) -> Iterator[Line]:
    if machine is not None and machine.fingerprint:
        yield (("✓ ", "good"), (f"this machine has one, fingerprint {machine.fingerprint}: what it writes is signed", "dim"))
    elif signed:
        yield (("  ", ""), ("one is made and shown: type it at your other machines (swarm key import)", "dim"))
    else:
        yield (("  ", ""), ("open: whoever can write to the folder can take part, in anybody's name", "dim"))


def may_set_up(folder: Folder | None, typed_name: str) -> bool:
    return folder is not None and bool(folder.path) and folder.fault is None and not name_fault(typed_name)


def may_train(folder: Folder | None, machine: Machine | None, typed_name: str) -> bool:
    return machine is not None and bool(machine.frameworks) and may_set_up(folder, typed_name)


def begun_lines(begun: Begun, home: str) -> Iterator[Line]:
    """After it is done, if there is something to keep in mind."""
    yield ((f"{text.short_path(text.plain(begun.mailbox, 200), home)} is a mailbox now.", ""),)
    yield ()
    yield (("The passphrase, for your other machines (there: swarm key import):", ""),)
    yield ((f"    {begun.passphrase}", "strong"),)
    yield (("swarm key show prints it again.", "dim"),)
