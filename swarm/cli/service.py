"""`swarm service`: a machine that stands by from its start on."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from typing import Any, TypeVar, get_args

import click

from swarm.cli.common import LearnerChoice, json_option, learner_options, mailbox_option, put, say
from swarm.cli.waiting import RulesChoice, rule_options, rules_of, standing
from swarm.core.buckets import is_objects
from swarm.core.sentences import plain
from swarm.host.service import Manager

F = TypeVar("F", bound=Callable[..., Any])
ASK_S = 10.0

manager_option = click.option(
    "--manager", type=click.Choice(get_args(Manager)), help="What starts it; by default systemd on Linux, and launchd on macOS."
)


@click.group()
def service() -> None:
    """Have this machine stand by from its start on: `swarm join --wait`, started and watched over by the system.

    Only a file is written: a systemd user unit, or a launchd agent. The commands that make the system use it are shown, and
    are yours to run."""


@service.command()
@click.option("--print", "only_print", is_flag=True, help="Print the file, and write nothing.")
@manager_option
@rule_options
@learner_options
@mailbox_option
def install(only_print: bool, manager: Manager | None, rules: RulesChoice, learner: LearnerChoice, mailbox: str | None) -> None:
    """Write the service's file, with these options of `swarm join --wait`."""
    from swarm import api
    from swarm.host import service as services

    for fault in api.settings_faults():
        say(fault)
    chosen = manager or services.manager_here()
    location = None if mailbox is None else api.mailbox_location(mailbox)
    rules_of(rules)
    order = api.learn_order(location or "", "none", **standing(learner))
    arguments = ["join", "--wait", *_rule_words(rules), *_learner_words(learner, order)]
    arguments += [] if location is None else ["--mailbox", location]
    text = services.text_of(chosen, arguments, nice=order.nice)
    if only_print:
        print(text, end="")
        return
    path = services.install(chosen, text)
    say(f"{path} is written. Next:")
    for step in services.next_steps(chosen):
        say(f"  {step}")
    if chosen == "systemd":
        say("The last one lets it run while nobody is logged in. `swarm service status` shows how it fares.")
    if any(is_objects(each) for each in (location or "", *api.known_mailboxes())):
        say("For mailboxes in a bucket it finds credentials in ~/.aws/credentials: it does not have this shell's variables.")
    if location is None and not api.known_mailboxes():
        say("no mailbox is known here yet: `swarm init DIR`, or --mailbox DIR")


@service.command()
@manager_option
def uninstall(manager: Manager | None) -> None:
    """Remove the file that `swarm service install` has written, and nothing else."""
    from swarm.host import service as services

    chosen = manager or services.manager_here()
    path = services.place(chosen)
    if not services.uninstall(chosen):
        say(f"there is no {path}")
        return
    say(f"{path} is removed")
    if chosen == "launchd":
        say(f"if it still runs: {services.undoing_steps(chosen)[0]}")


@service.command()
@manager_option
@json_option
def status(manager: Manager | None, as_json: bool) -> int:
    """Show whether the service is installed, whether the system runs it, and where its log is."""
    from swarm import standby
    from swarm.host import service as services

    chosen = manager or services.manager_here()
    there = services.installed(chosen)
    state = _asked(chosen) if there is not None else ""
    pid = standby.other()
    if as_json:
        put(
            {
                "manager": chosen,
                "file": str(services.place(chosen)),
                "installed": there is not None and services.MARK in there,
                "enabled": services.enabled(chosen),
                "state": state or None,
                "stands_by": pid,
                "log": str(standby.log_file()),
            }
        )
    elif there is None:
        say(f"not installed: there is no {services.place(chosen)}; `swarm service install`")
    else:
        whose = "" if services.MARK in there else ", which was not made by swarm"
        print(f"file     {services.place(chosen)}{whose}")
        print(f"{chosen:<8} {state or 'does not answer'}")
        if chosen == "systemd" and not services.enabled(chosen):
            print(f"         not enabled: {services.next_steps(chosen)[1]}")
    if not as_json:
        print(f"now      {'nobody stands by here' if pid is None else f'process {pid} stands by'}")
        print(f"log      {standby.log_file()}")
    return 0 if there is not None else 1


def _rule_words(rules: RulesChoice) -> list[str]:
    words = [f"--only={name}" for name in rules["only"]]
    words += [f"--method={method}" for method in rules["methods"]]
    return words + ([] if rules["max_memory"] is None else [f"--max-memory={rules['max_memory']}"])


def _learner_words(learner: LearnerChoice, order: Any) -> list[str]:
    """The options again, with absolute paths: a service runs elsewhere. Those that nobody gave are left to the settings."""
    words = []
    values: dict[str, Any] = dict(learner) | {"data": order.data, "model": order.model, "adapter_path": order.adapter_path}
    defaults = {"framework": "auto", "device": "auto", "role": "both"}
    for name, value in values.items():
        option = name.replace("_", "-")
        if value is None or value == defaults.get(name):
            continue
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        else:
            words.append(f"--{option}={value}")
    return words


def _asked(manager: Manager) -> str:
    """What the system says of it, in a line; '' if it says nothing."""
    from swarm.host import service as services

    if manager == "systemd":
        command = ["systemctl", "--user", "show", services.UNIT, "--property=ActiveState,SubState,Result", "--value"]
    else:
        command = [*services.undoing_steps(manager)[0].replace("bootout", "print").split()]
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=ASK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if done.returncode != 0:
        return "not loaded" if manager == "launchd" else ""
    if manager == "launchd":
        state = [line.strip() for line in done.stdout.splitlines() if line.strip().startswith(("state =", "last exit code"))]
        return plain(", ".join(state), 200) or "loaded"
    return plain(", ".join(filter(None, done.stdout.split())), 200)
