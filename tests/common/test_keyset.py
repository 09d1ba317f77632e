"""Keyset paging: no row twice, none left out, whatever comes or goes meanwhile."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.common.errors import Invalid
from apps.common.paging import Count, capped_count, page_of, read_cursor
from apps.tenants.models import Tenant
from tests.factories import NOW


def rows(count: int) -> list[int]:
    """So many tenants; the ids in order."""
    made = Tenant.objects.bulk_create(
        Tenant(name=str(n), path=str(n), created_at=NOW) for n in range(count)
    )
    return [tenant.pk for tenant in made]


def walk(*, size: int, descending: bool, way: str) -> list[int]:
    """Follow the cursors from the first or the last page on."""
    found: list[int] = []
    cursor: str | None = None
    if way == "before":
        cursor = "0" if descending else str(2**63 - 1)
    for _ in range(100):
        options = {} if cursor is None else {way: cursor}
        page = page_of(Tenant.objects.all(), size=size, descending=descending, **options)
        here = [row.pk for row in page.rows]
        found = found + here if way == "after" else here + found
        cursor = page.after if way == "after" else page.before
        if cursor is None:
            return found
    raise AssertionError("it never ends")


@pytest.mark.django_db
@given(
    count=st.integers(0, 12),
    size=st.integers(1, 5),
    descending=st.booleans(),
    way=st.sampled_from(["after", "before"]),
)
def test_every_row_is_on_exactly_one_page(
    count: int, size: int, descending: bool, way: str
) -> None:
    Tenant.objects.all().delete()
    made = rows(count)

    assert walk(size=size, descending=descending, way=way) == (made[::-1] if descending else made)


def test_a_row_that_goes_shifts_nothing(db: None) -> None:
    made = rows(6)
    first = page_of(Tenant.objects.all(), size=2)
    Tenant.objects.filter(pk__in=[made[1], made[2]]).delete()

    second = page_of(Tenant.objects.all(), size=2, after=first.after)

    assert [row.pk for row in second.rows] == made[3:5]


def test_the_first_page_has_none_before_it_and_the_last_none_after(db: None) -> None:
    rows(4)
    first = page_of(Tenant.objects.all(), size=2)
    last = page_of(Tenant.objects.all(), size=2, after=first.after)
    back = page_of(Tenant.objects.all(), size=2, before=last.before)

    assert (first.before, last.after) == (None, None)
    assert (back.rows, back.before, back.after) == (first.rows, None, first.after)


def test_a_page_is_one_query(db: None, django_assert_num_queries: object) -> None:
    rows(3)

    with django_assert_num_queries(1):  # type: ignore[operator]
        page_of(Tenant.objects.all(), size=2, after="1")


@pytest.mark.parametrize("cursor", ["x", "-1", "1.5", "٣", " 1", "9" * 19, "9" * 40, "1;"])
def test_a_cursor_nobody_gave_out_is_refused(cursor: str) -> None:
    with pytest.raises(Invalid) as refusal:
        read_cursor(cursor, field="after")

    assert refusal.value.field == "after"


def test_a_cursor_of_the_largest_id_is_one() -> None:
    assert read_cursor(str(2**63 - 1), field="after") == 2**63 - 1
    assert read_cursor(None, field="after") is None


def test_a_count_stops_at_its_cap(db: None) -> None:
    rows(3)
    everything = Tenant.objects.all()

    assert capped_count(everything, most=2) == Count(2, capped=True)
    assert capped_count(everything, most=3) == Count(3, capped=False)
    assert str(Count(10_000, capped=True)) == "10,000+"
    assert str(Count(10_000, capped=False)) == "10,000"
