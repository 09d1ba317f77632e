"""A made workload for the demo, after published figures; the same seed makes the same jobs.

Where each figure comes from:

* Job sizes, and run times by size (log-normal: median, and the standard deviation of the natural
  logarithm): counted in the published trace of Helios' cluster Venus (125,303 GPU jobs; Hu et al.,
  SC'21). Its run times end at 48 h; ours at 24 h, so that a week shows many of them end.
* Submissions by hour of the day: counted there too; its hours start with the trace.
* Submissions by day of the week: counted in the published trace of Philly (82,247 jobs; Jeon et
  al., USENIX ATC'19).
* 15.5 % of Helios' GPU jobs fail, and take 9.3 % of the GPU time, so a failing job runs 0.6 of
  another's time (Table of clusters in AcmeTrace; Hu et al., NSDI'24). Its 22.1 % that people cancel
  end as succeeded here: a workload does not cancel itself.
* Evaluations are many, small and short, with a median of about two minutes (Acme, NSDI'24: the
  median GPU job of Seren takes 122 s, of Kalos 124 s).
* Nodes fail 6.5 times per 1,000 node-days (RSC-1; Kokolis et al., HPCA'25).

Ours, without a source: which tenant runs what, limits of at least twice the run time, how busy the
GPUs are, that one long job in twelve leaves its GPUs idle for the last part, the daily drain of
one node for maintenance, how often evaluations come, who can save its work when asked and how long
that takes, which gangs are elastic, and that people sit at one small job in ten of one team.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from apps.backends.worlds import NodeChange
from apps.jobs.trace_import import limit_for, members_of

HOUR = 3_600
LONGEST = 24 * HOUR
LOAD = 0.95
"""What the jobs ask of the GPUs on average; above 1 in the busy hours, so that a queue forms."""

GPU_POOL = "h100"
SLICE_POOL = "mig-1g.10gb"

# GPUs: (share of the jobs, median seconds, deviation of the logarithm). Above 32 the trace is
# one class, split here.
SIZES: dict[int, tuple[float, float, float]] = {
    1: (0.5184, 190.0, 2.45),
    2: (0.0555, 211.0, 2.95),
    4: (0.0742, 174.0, 2.85),
    8: (0.2517, 216.0, 2.55),
    16: (0.0417, 420.0, 3.03),
    32: (0.0362, 213.0, 2.90),
    64: (0.0174, 131.0, 2.64),
    128: (0.0049, 131.0, 2.64),
}
BY_HOUR = (
    *(1.11, 0.85, 0.78, 0.94, 1.58, 3.36, 5.45, 6.10, 4.86, 5.46, 6.50, 6.94),
    *(7.19, 7.21, 5.34, 5.46, 5.60, 5.67, 4.77, 4.33, 3.70, 2.72, 2.48, 1.60),
)
BY_WEEKDAY = (12.32, 15.23, 16.26, 18.38, 20.61, 8.70, 8.50)
FAILS, FAILS_AFTER = 0.155, 0.6
EVALUATION_MEDIAN, EVALUATION_DEVIATION = 122.0, 1.0
FAILURES_PER_NODE_HOUR = 6.5 / 1_000 / 24

# Seconds between evaluations on average: few in the history, more from then on, so that something
# happens every few seconds.
EVALUATION_EVERY, EVALUATION_EVERY_LIVE = 45.0, 14.0

# Tenant: its part of the jobs of up to 4 GPUs, of 8 and 16, of more; the stems of their names.
WHO: dict[str, tuple[tuple[float, float, float], tuple[str, ...]]] = {
    "vision/generative": ((2.0, 3.0, 3.0), ("diffusion", "video-vae", "sr-gan")),
    "vision/perception": ((4.0, 3.0, 1.0), ("detector", "segment", "depth")),
    "nlp/pretrain": ((0.5, 2.5, 6.0), ("pretrain-7b", "pretrain-34b", "tokens-ablation")),
    "nlp/alignment": ((2.0, 3.0, 1.5), ("dpo", "reward-model", "rlhf")),
    "nlp/eval": ((3.0, 0.5, 0.0), ("long-context", "harness")),
    "bio": ((2.0, 1.5, 0.5), ("folding", "docking")),
    "robotics": ((2.5, 0.8, 0.0), ("policy-sim", "grasp")),
    "ops": ((0.6, 0.2, 0.0), ("burn-in", "nccl-test")),
    "guest": ((0.9, 0.0, 0.0), ("student", "trial")),
}
EVALUATORS = ("nlp/eval", "nlp/alignment", "vision/perception", "guest")
EVALUATOR_PARTS = (6.0, 2.0, 2.0, 1.0)
SCAVENGES = "guest"
"""The tenant whose jobs go in the lowest class."""

# Asked to save its work: how many ignore it, and the seconds it takes the others (log-normal). With
# a grace of two minutes about one in nine is too late.
DEAF, SAVES_MEDIAN, SAVES_DEVIATION = 0.05, 30.0, 0.9
ELASTIC = 0.3
"""Of the gangs of at least two nodes: they go on with half of their members."""

ATTENDED, ATTENDED_PART, ATTENDED_CLASS = "vision/generative", 0.1, "interactive"
"""The team whose jobs of one GPU nobody may evict, where somebody sits at them; in its promise."""


@dataclass(frozen=True, slots=True)
class Made:
    """A submission to come: the tenant's path and an ``Arrival.spec``."""

    at: datetime
    tenant: str
    spec: dict[str, Any]


def mean_seconds(median: float, deviation: float, most: float = LONGEST) -> float:
    """Return the mean of a log-normal time that is cut off at ``most``.

    Source: the limited expected value of the log-normal distribution.
    """
    mu = math.log(median)
    mean = math.exp(mu + deviation**2 / 2)

    def below(z: float) -> float:
        return (1 + math.erf(z / math.sqrt(2))) / 2

    z = (math.log(most) - mu) / deviation
    return mean * below(z - deviation) + most * (1 - below(z))


@cache
def jobs_per_hour(gpus: int, load: float = LOAD) -> float:
    """Return how many jobs an hour ask on average for ``load`` of that many GPUs."""
    shortened = 1 - FAILS + FAILS * FAILS_AFTER
    a_job = sum(
        share * size * mean_seconds(median, deviation)
        for size, (share, median, deviation) in _sizes(gpus).items()
    )
    return load * gpus * HOUR / (a_job * shortened)


@cache
def _sizes(gpus: int) -> dict[int, tuple[float, float, float]]:
    """Return the sizes that half of a cluster can take, their shares adding up to one."""
    kept = {size: row for size, row in SIZES.items() if size <= max(1, gpus // 2)}
    whole = sum(row[0] for row in kept.values())
    return {size: (row[0] / whole, row[1], row[2]) for size, row in kept.items()}


def _hours(start: datetime, end: datetime) -> Iterator[datetime]:
    hour = start.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    while hour < end:
        yield hour
        hour += timedelta(hours=1)


def _busy(hour: datetime) -> float:
    """Return how busy an hour is; 1 is the average of a week."""
    day = BY_WEEKDAY[hour.weekday()] * 7 / sum(BY_WEEKDAY)
    return day * BY_HOUR[hour.hour] * 24 / sum(BY_HOUR)


def _dice(seed: int, what: str, hour: datetime) -> random.Random:
    # Each hour has dice of its own: an hour's jobs do not depend on where the making began.
    return random.Random(f"{seed} {what} {hour:%Y-%m-%dT%H}")  # noqa: S311  a workload, no secret


def _instants(dice: random.Random, hour: datetime, per_hour: float) -> Iterator[datetime]:
    """Give the instants of a Poisson process within an hour."""
    seconds = 0.0
    while per_hour > 0 and (seconds := seconds + dice.expovariate(per_hour / HOUR)) < HOUR:
        yield hour + timedelta(microseconds=int(seconds * 1e6))


def made_jobs(
    seed: int, start: datetime, end: datetime, *, gpus: int, slices: int, live_from: datetime
) -> Iterator[Made]:
    """Give the submissions from ``start`` to before ``end``, in order within each hour and pool.

    ``gpus`` and ``slices`` are the sizes of the two pools. What is made for a span is the same
    whether it is made in one piece or in several.
    """
    for hour in _hours(start, end):
        dice = _dice(seed, "jobs", hour)
        for at in _instants(dice, hour, jobs_per_hour(gpus) * _busy(hour)):
            made = _job(dice, at, gpus)
            if start <= at < end:
                yield made
        every = EVALUATION_EVERY if hour < live_from else EVALUATION_EVERY_LIVE
        dice = _dice(seed, "evaluations", hour)
        for at in _instants(dice, hour, HOUR / every * _busy(hour) if slices else 0.0):
            made = _evaluation(dice, at)
            if start <= at < end:
                yield made


def _seconds(dice: random.Random, median: float, deviation: float) -> tuple[float, str]:
    """Return a run time and how it ends."""
    took = min(dice.lognormvariate(math.log(median), deviation), float(LONGEST))
    if dice.random() < FAILS:
        return max(1.0, round(took * FAILS_AFTER, 3)), "failed"
    return max(1.0, round(took, 3)), "succeeded"


def _behaviour(dice: random.Random, seconds: float) -> dict[str, Any]:
    """Return how busy a job keeps its GPUs."""
    does: dict[str, Any] = {"utilisation": round(dice.triangular(0.35, 0.99, 0.92), 2)}
    idles, unknown, after = dice.random(), dice.random(), dice.uniform(0.4, 0.8)
    if seconds > 2 * HOUR and idles < 1 / 12:
        does["idle_after"] = round(seconds * after)
    elif unknown < 0.02:
        does["unknown"] = True
    return does


def _takes(dice: random.Random) -> float | str:
    """Return how long a job takes to save its work when it is asked to leave."""
    deaf, seconds = (
        dice.random() < DEAF,
        dice.lognormvariate(math.log(SAVES_MEDIAN), SAVES_DEVIATION),
    )
    return "never" if deaf else round(seconds, 1)


def _job(dice: random.Random, at: datetime, gpus: int) -> Made:
    sizes = _sizes(gpus)
    asked = dice.choices(list(sizes), [row[0] for row in sizes.values()])[0]
    seconds, outcome = _seconds(dice, *sizes[asked][1:])
    column = 0 if asked <= 4 else 1 if asked <= 16 else 2
    tenant = dice.choices(list(WHO), [parts[column] for parts, _ in WHO.values()])[0]
    size, each = members_of(asked)
    workload = {
        "kind": "simulated",
        "runtime": seconds,
        "outcome": outcome,
        **_behaviour(dice, seconds),
    }
    if asked >= 8:
        workload["checkpoint_every"] = dice.choice((900, 1_800, 3_600))
    workload["checkpoint_takes"] = _takes(dice)
    spec: dict[str, Any] = {
        "name": f"{dice.choice(WHO[tenant][1])}-{dice.randrange(16**4):04x}",
        "pool": GPU_POOL,
        "size": size,
        "gpus_per_member": each,
        "limit_seconds": limit_for(seconds),
        "workload": workload,
    }
    wish = dice.random()
    if size == 2 and wish < 0.15:
        spec["topology"] = "nvlink"
    elif 2 <= size <= 4 and wish < 0.30:
        spec["topology"] = "rack"
    if size > 1 and dice.random() < ELASTIC:
        spec["min_size"] = size // 2
    if tenant == SCAVENGES:
        spec["priority_class"] = "scavenger"
    elif tenant == ATTENDED and asked == 1 and dice.random() < ATTENDED_PART:
        spec["priority_class"] = ATTENDED_CLASS
    elif asked <= 8 and dice.random() < 0.02:
        spec["priority_class"] = "urgent"
    return Made(at, tenant, spec)


def _evaluation(dice: random.Random, at: datetime) -> Made:
    seconds, outcome = _seconds(dice, EVALUATION_MEDIAN, EVALUATION_DEVIATION)
    tenant = dice.choices(EVALUATORS, EVALUATOR_PARTS)[0]
    spec = {
        "name": f"eval-{dice.choice(('mmlu', 'gsm8k', 'arc', 'coco', 'wmt'))}"
        f"-{dice.randrange(16**4):04x}",
        "pool": SLICE_POOL,
        "size": 1,
        "gpus_per_member": dice.choice((1, 1, 1, 2, 2, 4)),
        "limit_seconds": limit_for(seconds),
        "workload": {
            "kind": "simulated",
            "runtime": seconds,
            "outcome": outcome,
            **_behaviour(dice, seconds),
        },
    }
    if tenant == SCAVENGES:
        spec["priority_class"] = "scavenger"
    return Made(at, tenant, spec)


def node_changes(
    seed: int, start: datetime, end: datetime, nodes: Sequence[str]
) -> list[NodeChange]:
    """Return the failures, repairs and drains from ``start`` to before ``end``.

    A node fails at random and is repaired within hours; each day at 09:00 UTC one node, the next
    in line, is drained for two hours of maintenance.
    """
    changes: list[NodeChange] = []
    for hour in _hours(start, end):
        dice = _dice(seed, "nodes", hour)
        for at in _instants(dice, hour, FAILURES_PER_NODE_HOUR * len(nodes)):
            node = dice.choice(nodes)
            why = dice.choice(("GPU fell off the bus (Xid 79)", "ECC error (Xid 48)", "NIC flaps"))
            back = at + timedelta(minutes=dice.randrange(40, 300))
            changes.append(_change(at, node, "down", why))
            changes.append(_change(back, node, "up", "repaired"))
        if hour.hour == 9:
            node = nodes[hour.toordinal() % len(nodes)]
            changes.append(_change(hour, node, "drained", "planned maintenance"))
            changes.append(_change(hour + timedelta(hours=2), node, "up", "maintenance done"))
    return [change for change in changes if start <= change.at]


def _change(at: datetime, node: str, state: str, reason: str) -> NodeChange:
    return NodeChange(at, node, state, reason, key=f"{node} {state} {at.isoformat()}")
