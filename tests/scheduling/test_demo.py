"""The demo is loaded once, only where it may be, and the tick makes its history."""

from __future__ import annotations

import io
from datetime import datetime, timedelta

import pytest
from django.core.management import CommandError, call_command

from apps.accounts.models import User
from apps.audit.models import Entry
from apps.backends.kinds import backend_of
from apps.backends.models import Cluster, Pool
from apps.common.errors import Conflict, Invalid
from apps.jobs import workload
from apps.jobs.models import Arrival, Attempt, Eviction, Job, Move, Reservation
from apps.jobs.states import EvictionMode
from apps.jobs.workload import GPU_POOL, SLICE_POOL
from apps.ledger.models import Interval, Price
from apps.quotas.models import Quota
from apps.scheduling import demo
from apps.scheduling.demo import NotADemo, load_demo, load_trace
from apps.scheduling.planned import PLANNED
from apps.scheduling.services import tick
from apps.tenants.models import Membership, Tenant
from tests.factories import NOW

pytestmark = pytest.mark.django_db

SMALL = {"days": 0, "nodes": 4}


@pytest.fixture(autouse=True)
def _demo(settings, monkeypatch):
    settings.MODE, settings.DEMO = "demo", True
    # Quick, but whole: fewer hours ahead, passwords hashed once.
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    monkeypatch.setattr(demo, "AHEAD", timedelta(hours=8))


def counts() -> dict[str, int]:
    models = (User, Tenant, Membership, Quota, Cluster, Pool, Price, Arrival, Job)
    return {model.__name__: model.objects.count() for model in models}


# Where it may be ---------------------------------------------------------------------------------------


def test_a_production_installation_takes_no_demo_even_by_force(settings):
    settings.MODE, settings.DEMO = "production", False

    with pytest.raises(NotADemo):
        load_demo(now=NOW, force=True)
    with pytest.raises(CommandError, match="production"):
        call_command("load_demo", "--force")
    assert not User.objects.exists()


def test_elsewhere_it_must_be_forced(settings):
    settings.MODE, settings.DEMO = "development", False

    with pytest.raises(NotADemo):
        load_demo(now=NOW, **SMALL)
    load_demo(now=NOW, force=True, **SMALL)

    assert Cluster.objects.filter(name="atlas").exists()


# What is loaded ------------------------------------------------------------------------------------------


def test_it_brings_people_teams_promises_and_a_cluster_but_no_history():
    cluster, made = load_demo(now=NOW, days=1, nodes=4)

    assert {u.username: u.is_admin for u in User.objects.all()} == {
        "admin": True,
        "lead": False,
        "member": False,
    }
    assert all(user.check_password("rollcall") for user in User.objects.all())
    places = {m.user.username: (m.tenant.path, m.role) for m in Membership.objects.all()}
    assert places == {"lead": ("nlp", "lead"), "member": ("nlp/alignment", "member")}
    assert Tenant.objects.get(path="guest").weight == 0
    assert {price.micros_per_gpu_hour for price in Price.objects.all()} == {2_500_000}
    assert cluster.clock_now == NOW - timedelta(days=1)
    sliced = Pool.objects.get(name=SLICE_POOL)
    assert (sliced.fraction_numerator, sliced.fraction_denominator) == (1, 7)
    nodes = backend_of(cluster).observe("", now=cluster.clock_now).nodes
    assert sum(node.gpus for node in nodes if node.pool == GPU_POOL) == 32
    assert {node.rack for node in nodes} == {"rack-1", "rack-2"}
    assert made == Arrival.objects.count() > 500
    for model in (Job, Attempt, Move, Reservation, Interval):
        assert not model.objects.exists()


def test_a_second_run_changes_nothing():
    load_demo(now=NOW, **SMALL)
    before = counts()

    _, made = load_demo(now=NOW + timedelta(hours=3), seed=9, days=3, nodes=8)

    assert made == 0
    assert counts() == before


def test_what_somebody_changed_stays_changed():
    load_demo(now=NOW, **SMALL)
    User.objects.get(username="lead").memberships.update(role="member")
    Quota.objects.filter(tenant__path="bio").update(guarantee=1)

    load_demo(now=NOW, **SMALL)

    assert Membership.objects.get(user__username="lead").role == "member"
    assert Quota.objects.get(tenant__path="bio").guarantee == 1


def test_days_later_it_goes_on_where_its_submissions_ended():
    load_demo(now=NOW, **SMALL)
    last = Arrival.objects.order_by("-at").first().at

    _, made = load_demo(now=NOW + timedelta(days=1), **SMALL)

    new = Arrival.objects.filter(at__gt=last)
    assert new.count() == made > 0
    assert new.order_by("-at").first().at > NOW + timedelta(days=1, hours=6)
    assert Arrival.objects.values("at", "spec__name").distinct().count() == Arrival.objects.count()


def test_the_same_seed_makes_the_same_demo():
    def loaded(seed):
        load_demo(now=NOW, seed=seed, **SMALL)
        rows = list(Arrival.objects.order_by("at", "id").values_list("at", "spec"))
        Arrival.objects.all().delete()
        Quota.objects.all().delete()
        Price.objects.all().delete()
        Pool.objects.all().delete()
        Cluster.objects.all().delete()
        return rows

    assert loaded(1) == loaded(1) != loaded(2)


def test_another_cluster_of_that_name_is_not_touched(cluster):
    assert cluster.name == "atlas"

    with pytest.raises(Conflict):
        load_demo(now=NOW, **SMALL)

    assert not User.objects.exists()


def test_a_negative_span_is_refused():
    with pytest.raises(Invalid):
        load_demo(now=NOW, days=-1)


def test_the_command_says_what_it_made():
    out = io.StringIO()

    call_command("load_demo", "--days", "0", "--nodes", "4", stdout=out)

    assert f"{Arrival.objects.count():,} submissions made" in out.getvalue()


def test_the_tick_makes_the_history():
    cluster, _ = load_demo(now=NOW, days=1, nodes=4)
    start = cluster.clock_now
    Cluster.objects.update(clock_until=start + timedelta(minutes=30), clock_step=300)

    while cluster.clock_now < start + timedelta(minutes=30):
        assert tick(cluster)
        cluster.refresh_from_db()

    assert cluster.trouble == ""
    assert Job.objects.filter(attempts__started_at__isnull=False).exists()
    assert Arrival.objects.filter(at__lte=cluster.clock_now, job=None).count() == 0
    assert not Arrival.objects.exclude(refused="").exists()


# Its modes ------------------------------------------------------------------------------------------------


def planned(cluster: Cluster) -> list[tuple[timedelta, str]]:
    return [
        (datetime.fromisoformat(row["at"]) - cluster.clock_now, row["columns"]["mode"])
        for row in cluster.options[PLANNED]
    ]


def test_its_admin_tries_each_mode_in_turn_and_ends_with_checkpoints():
    cluster, _ = load_demo(now=NOW, days=7, nodes=1)

    assert planned(cluster) == [
        (timedelta(days=0), "kill"),
        (timedelta(days=2), "demote"),
        (timedelta(days=4), "checkpoint"),
    ]


def test_without_a_history_it_begins_with_checkpoints():
    cluster, _ = load_demo(now=NOW, **SMALL)

    assert planned(cluster) == [(timedelta(0), "checkpoint")]


def test_its_history_has_evictions_of_every_mode(monkeypatch):
    # Three days on four nodes, with few evaluations and a look every half hour.
    monkeypatch.setattr(demo, "AHEAD", timedelta())
    monkeypatch.setattr(workload, "EVALUATION_EVERY", 36_000)
    cluster, _ = load_demo(now=NOW, seed=2, days=3, nodes=4)
    Cluster.objects.update(clock_until=NOW, clock_step=1_800)

    while cluster.clock_now < NOW:
        assert tick(cluster)
        cluster.refresh_from_db()

    ended = Eviction.objects.exclude(outcome="")
    assert set(ended.values_list("mode", flat=True)) == set(EvictionMode.values)
    assert {"killed", "checkpointed", "grace_exceeded", "demoted", "shrunk"} <= set(
        ended.values_list("outcome", flat=True)
    )
    by = Entry.objects.filter(verb="policy changed").values_list("actor__username", flat=True)
    assert list(by) == ["admin"] * 3
    assert not Arrival.objects.exclude(refused="").exists()


# A trace ---------------------------------------------------------------------------------------------------


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "philly.csv"
    rows = ["2017-10-09 07:01:55,66,1,66,small"]
    rows += [f"2017-10-10 0{hour}:00:00,600,8,4800,Large" for hour in range(9)]
    path.write_text("\n".join(["timestamp,duration,num_gpus,gpu_time,cluster", *rows]))
    return path


def test_a_trace_is_a_demo_of_its_own(trace):
    cluster, report = load_trace("philly", trace, now=NOW, nodes=3)

    assert report.used == 10
    assert cluster.clock_now.isoformat() == "2017-10-09T07:01:55+00:00"
    assert (cluster.clock_step, cluster.arrivals.count()) == (600, 10)
    places = {m.user.username: (m.tenant.path, m.role) for m in Membership.objects.all()}
    assert places == {"lead": ("philly/Large", "lead"), "member": ("philly/small", "member")}
    assert Price.objects.get().micros_per_gpu_hour == 2_500_000


def test_the_same_trace_again_changes_nothing(trace):
    load_trace("philly", trace, now=NOW)
    before = counts()
    out = io.StringIO()

    call_command("load_demo", "--trace", str(trace), stdout=out)

    assert "loaded before" in out.getvalue()
    assert counts() == before


def test_a_trace_without_a_job_is_refused_whole(trace):
    trace.write_text("timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09,1,0,0,x\n")

    with pytest.raises(CommandError, match="No row"):
        call_command("load_demo", "--trace", str(trace))

    assert counts() == dict.fromkeys(counts(), 0)
