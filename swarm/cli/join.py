"""`swarm join`."""

from __future__ import annotations

import click

from swarm import api
from swarm.cli.common import (
    LearnerChoice,
    json_option,
    learner_options,
    mailbox_option,
    remember,
    say,
    wait_for,
    where,
    workers_option,
)
from swarm.cli.waiting import RulesChoice, check_no_rules, check_waiting, stand_by, waiting_options
from swarm.core.errors import NothingToJoin, UsageError
from swarm.core.sentences import amount, plain


@click.command()
@click.argument("run", required=False)
@click.option("--detach", is_flag=True, help="Train in the background; `swarm jobs` shows it.")
@waiting_options
@workers_option
@learner_options
@mailbox_option
@json_option
def join(
    run: str | None,
    detach: bool,
    wait: bool,
    rules: RulesChoice,
    workers: int,
    learner: LearnerChoice,
    mailbox: str | None,
    as_json: bool,
) -> int:
    """Take part in a run: RUN is a name, an id, or the start of one. Without it, in the only one that can be joined.

    With --wait this machine stands by: it takes part in runs as they appear, one at a time, until it is told to end."""
    from swarm.cli import narrate

    if wait:
        check_waiting(detach=detach, workers=workers)
        return stand_by(rules, run=run, learner=learner, mailbox=mailbox, as_json=as_json)
    check_no_rules(rules)

    location = where(mailbox)
    manifest = wait_for(_chosen(location, run))
    remember(location)
    if learner["data"] is None:
        for file in manifest.files:
            say(f"{plain(manifest.name)} brings {plain(file.name)} along, {amount(file.size_bytes)}")
    if workers > 1 and isinstance(manifest.algorithm, api.FedAvg) and manifest.algorithm.private:
        raise UsageError(f"the clients of {plain(manifest.name)} are private: --workers would give all the same data")
    orders = api.learn_orders(location, manifest.run, workers, run_name=manifest.name, **learner)
    if detach:
        return narrate.detach(orders, name=manifest.name, as_json=as_json)
    return narrate.follow(orders, as_json=as_json)


async def _chosen(location: str, run: str | None) -> api.Manifest:
    if run is not None:
        manifest = await api.find_run(location, run)
        await api.check_joinable(location, manifest)
        return manifest
    found = await api.joinable(location)
    if len(found) == 1:
        return found[0]
    if not found:
        raise NothingToJoin(f"no run to join in {location}: `swarm start diloco` starts one")
    names = "\n".join(f"  {plain(m.name)}  {m.run}" for m in found)
    raise NothingToJoin(f"several runs can be joined: say which, as in `swarm join {plain(found[0].name)}`\n{names}")
