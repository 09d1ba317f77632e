"""Stored ticks: what one saw and answered, made again from its columns."""

from __future__ import annotations

from apps.engine import codec
from apps.engine.cycle import schedule
from apps.scheduling.decision import Decision
from apps.scheduling.models import Tick
from apps.scheduling.snapshot import Seen


class NothingStored(Exception):
    """The tick was thinned out: its snapshot is gone."""


def decision_of(tick: Tick) -> Decision:
    """Return what a stored tick saw and answered.

    :raises NothingStored: if its columns are gone.
    """
    if tick.snapshot is None or tick.plan is None:
        raise NothingStored(f"Tick {tick.pk} keeps no snapshot any more.")
    snapshot, policy = codec.decode_snapshot(bytes(tick.snapshot))
    seen = Seen(
        snapshot=snapshot,
        policy=policy,
        pending_ids=snapshot.pending.id.tolist(),
        node_ids=snapshot.nodes.id.tolist(),
        tenant_ids=snapshot.tenants.id.tolist(),
        pool_ids=snapshot.pools.id.tolist(),
        holds={},
    )
    return Decision(seen, codec.decode_plan(bytes(tick.plan)))


def replay(tick: Tick) -> list[str]:
    """Run the engine again on a stored snapshot; return what differs from the stored plan."""
    stored = decision_of(tick)
    again = schedule(stored.seen.snapshot, stored.seen.policy)
    return codec.difference(stored.plan, again)
