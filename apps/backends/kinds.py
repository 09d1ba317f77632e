"""The table of kinds of cluster; a new one is one adapter file and one line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from apps.backends.models import Cluster
    from apps.backends.port import Backend


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of cluster and the adapter's factory, as ``module:callable``.

    ``world`` is the module with the hands on a simulated world; empty: the cluster is real.
    """

    name: str
    label: str
    factory: str
    world: str = ""


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "simulator",
            "Simulator",
            "apps.backends.adapters.simulator:open_backend",
            world="apps.backends.adapters.simulator",
        ),
    )
}


@cache
def _factory(kind: str) -> Callable[[Cluster], Backend]:
    module, _, name = KINDS[kind].factory.partition(":")
    return cast("Callable[[Cluster], Backend]", getattr(import_module(module), name))


def backend_of(cluster: Cluster) -> Backend:
    """Return the backend that reaches a cluster."""
    return _factory(cluster.kind)(cluster)
