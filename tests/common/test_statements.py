"""Statements of our own answer what Django's queries answer, and write what Django's save writes."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction

from apps.accounts.models import User
from apps.backends.models import Cluster, Node, NodeState, Pool
from apps.common.rows import insert_row
from apps.common.statements import Joined, preparing_cursor
from apps.jobs.models import Job
from apps.queues.models import PriorityClass
from tests.factories import NOW, make_cluster, make_job, make_pool, make_tenant, make_user

POOLS = Joined(
    """
    SELECT {pool}, {cluster}, {node}, 7
    FROM backends_pool pool JOIN backends_cluster cluster ON cluster.id = pool.cluster_id
    LEFT JOIN backends_node node ON node.pool_id = pool.id AND node.name = %s
    WHERE pool.name = %s
    """,
    pool=Pool,
    cluster=Cluster,
    node=Node,
)


def columns(row: object) -> dict[str, object]:
    """All a row holds, by column, and the types."""
    return {
        field.attname: (type(getattr(row, field.attname)), getattr(row, field.attname))
        for field in row._meta.concrete_fields  # type: ignore[attr-defined]  # of every model
    }


@pytest.mark.django_db
def test_each_row_is_as_django_reads_it() -> None:
    pool = make_pool(make_cluster(options={"pace": 1, "deep": [None, "ü"]}), nodes=1)
    make_pool(make_cluster("boreas"), "a100")
    Node.objects.update(state=NodeState.DOWN, gone_at=NOW + timedelta(microseconds=1))

    found = POOLS.first("h100-n00", "h100")

    assert found is not None
    for row, kept in zip(
        found[:3],
        (pool, Cluster.objects.get(name="atlas"), Node.objects.get(name="h100-n00")),
        strict=False,
    ):
        fresh = type(kept)._default_manager.get(pk=kept.pk)
        assert columns(row) == columns(fresh)
        assert row == fresh
        assert not row._state.adding
    assert found[3] == 7


@pytest.mark.django_db
def test_truth_values_are_truth_values() -> None:
    alice = make_user("alice", is_admin=True, is_active=False)

    found = Joined("SELECT {one} FROM accounts_user one WHERE one.id = %s", one=User).first(
        alice.pk
    )

    assert found is not None
    assert columns(found[0]) == columns(User.objects.get())


@pytest.mark.django_db
def test_what_a_left_join_does_not_find_is_none() -> None:
    make_pool(make_cluster(), nodes=1)

    found = POOLS.first("h100-n99", "h100")

    assert found is not None
    assert found[0] is not None
    assert found[2] is None


@pytest.mark.django_db
def test_no_row_is_none() -> None:
    assert POOLS.first("h100-n00", "h100") is None


@pytest.mark.django_db
def test_a_row_is_inserted_as_django_saves_it() -> None:
    saved = make_job(
        make_tenant("vision"), make_pool(make_cluster()), workload={"utilisation": 0.5}
    )
    saved = Job.objects.get(pk=saved.pk)
    twin = Job(**{field.attname: getattr(saved, field.attname) for field in saved._meta.fields})
    twin.pk = None

    insert_row(twin)

    assert twin.pk > saved.pk
    assert not twin._state.adding
    kept = columns(Job.objects.get(pk=twin.pk))
    assert kept == columns(saved) | {"id": (int, twin.pk)}


@pytest.mark.django_db
def test_a_row_refused_by_a_constraint_raises_what_django_raises() -> None:
    insert_row(PriorityClass(name="urgent"))

    with pytest.raises(IntegrityError), transaction.atomic():
        insert_row(PriorityClass(name="urgent"))
    insert_row(PriorityClass(name="spare"))

    assert set(PriorityClass.objects.values_list("name", flat=True)) == {"urgent", "spare"}


@pytest.mark.django_db
def test_its_statements_are_seen_by_those_who_count_queries(
    django_assert_num_queries: object,
) -> None:
    with django_assert_num_queries(2):  # type: ignore[operator]
        POOLS.first("x", "y")
        insert_row(PriorityClass(name="urgent"))


@pytest.mark.django_db
@pytest.mark.postgres
def test_postgresql_keeps_the_plan_of_a_statement() -> None:
    for _ in range(3):
        POOLS.first("x", "y")

    with preparing_cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE %s",
            ["%backends_pool%"],
        )
        assert cursor.fetchone() == (1,)
