"""Evictions over the API: who sees them, under which names, and who confirms a checkpoint."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.accounts.models import User
from apps.backends.models import Cluster, Pool
from apps.jobs.models import Eviction, Job
from apps.tenants.models import Tenant
from tests.api.conftest import JOBS, Caller, refusal
from tests.factories import NOW, join, make_eviction, make_job, make_tenant, make_user

EVICTIONS = "/api/v1/evictions"
LOST = {"lost_gpu_us": 8 * 39 * 60 * 1_000_000, "lost_micros": 13_000_000}


@pytest.fixture
def leaving(victim: Job, taker: Job) -> Eviction:
    """bob's job was asked to leave for carol's."""
    return make_eviction(victim, taker)


class TestWhoSees:
    def test_each_side_knows_its_own_job_by_name_and_the_other_by_team_and_size(
        self, call: Caller, alice: User, bob: User, carol: User, leaving: Eviction
    ) -> None:
        for user in (alice, bob):
            (row,) = call(user).get(EVICTIONS).json()["results"]
            assert row["victim"] == {
                "job": leaving.job_id, "name": "vit", "tenant": "vision", "attempt": 1, "gpus": 8,
            }  # fmt: skip
            assert row["beneficiary"] == {
                "job": None, "name": "a job of nlp", "tenant": "nlp", "attempt": None, "gpus": 16,
            }  # fmt: skip
        text = call(carol).get(f"{EVICTIONS}/{leaving.pk}").content.decode()
        assert "llama" in text
        assert "a job of vision" in text
        assert "vit" not in text
        assert f'"job":{leaving.job_id}' not in text

    def test_a_third_team_and_whoever_has_none_cannot_tell_it_from_none(
        self, call: Caller, leaving: Eviction
    ) -> None:
        for user in (join(make_user("dave"), make_tenant("bio"), "lead"), make_user("erin")):
            client = call(user)
            assert client.get(EVICTIONS).json()["count"] == 0
            theirs = refusal(client.get(f"{EVICTIONS}/{leaving.pk}"), 404)
            none = refusal(client.get(f"{EVICTIONS}/{leaving.pk + 1}"), 404)
            assert theirs["message"].replace(str(leaving.pk), "") == none["message"].replace(
                str(leaving.pk + 1), ""
            )

    def test_an_admin_knows_both_sides(self, call: Caller, root: User, leaving: Eviction) -> None:
        row = call(root).get(f"{EVICTIONS}/{leaving.pk}").json()

        assert (row["victim"]["name"], row["beneficiary"]["name"]) == ("vit", "llama")
        assert row["sentence"].startswith(
            "vit is asked to leave by reclaim for llama: vision held 24 and was entitled to 16."
        )
        assert (row["tick"], row["outcome"], row["lost_money"]) == (90_412, "leaving", None)


class TestWhatIsLost:
    def test_money_is_exact_text_for_who_leads_the_victims_team(
        self, call: Caller, alice: User, bob: User, carol: User, root: User, victim: Job, taker: Job
    ) -> None:
        make_eviction(victim, taker, outcome="grace_exceeded", **LOST)

        for user, money in (
            (root, "13.000000000"),
            (alice, "13.000000000"),
            (bob, None),  # members see no money
            (carol, None),  # what another team lost is not hers
        ):
            (row,) = call(user).get(EVICTIONS).json()["results"]
            assert (row["lost_gpu_hours"], row["lost_money"]) == ("5.200000000", money)
            assert ("$13.00" in row["sentence"]) == (money is not None)
            assert row["currency"] == "USD"

    def test_no_price_is_null_and_never_a_zero(
        self, call: Caller, root: User, victim: Job, taker: Job
    ) -> None:
        make_eviction(victim, taker, outcome="killed", lost_gpu_us=10**9, lost_micros=None)

        (row,) = call(root).get(EVICTIONS).json()["results"]

        assert row["lost_money"] is None
        assert "no price" in row["sentence"]


def test_the_record_says_where_both_teams_stood_and_who_was_considered(
    call: Caller, alice: User, carol: User, victim: Job, taker: Job, pool: Pool
) -> None:
    other = make_job(victim.tenant, pool, name="kept", size=1, gpus_per_member=4)
    eviction = make_eviction(
        victim, taker,
        considered=[
            {"job": victim.pk, "tenant": victim.tenant_id, "gpus": 8, "lost_gpu_us": 36 * 10**8,
             "passed": "chosen"},
            {"job": other.pk, "tenant": victim.tenant_id, "gpus": 4, "lost_gpu_us": None,
             "passed": "guarantee"},
        ],
    )  # fmt: skip

    mine = call(alice).get(f"{EVICTIONS}/{eviction.pk}").json()
    hers = call(carol).get(f"{EVICTIONS}/{eviction.pk}").json()

    stood = mine["standings"]["victim"]
    assert (stood["tenant"], stood["used_before"], stood["used_after"]) == ("vision", 24, 16)
    assert (stood["guarantee"], stood["entitlement"], stood["share"]) == (8, 16, 0.5)
    assert mine["standings"]["beneficiary"]["used_after"] == 16
    assert [(c["name"], c["passed"]) for c in mine["considered"]] == [
        ("vit", "chosen"), ("kept", "guarantee"),
    ]  # fmt: skip
    assert mine["considered"][0]["lost_gpu_hours"] == "1.000000000"
    assert mine["considered_counts"] == {"chosen": 1, "guarantee": 1}
    assert {c["name"] for c in hers["considered"]} == {"a job of vision"}
    assert {c["job"] for c in hers["considered"]} == {None}


class TestTheList:
    @pytest.fixture
    def many(self, victim: Job, taker: Job, pool: Pool) -> list[Eviction]:
        """Five evictions of vision's, an hour apart; the last the other way round."""
        made = []
        for hour, (outcome, mode, rule) in enumerate(
            [("killed", "kill", "reclaim"), ("checkpointed", "checkpoint", "priority"),
             ("demoted", "demote", "reclaim"), ("grace_exceeded", "checkpoint", "reclaim")]
        ):  # fmt: skip
            job = make_job(victim.tenant, pool, name=f"v{hour}", minutes=-300)
            at = NOW + timedelta(hours=hour)
            made.append(make_eviction(job, taker, at=at, outcome=outcome, mode=mode, rule=rule))
        other = make_job(taker.tenant, pool, name="hers", minutes=-300)
        made.append(make_eviction(other, victim, at=NOW + timedelta(hours=4)))
        return made

    @pytest.mark.parametrize(
        ("query", "found"),
        [
            ("", [4, 3, 2, 1, 0]),
            ("mode=checkpoint", [4, 3, 1]),
            ("rule=priority", [1]),
            ("outcome=leaving", [4]),
            ("outcome=demoted", [2]),
            ("cluster=atlas&pool=h100", [4, 3, 2, 1, 0]),
            ("cluster=cedar", []),
            ("since=2026-01-05T14:00:00Z", [4, 3, 2]),
            ("since=2026-01-05T13:00:00Z&until=2026-01-05T14:00:00Z", [1]),
            ("tenant=vision", [4, 3, 2, 1, 0]),
        ],
    )
    def test_it_is_newest_first_and_filters_narrow_it(
        self, query: str, found: list[int], call: Caller, alice: User, many: list[Eviction]
    ) -> None:
        page = call(alice).get(f"{EVICTIONS}?{query}").json()

        assert [row["id"] for row in page["results"]] == [many[k].pk for k in found]
        assert page["count"] == len(found)

    def test_a_job_is_found_on_either_side_by_who_sees_it(
        self, call: Caller, alice: User, carol: User, many: list[Eviction], victim: Job, taker: Job
    ) -> None:
        hers = call(carol).get(f"{EVICTIONS}?job={taker.pk}").json()
        mine = call(alice).get(f"{EVICTIONS}?job={victim.pk}").json()
        not_told = call(alice).get(f"{EVICTIONS}?job={taker.pk}").json()

        assert (hers["count"], mine["count"], not_told["count"]) == (4, 1, 0)

    @pytest.mark.parametrize(
        "query",
        ["mode=gently", "rule=luck", "outcome=fine", "since=yesterday", "job=x", "job=0", "colour=red",
         "since=2026-01-05T14:00:00Z&until=2026-01-05T13:00:00Z", "after=x", "page_size=0"],
    )  # fmt: skip
    def test_a_parameter_that_cannot_be_is_named(
        self, query: str, call: Caller, alice: User, many: list[Eviction]
    ) -> None:
        told = refusal(call(alice).get(f"{EVICTIONS}?{query}"), 400)

        assert told["field"] == query.split("=")[0]

    def test_another_teams_path_is_none(
        self, call: Caller, alice: User, many: list[Eviction]
    ) -> None:
        refusal(call(alice).get(f"{EVICTIONS}?tenant=nlp"), 404)

    def test_its_pages_hold_each_row_once_and_its_queries_do_not_grow(
        self, call: Caller, root: User, many: list[Eviction]
    ) -> None:
        client, address, seen, counts = call(root), f"{EVICTIONS}?page_size=2", [], []
        client.get(EVICTIONS)

        while address:
            with CaptureQueriesContext(connection) as queries:
                page = client.get(address).json()
            counts.append(len(queries))
            seen += [row["id"] for row in page["results"]]
            address = page["next"]

        assert seen == [eviction.pk for eviction in reversed(many)]
        assert max(counts) <= 5


class TestOnTheJob:
    def test_both_sides_jobs_show_it(
        self, call: Caller, bob: User, carol: User, leaving: Eviction
    ) -> None:
        mine = call(bob).get(f"{JOBS}/{leaving.job_id}").json()
        hers = call(carol).get(f"{JOBS}/{leaving.beneficiary_id}").json()

        assert mine["state"] == "PREEMPTING"
        assert [row["id"] for row in mine["evictions"]] == [leaving.pk]
        assert mine["evictions"][0]["beneficiary"]["name"] == "a job of nlp"
        assert hers["evictions"][0]["victim"]["name"] == "a job of vision"

    def test_a_job_with_many_evictions_asks_as_few_questions(
        self, call: Caller, root: User, victim: Job, taker: Job, pool: Pool
    ) -> None:
        client = call(root)
        address = f"{JOBS}/{taker.pk}"
        counts = []
        for batch in range(2):
            for number in range(3):
                job = make_job(victim.tenant, pool, name=f"v{batch}{number}")
                make_eviction(job, taker, outcome="killed")
            with CaptureQueriesContext(connection) as queries:
                assert len(client.get(address).json()["evictions"]) == 3 * (batch + 1)
            counts.append(len(queries))

        assert counts[1] <= counts[0] <= 8


class TestConfirmation:
    @pytest.fixture
    def address(self, leaving: Eviction) -> str:
        return f"{JOBS}/{leaving.job_id}/confirm-checkpoint"

    def test_its_submitter_a_lead_and_an_admin_may(
        self, call: Caller, alice: User, bob: User, root: User, address: str, leaving: Eviction
    ) -> None:
        first = call(bob).post(address, {"attempt": 1})

        assert first.status_code == 200
        assert first.json()["id"] == leaving.pk
        assert first.json()["confirmed_at"] == "2026-01-05T12:00:00Z"
        for user in (bob, alice):  # once more changes nothing
            assert call(user).post(address, {"attempt": 1}).json() == first.json()
        assert call(root).post(address, {"attempt": 1}).status_code == 200
        leaving.refresh_from_db()
        assert (leaving.confirmed_by, leaving.confirmed_at) == (bob, NOW)
        assert leaving.attempt.last_checkpoint_at == NOW

    def test_it_asks_for_an_early_tick(
        self, call: Caller, bob: User, address: str, cluster: Cluster
    ) -> None:
        call(bob).post(address, {"attempt": 1})

        cluster.refresh_from_db()
        assert cluster.tick_requested_at is not None

    def test_a_stranger_and_the_other_side_find_no_job(
        self, call: Caller, carol: User, address: str, leaving: Eviction
    ) -> None:
        for user in (carol, make_user("erin")):
            refusal(call(user).post(address, {"attempt": 1}), 404)

        leaving.refresh_from_db()
        assert leaving.confirmed_at is None

    def test_another_member_may_not(
        self, call: Caller, vision: Tenant, address: str, leaving: Eviction
    ) -> None:
        dave = join(make_user("dave"), vision)

        refusal(call(dave).post(address, {"attempt": 1}), 403)

        leaving.refresh_from_db()
        assert leaving.confirmed_at is None

    def test_another_attempt_is_refused_by_its_code(
        self, call: Caller, bob: User, address: str
    ) -> None:
        told = refusal(call(bob).post(address, {"attempt": 2}), 409)

        assert (told["code"], told["field"]) == ("other_attempt", "attempt")
        assert told["message"] == (
            f"Attempt 1 of job {address.split('/')[4]} was asked to leave, not attempt 2."
        )

    @pytest.mark.parametrize(
        ("columns", "code"),
        [({"outcome": "grace_exceeded"}, "already_left"), ({"outcome": "stayed"}, "not_leaving")],
    )
    def test_after_the_end_and_without_a_request_there_is_nothing_to_confirm(
        self, columns: dict[str, Any], code: str, call: Caller, bob: User, victim: Job, taker: Job
    ) -> None:
        make_eviction(victim, taker, **columns)

        answer = call(bob).post(f"{JOBS}/{victim.pk}/confirm-checkpoint", {"attempt": 1})

        assert refusal(answer, 409)["code"] == code

    @pytest.mark.parametrize(
        "body",
        [{}, {"attempt": "1"}, {"attempt": 0}, {"attempt": 1.0}, {"attempt": True},
         {"attempt": None}, {"attempt": 2**40}, {"attempt": 1, "saved": True}],
    )  # fmt: skip
    def test_a_body_that_cannot_be_is_refused(
        self, body: dict[str, Any], call: Caller, bob: User, address: str, leaving: Eviction
    ) -> None:
        refusal(call(bob).post(address, body), 400)

        leaving.refresh_from_db()
        assert leaving.confirmed_at is None
