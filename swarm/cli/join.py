"""`swarm join`."""

from __future__ import annotations

import click

from swarm import api
from swarm.cli.common import (
    LearnerChoice,
    command_words,
    json_option,
    learner_options,
    mailbox_option,
    peers_option,
    remember,
    say,
    workers_option,
)
from swarm.cli.joining import check_option, mount_option
from swarm.cli.waiting import RulesChoice, check_no_rules, check_waiting, stand_by, waiting_options
from swarm.core.errors import UsageError
from swarm.core.sentences import amount, plain


@click.command()
@click.argument("run", required=False)
@click.option("--detach", is_flag=True, help="Train in the background; `swarm jobs` shows it.")
@check_option
@mount_option
@waiting_options
@click.option(
    "--notify",
    metavar="COMMAND",
    help="Run this when the run ends, or loses this machine, with the news as one more argument; else the settings' `notify`.",
)
@workers_option
@learner_options
@mailbox_option
@peers_option
@json_option
def join(
    run: str | None,
    detach: bool,
    check: bool,
    mounting: bool | None,
    wait: bool,
    rules: RulesChoice,
    notify: str | None,
    workers: int,
    learner: LearnerChoice,
    mailbox: str | None,
    peers: tuple[str, ...],
    as_json: bool,
) -> int:
    """Take part in a run: RUN is a name, an id, or the start of one. Without it, in the only one that can be joined.

    Runs are looked for in the known mailboxes, and on the network. With --wait this machine stands by: it takes part
    in runs as they appear, one at a time, until it is told to end.
    """
    from swarm.cli import joining, narrate

    command = None if notify is None else command_words(notify)
    if command and (wait or detach or check):
        raise UsageError("--notify goes with training in the foreground; `swarm tui` tells of runs that others train, too")
    if wait:
        check_waiting(detach=detach, workers=workers, check=check, mounts=bool(mounting))
        if peers:
            raise UsageError("--wait and --peer do not go together: a machine that stands by asks `peers` of the settings")
        return stand_by(rules, run=run, learner=learner, mailbox=mailbox, as_json=as_json)
    check_no_rules(rules)
    if check:
        return joining.check(run, mailbox=mailbox, peers=peers, learner=learner, as_json=as_json)
    location, manifest = joining.ready(run, mailbox=mailbox, peers=peers, mounting=mounting, learner=learner)
    remember(location)
    if learner["data"] is None:
        for file in manifest.files:
            say(f"{plain(manifest.name)} brings {plain(file.name)} along, {amount(file.size_bytes)}")
    if workers > 1 and isinstance(manifest.algorithm, api.FedAvg) and manifest.algorithm.private:
        raise UsageError(f"the clients of {plain(manifest.name)} are private: --workers would give all the same data")
    orders = api.learn_orders(location, manifest.run, workers, run_name=manifest.name, **learner)
    if detach:
        return narrate.detach(orders, name=manifest.name, as_json=as_json)
    return narrate.follow(orders, as_json=as_json, notify=command)
