"""Why a job waits, as each reader may know it, and a stored tick that answers the same again."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from apps.accounts.models import User
from apps.engine import codec
from apps.scheduling.forecasts import make_forecast
from apps.scheduling.models import Tick
from apps.scheduling.selectors import explain, forecast_of, sentence_for, starts_next, verdict_of
from apps.scheduling.stored import replay
from apps.tenants.models import Tenant
from tests.factories import make_job
from tests.scheduling.playground import Playground


def test_nothing_is_explained_before_the_first_verdict(
    play: Playground, vision: Tenant, alice: User
) -> None:
    job = make_job(vision, play.pool)

    assert explain(job, alice) is None


def test_the_terms_add_up_to_the_priority(play: Playground, vision: Tenant, alice: User) -> None:
    make_job(vision, play.pool, size=8)
    job = make_job(vision, play.pool, size=2, nice=50, minutes=-600)
    play.tick(0)
    job.refresh_from_db()
    waits = explain(job, alice) or explain(job.__class__.objects.exclude(pk=job.pk).get(), alice)

    assert waits is not None
    assert sum(term["value"] for term in waits["terms"]) == pytest.approx(waits["priority"])
    assert waits["tick_id"] == Tick.objects.get().pk


def test_who_is_ahead_is_named_to_its_own_team_alone(
    play: Playground, vision: Tenant, nlp: Tenant, alice: User, carol: User, root: User
) -> None:
    make_job(vision, play.pool, size=7, name="runs")
    first = make_job(vision, play.pool, size=8, name="secret-gang")
    job = make_job(nlp, play.pool, size=8, name="mine", minutes=0)
    play.tick(0)
    later = job if (verdict_of(job).position > verdict_of(first).position) else first  # type: ignore[union-attr]
    reader, other = (carol, first) if later.pk == job.pk else (alice, job)

    told = explain(later, reader)
    full = explain(later, root)

    assert told is not None
    assert full is not None
    assert told["ahead_count"] == 1
    assert told["ahead"][0]["name"] == f"a job of {other.tenant.name}"
    assert told["ahead"][0]["id"] is None
    assert full["ahead"][0]["name"] == other.name
    assert other.name not in str(told)


def test_a_reason_is_a_sentence_with_needed_and_available(
    play: Playground, vision: Tenant, alice: User
) -> None:
    make_job(vision, play.pool, size=3)
    gang = make_job(vision, play.pool, size=8)
    play.tick(0)
    verdict = verdict_of(gang)

    assert verdict is not None
    assert sentence_for(verdict, alice).startswith("Holds 5 of 8 GPUs; 3 to go.")


def test_what_starts_next_is_what_waits(play: Playground, vision: Tenant) -> None:
    make_job(vision, play.pool, size=3)
    gang = make_job(vision, play.pool, size=8)
    play.tick(0)

    assert [verdict.job_id for verdict in starts_next([play.cluster])] == [gang.pk]


def test_a_stored_tick_answers_the_same_again(play: Playground, vision: Tenant) -> None:
    make_job(vision, play.pool, size=3)
    make_job(vision, play.pool, size=8)
    tick = play.tick(0)
    out = StringIO()

    call_command("replay_tick", tick.pk, stdout=out)

    assert replay(Tick.objects.get()) == []
    assert "no difference" in out.getvalue()


def test_a_plan_that_differs_is_told(play: Playground, vision: Tenant, nlp: Tenant) -> None:
    make_job(vision, play.pool, size=3)
    first = play.tick(0)
    make_job(nlp, play.pool, size=8)
    second = play.tick(10)
    codec.decode_plan(bytes(first.plan or b""))
    Tick.objects.filter(pk=second.pk).update(plan=first.plan)

    with pytest.raises(CommandError, match="differs"):
        call_command("replay_tick", second.pk, stdout=StringIO())


def test_a_tick_that_is_gone_or_thinned_is_said_to_be(play: Playground) -> None:
    tick = play.tick(0)
    Tick.objects.update(snapshot=None)

    with pytest.raises(CommandError, match="keeps no snapshot"):
        call_command("replay_tick", tick.pk, stdout=StringIO())
    with pytest.raises(CommandError, match="no tick 999999"):
        call_command("replay_tick", 999_999, stdout=StringIO())


def test_a_job_behind_others_has_a_likely_start_once_it_was_forecast(
    play: Playground, vision: Tenant
) -> None:
    make_job(vision, play.pool, size=8, limit_seconds=600)
    first = make_job(vision, play.pool, size=8, limit_seconds=600)
    second = make_job(vision, play.pool, size=8, limit_seconds=600)
    made = make_forecast(play.cluster, play.tick(0))
    play.tick(10)

    assert made == 2
    assert forecast_of(verdict_of(first)) == play.at(600)  # type: ignore[arg-type]
    assert forecast_of(verdict_of(second)) == play.at(1_200)  # type: ignore[arg-type]
