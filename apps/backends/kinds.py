"""The table of kinds of cluster; a new one is one adapter file and one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from apps.backends.port import BackendError, Finding, OptionField
from apps.common.errors import Invalid

if TYPE_CHECKING:
    from apps.backends.models import Cluster
    from apps.backends.port import Backend


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of cluster and the adapter's factory, as ``module:callable``.

    ``world`` is the module with the hands on a simulated world; empty: the cluster is real.
    ``options`` checks a cluster's options, as ``module:callable``; empty: it needs none.
    ``fields`` names the options as a form asks for them, ``preflight`` looks what works,
    and ``workload`` names what of a job's workload a form asks for. ``tick_seconds``: how often one is
    looked at unless said otherwise.
    """

    name: str
    label: str
    factory: str
    world: str = ""
    options: str = ""
    fields: str = ""
    preflight: str = ""
    workload: str = ""
    tick_seconds: int = 2


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "simulator",
            "Simulator",
            "apps.backends.adapters.simulator:open_backend",
            world="apps.backends.adapters.simulator",
            preflight="apps.backends.adapters.simulator:preflight",
        ),
        Kind(
            "slurm",
            "Slurm",
            "apps.backends.adapters.slurm:open_backend",
            options="apps.backends.adapters.slurm:check_options",
            fields="apps.backends.adapters.slurm:OPTION_FIELDS",
            preflight="apps.backends.adapters.slurm:preflight",
            workload="apps.backends.adapters.slurm:WORKLOAD_FIELDS",
            # At 10,000 jobs a look costs slurmctld 42 ms: with line and accounts 0.6 s a minute.
            tick_seconds=5,
        ),
    )
}


@cache
def _named(path: str) -> object:
    """Return what ``module:name`` names."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def check_options(kind: str, options: Mapping[str, Any]) -> None:
    """Raise Invalid naming ``options.<key>`` unless a cluster of this kind can have them."""
    path = KINDS[kind].options
    if path:
        cast("Callable[[Mapping[str, Any]], None]", _named(path))(options)


def backend_of(cluster: Cluster) -> Backend:
    """Return the backend that reaches a cluster."""
    return cast("Callable[[Cluster], Backend]", _named(KINDS[cluster.kind].factory))(cluster)


def option_fields(kind: str) -> tuple[OptionField, ...]:
    """Return the options of a kind, as a form asks for them."""
    path = KINDS[kind].fields
    return cast("tuple[OptionField, ...]", _named(path)) if path else ()


def workload_fields(kind: str) -> tuple[OptionField, ...]:
    """Return what a job on a kind of cluster is asked for, beside what all jobs have."""
    path = KINDS[kind].workload
    return cast("tuple[OptionField, ...]", _named(path)) if path else ()


def preflight(cluster: Cluster, *, now: datetime) -> Sequence[Finding]:
    """Return what works on a cluster, what is missing and what grants it; nothing is changed there.

    Raises for no cluster, however far away it is: that is a finding too.
    """
    path = KINDS[cluster.kind].preflight
    if not path:
        return []
    check = cast("Callable[..., Sequence[Finding]]", _named(path))
    try:
        return check(cluster, now=now)
    except Invalid as refusal:
        return [Finding("options", "missing", refusal.message)]
    except BackendError as error:
        return [Finding("reach", "missing", error.message)]
