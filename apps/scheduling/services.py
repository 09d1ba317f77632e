"""The tick: observe, decide, act, once for one cluster, on its own clock."""

from __future__ import annotations

import logging
import time
from datetime import datetime, timedelta

from django.utils import timezone

from apps.backends.kinds import backend_of
from apps.backends.models import Cluster
from apps.backends.pace import looks_every
from apps.backends.port import Backend, BackendError
from apps.common.prepared import Prepared
from apps.common.time import to_us
from apps.common.upkeep import refresh_statistics
from apps.jobs.arrivals import submit_due
from apps.jobs.models import Job
from apps.jobs.states import WAITING
from apps.ledger.intervals import set_marks
from apps.ledger.rollup import roll_up
from apps.scheduling import steps
from apps.scheduling.act import act
from apps.scheduling.advise import advise
from apps.scheduling.alive import Alive
from apps.scheduling.decide import decide, stranded_of, thin_out, write
from apps.scheduling.decision import Decision
from apps.scheduling.forecasts import is_due, make_forecast
from apps.scheduling.frame import Frames, StaleFrame
from apps.scheduling.leases import Lease, LeaseLost, claim, fenced, release, renew
from apps.scheduling.marks import held_idle_of, unsampled
from apps.scheduling.models import Tick
from apps.scheduling.observe import observe
from apps.scheduling.planned import set_due

logger = logging.getLogger(__name__)

# How long one task may keep ticking a virtual clock, and how often its pages are written, seconds.
CATCH_UP_SECONDS = 5.0
SHOW_EVERY_SECONDS = 1.5


ANY_WAITS = Prepared(
    lambda cluster_id: Job.objects.filter(
        cluster=cluster_id, state__in=sorted(WAITING)
    ).values_list("id")[:1]
)


def _decide(cluster: Cluster, frames: Frames, alive: list[Alive], *, now: datetime) -> Decision:
    """Decide with the frame as last read, or with a new one where it is stale."""
    try:
        return decide(cluster, frames, now=now, alive=alive)
    except StaleFrame:
        frames.forget()
        return decide(cluster, frames, now=now, alive=alive)


def _decide_and_write(
    cluster: Cluster,
    lease: Lease,
    frames: Frames,
    alive: list[Alive],
    *,
    now: datetime,
    observe_ms: float,
    show: bool,
) -> tuple[Tick, Decision]:
    """Decide and write it down."""
    began = time.perf_counter()
    steps.reached("decide")
    decision = _decide(cluster, frames, alive, now=now)
    timings = {"observe_ms": observe_ms, "decide_ms": (time.perf_counter() - began) * 1e3}
    timeout = frames.get().policy_row.gang_timeout_seconds
    steps.reached("write")
    tick = write(
        cluster, decision, lease, now=now, timeout_seconds=timeout, timings=timings, show=show
    )
    return tick, decision


def pass_once(
    cluster: Cluster,
    backend: Backend,
    lease: Lease,
    *,
    now: datetime,
    show: bool = True,
    frames: Frames | None = None,
) -> Tick | None:
    """Observe, decide and act once at the cluster's time ``now``.

    ``frames`` keeps what rarely changes from one tick to the next.
    ``show`` writes the verdicts that pages read; a virtual clock that hurries skips most. Without
    it, and with nobody waiting, there is nothing to decide: no Tick is written, None is returned.
    """
    began = time.perf_counter()
    steps.reached("observe")
    frames = frames or Frames(cluster)
    set_due(cluster, lease, frames, now=now)
    submit_due(cluster, now=now, intake=frames.intake)
    alive = observe(cluster, backend, lease, frames, now=now)
    samples = [*backend.utilisation(now=now), *unsampled(alive, now=now)]
    observe_ms = (time.perf_counter() - began) * 1e3
    tick, decision, stranded = None, None, dict[int, int]()
    if show or ANY_WAITS.rows(cluster.pk):
        tick, decision = _decide_and_write(
            cluster, lease, frames, alive, now=now, observe_ms=observe_ms, show=show
        )
        stranded = stranded_of(decision)
    steps.reached("act")
    act(cluster, backend, lease, now=now)
    advise(cluster, backend, lease, decision, now=now)
    steps.reached("book")
    with fenced(lease):
        idle, unknown = held_idle_of(cluster, samples)
        set_marks(cluster, at_us=to_us(now), held_idle=idle, stranded=stranded, unknown=unknown)
        roll_up(cluster, until_us=to_us(now))
    return tick


def _tidy_up(cluster: Cluster, *, now: datetime) -> None:
    """Do what each batch of ticks leaves to be done."""
    thin_out(cluster, now=now)
    refresh_statistics()


def _asked_again(cluster: Cluster, looked_at: datetime) -> bool:
    """Return whether a change asked for a tick after the last one looked."""
    row = Cluster.objects.filter(pk=cluster.pk).values_list("tick_requested_at", flat=True)
    asked = row.first()
    return asked is not None and asked > looked_at


def _tick_wall(cluster: Cluster, backend: Backend, lease: Lease) -> None:
    """Tick on wall time, and again while changes ask for it: at most once a second.

    One that is looked at less often, as it is slow, is not asked again before its time.
    """
    end = time.monotonic() + 0.8 * cluster.tick_seconds
    while True:
        looked_at = timezone.now()
        newest = pass_once(cluster, backend, lease, now=looked_at)
        if newest is not None and newest.pending and is_due(cluster):
            renew(lease)
            make_forecast(cluster, newest)
        if looks_every(cluster) > cluster.tick_seconds:
            break
        if not _asked_again(cluster, looked_at) or time.monotonic() + 1 > end:
            break
        time.sleep(max(0.0, 1 - (timezone.now() - looked_at).total_seconds()))
    _tidy_up(cluster, now=timezone.now())


def next_instant(cluster: Cluster) -> datetime | None:
    """Return where a virtual clock goes next; None: it has caught up with wall time."""
    if cluster.clock_now is None:
        return None
    step = timedelta(seconds=cluster.clock_step)
    if cluster.clock_until is not None:
        return min(cluster.clock_now + step, cluster.clock_until)
    wall = timezone.now()
    return None if cluster.clock_now + step >= wall else cluster.clock_now + step


def step_virtual(
    cluster: Cluster,
    backend: Backend,
    lease: Lease,
    *,
    show: bool = True,
    frames: Frames | None = None,
) -> bool:
    """Tick at the virtual clock's instant, then move it on; False when it stands still.

    The clock moves after the tick: a tick that was cut off is made again at the same instant.
    """
    now = cluster.now()
    pass_once(cluster, backend, lease, now=now, show=show, frames=frames)
    following = next_instant(cluster)
    renew(lease, clock_now=following)
    moved = following != cluster.clock_now
    cluster.clock_now = following
    return moved


def _catch_up(cluster: Cluster, backend: Backend, lease: Lease) -> None:
    """Tick a virtual clock as fast as it goes, for a few seconds."""
    began = time.monotonic()
    shown: float | None = None
    frames = Frames(cluster)
    while cluster.clock_now is not None:
        late = time.monotonic()
        last = late - began > CATCH_UP_SECONDS
        show = last or shown is None or late - shown > SHOW_EVERY_SECONDS
        if show:
            shown = late
            frames.forget()
        if not step_virtual(cluster, backend, lease, show=show, frames=frames) or last:
            break
        # A story that is to be watched goes on at a pace, wall seconds a step.
        time.sleep(min(float(cluster.options.get("pace", 0)), 1.0))
    _tidy_up(cluster, now=cluster.now())


def tick(cluster: Cluster, *, holder: str = "tick") -> bool:
    """Tick one cluster if it is free and due; return whether this call did.

    A cluster in trouble says so on its row and on the pages; it never holds up another.
    """
    started = time.time()
    lease = claim(cluster, holder=holder)
    if lease is None:
        return False
    cluster.refresh_from_db()
    try:
        backend = backend_of(cluster)
        if cluster.clock_now is None:
            _tick_wall(cluster, backend, lease)
        else:
            _catch_up(cluster, backend, lease)
    except LeaseLost:
        logger.warning("lost the lease of cluster %s", cluster.name)
        return False
    except BackendError as error:
        cluster.failed_looks += 1
        Cluster.objects.filter(pk=cluster.pk).update(
            trouble=error.message, failed_looks=cluster.failed_looks
        )
        logger.warning("cluster %s: %s", cluster.name, error.message)
    except Exception:
        said = "The tick failed by a mistake of ours; the worker's log has it."
        Cluster.objects.filter(pk=cluster.pk).update(trouble=said)
        raise
    finally:
        release(lease, started=started, period=_period(cluster))
    return True


def _period(cluster: Cluster) -> float:
    """Return the seconds between two ticks; a clock that hurries needs no pause."""
    return 0.0 if cluster.clock_now is not None else looks_every(cluster)
