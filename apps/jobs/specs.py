"""What a submission asks, and every rule it must keep."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from apps.backends.models import Cluster, Pool
from apps.common.errors import Invalid
from apps.common.text import clean_text
from apps.jobs.models import Job, TopologyChoice
from apps.queues.models import PriorityClass
from apps.tenants.models import Tenant

NAME_LENGTH = 200
MOST_MEMBERS = 1_000_000
MOST_GPUS_PER_MEMBER = 1_000_000
MOST_NICE = 1_000_000_000
MOST_RETRIES = 1_000
MOST_DEPENDENCIES = 100
TEN_YEARS = timedelta(days=3_652)
# A script of 256 KiB, and what JSON adds to it.
WORKLOAD_BYTES = 524_288
WORKLOAD_DEPTH = 20


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A submission: what to run, for whom, where.

    ``min_size`` None: all of ``size``; ``limit_seconds`` None: none; ``priority_class`` None: the
    default one. ``workload`` is what the cluster's kind understands.
    """

    tenant: Tenant
    cluster: Cluster
    pool: Pool
    name: str
    size: int
    gpus_per_member: int
    min_size: int | None = None
    topology: str = TopologyChoice.NONE
    limit_seconds: int | None = None
    priority_class: PriorityClass | None = None
    nice: int = 0
    begin_at: datetime | None = None
    depends_on: tuple[Job, ...] = ()
    workload: Mapping[str, Any] = field(default_factory=dict)
    retry_limit: int = 0
    held: bool = False

    @property
    def gpus(self) -> int:
        """Return the GPUs of the whole gang."""
        return self.size * self.gpus_per_member


def digest_of(spec: JobSpec) -> str:
    """Return a digest that two submissions share only if they ask the same."""
    asked = {
        "tenant": spec.tenant.pk,
        "cluster": spec.cluster.pk,
        "pool": spec.pool.pk,
        "name": spec.name.strip(),
        "size": spec.size,
        "gpus_per_member": spec.gpus_per_member,
        "min_size": spec.min_size,
        "topology": str(spec.topology),
        "limit_seconds": spec.limit_seconds,
        "priority_class": None if spec.priority_class is None else spec.priority_class.pk,
        "nice": spec.nice,
        "begin_at": None if spec.begin_at is None else spec.begin_at.timestamp(),
        "depends_on": sorted(job.pk for job in spec.depends_on),
        "workload": spec.workload,
        "retry_limit": spec.retry_limit,
        "held": spec.held,
    }
    text = json.dumps(asked, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def check_key(key: str) -> str:
    """Return an idempotency key: 1 to 120 printable ASCII characters.

    :raises Invalid: for anything else.
    """
    if not 1 <= len(key) <= 120 or not key.isascii() or not key.isprintable():
        raise Invalid(
            "An idempotency key is 1 to 120 printable ASCII characters.", field="Idempotency-Key"
        )
    return key


def _whole(name: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise Invalid(f"{name} must be a whole number.", field=name)
    if not least <= value <= most:
        raise Invalid(f"{name} must be {least:,} to {most:,}, not {value:,}.", field=name)
    return value


def _check_parts(value: Any, left: int = WORKLOAD_DEPTH) -> None:
    """Refuse what is nested too deep, and text with a NUL in it: PostgreSQL keeps neither well."""
    if isinstance(value, str):
        if "\x00" in value:
            raise Invalid("workload holds the control character U+0000.", field="workload")
    elif isinstance(value, Mapping | list | tuple):
        if left == 0:
            raise Invalid(f"workload is nested deeper than {WORKLOAD_DEPTH}.", field="workload")
        parts = [*value.keys(), *value.values()] if isinstance(value, Mapping) else value
        for part in parts:
            _check_parts(part, left - 1)


def check_json(workload: Mapping[str, Any]) -> None:
    """Refuse a workload that no database could keep.

    :raises Invalid: naming ``workload``.
    """
    _check_parts(workload)
    try:
        text = json.dumps(workload, allow_nan=False, ensure_ascii=False)
        size = len(text.encode())
    except (TypeError, ValueError) as error:  # UnicodeEncodeError is a ValueError
        raise Invalid("workload must be JSON without NaN or Infinity.", field="workload") from error
    if size > WORKLOAD_BYTES:
        raise Invalid(
            f"workload has {size:,} bytes; at most {WORKLOAD_BYTES:,} are allowed.",
            field="workload",
        )


def _check_times(spec: JobSpec, now: datetime) -> None:
    if spec.limit_seconds is not None:
        longest = int(TEN_YEARS.total_seconds()) - 1
        value = _whole("limit_seconds", spec.limit_seconds, -(2**63), 2**63)
        if value <= 0:
            raise Invalid(
                "limit_seconds must be positive; leave it out for none.", field="limit_seconds"
            )
        if value > longest:
            raise Invalid("limit_seconds must be less than ten years.", field="limit_seconds")
    if spec.begin_at is not None:
        if spec.begin_at.tzinfo is None:
            raise Invalid("begin_at must carry a time zone.", field="begin_at")
        if not now - TEN_YEARS < spec.begin_at < now + TEN_YEARS:
            raise Invalid("begin_at must be within ten years of now.", field="begin_at")


def check_spec(spec: JobSpec, *, now: datetime) -> dict[str, Any]:
    """Check all of a submission that needs no query; return the columns of its row.

    The workload is not in them: the cluster's kind checks it.

    :raises Invalid: naming the first field that cannot be.
    """
    name = clean_text(spec.name, field="name", max_length=NAME_LENGTH)
    size = _whole("size", spec.size, 1, MOST_MEMBERS)
    gpus = _whole("gpus_per_member", spec.gpus_per_member, 1, MOST_GPUS_PER_MEMBER)
    min_size = size
    if spec.min_size is not None:
        min_size = _whole("min_size", spec.min_size, 1, MOST_MEMBERS)
        if min_size > size:
            raise Invalid(f"min_size is {min_size:,}, above size {size:,}.", field="min_size")
    if spec.topology not in TopologyChoice.values:
        raise Invalid(
            f"topology must be one of {', '.join(TopologyChoice.values)}.", field="topology"
        )
    nice = _whole("nice", spec.nice, -MOST_NICE, MOST_NICE)
    retries = _whole("retry_limit", spec.retry_limit, 0, MOST_RETRIES)
    _check_times(spec, now)
    if spec.pool.cluster_id != spec.cluster.pk:
        raise Invalid(f"{spec.cluster} has no pool {spec.pool.name}.", field="pool")
    if len(spec.depends_on) > MOST_DEPENDENCIES:
        raise Invalid(
            f"depends_on names {len(spec.depends_on):,} jobs; at most {MOST_DEPENDENCIES}"
            " are allowed.",
            field="depends_on",
        )
    check_json(spec.workload)
    return {
        "name": name,
        "tenant": spec.tenant,
        "cluster": spec.cluster,
        "pool": spec.pool,
        "size": size,
        "min_size": min_size,
        "gpus_per_member": gpus,
        "topology": spec.topology,
        "limit_seconds": spec.limit_seconds,
        "nice": nice,
        "begin_at": spec.begin_at,
        "retry_limit": retries,
    }
