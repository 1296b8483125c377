"""How `swarm start` goes on once it knows what is asked for, whatever the method."""

from __future__ import annotations

from swarm import api
from swarm.api import planning
from swarm.cli.common import remember, wait_for, where
from swarm.core.request import RunRequest


def begin(request: RunRequest, *, mailbox: str | None, detach: bool, as_json: bool) -> int:
    """Make the run, and train in it unless only that was asked for: the exit code."""
    from swarm.cli import narrate

    location = where(mailbox)
    create = planning.create_order(request)
    wait_for(api.check_new_name(location, create.name))
    remember(location)
    orders = planning.orders(request, location, create)
    if detach and request.join:
        return narrate.detach(orders, name=create.name, as_json=as_json)
    return narrate.follow(orders, as_json=as_json)
