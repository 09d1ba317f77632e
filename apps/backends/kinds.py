"""The table of kinds of cluster; a new one is one adapter file and one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from apps.backends.models import Cluster
    from apps.backends.port import Backend


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of cluster and the adapter's factory, as ``module:callable``.

    ``world`` is the module with the hands on a simulated world; empty: the cluster is real.
    ``options`` checks a cluster's options, as ``module:callable``; empty: it needs none.
    """

    name: str
    label: str
    factory: str
    world: str = ""
    options: str = ""


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "simulator",
            "Simulator",
            "apps.backends.adapters.simulator:open_backend",
            world="apps.backends.adapters.simulator",
        ),
        Kind(
            "slurm",
            "Slurm",
            "apps.backends.adapters.slurm:open_backend",
            options="apps.backends.adapters.slurm:check_options",
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
