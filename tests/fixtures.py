"""A small installation: a cluster, two teams, and the people each page and endpoint meets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from apps.accounts.models import User
from apps.backends.models import Cluster, Pool
from apps.backends.worlds import forget_world
from apps.jobs.models import Job
from apps.tenants.models import Tenant
from tests.factories import join, make_cluster, make_job, make_pool, make_tenant, make_user
from tests.scheduling.playground import Playground, make_playground


@pytest.fixture
def cluster(db: None) -> Cluster:
    """The cluster atlas."""
    return make_cluster()


@pytest.fixture
def pool(cluster: Cluster) -> Pool:
    """32 GPUs called h100 on 4 nodes of atlas."""
    return make_pool(cluster)


@pytest.fixture
def vision(db: None) -> Tenant:
    """The team of alice and bob."""
    return make_tenant("vision")


@pytest.fixture
def nlp(db: None) -> Tenant:
    """The team of carol."""
    return make_tenant("nlp")


@pytest.fixture
def alice(vision: Tenant) -> User:
    """Leads vision."""
    return join(make_user("alice"), vision, "lead")


@pytest.fixture
def bob(vision: Tenant) -> User:
    """Is a member of vision."""
    return join(make_user("bob"), vision)


@pytest.fixture
def carol(nlp: Tenant) -> User:
    """Leads another team: a stranger to vision."""
    return join(make_user("carol"), nlp, "lead")


@pytest.fixture
def root(db: None) -> User:
    """Runs the installation."""
    return make_user("root", is_admin=True)


@pytest.fixture
def victim(vision: Tenant, pool: Pool, bob: User) -> Job:
    """A job of bob's on 8 GPUs."""
    return make_job(vision, pool, by=bob, name="vit", size=4, gpus_per_member=2, minutes=-60)


@pytest.fixture
def taker(nlp: Tenant, pool: Pool, carol: User) -> Job:
    """A gang of carol's of 16 GPUs."""
    return make_job(nlp, pool, by=carol, name="llama", size=2, gpus_per_member=8, minutes=-5)


@pytest.fixture
def play(db: None) -> Iterator[Playground]:
    """A cluster to tick by hand: two nodes of four GPUs, nothing on them, never looked at."""
    play = make_playground()
    yield play
    forget_world(play.cluster)
