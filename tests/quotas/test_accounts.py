"""Accounts of a cluster: taken as they are until something is changed here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import pytest

from apps.accounts.models import User
from apps.audit.models import Entry
from apps.backends.models import Cluster, Grade, Pool
from apps.backends.port import NO_LIMIT, BackendError, SeenAccount, SeenQos
from apps.common.errors import Conflict
from apps.quotas.account_tenants import tenants_of
from apps.quotas.accounts import keep, keep_accounts, settle_account, shares_for
from apps.quotas.models import Account, AccountsLook, AccountValue, Quota
from apps.quotas.services import set_quota
from apps.tenants.models import Tenant
from apps.tenants.services import archive_tenant, set_weight
from tests.factories import NOW, make_cluster, make_pool, make_tenant

LATER = NOW + timedelta(minutes=5)


@dataclass
class Ledger:
    """A cluster's accounts in memory; ``refuses`` are its words for some, ``broken`` for all."""

    rows: dict[str, SeenAccount] = field(default_factory=dict)
    written: list[tuple[str, int | None, int | None]] = field(default_factory=list)
    noted: list[tuple[str, dict[str, int]]] = field(default_factory=list)
    refuses: dict[str, str] = field(default_factory=dict)
    ranks: list[SeenQos] = field(default_factory=list)
    broken: str = ""
    deaf: bool = False

    def accounts(self, *, now: datetime) -> Sequence[SeenAccount]:
        if self.broken:
            raise BackendError(self.broken, retry=True)
        return list(self.rows.values())

    def qos(self, *, now: datetime) -> Sequence[SeenQos]:
        return self.ranks

    def set_account(
        self,
        name: str,
        *,
        shares: int | None = None,
        gpu_limit: int | None = None,
        guarantees: Mapping[str, int] | None = None,
    ) -> None:
        if guarantees is not None:
            self.noted.append((name, dict(guarantees)))
        if shares is not None or gpu_limit is not None:
            self.written.append((name, shares, gpu_limit))
        if name in self.refuses:
            raise BackendError(self.refuses[name], retry=False)
        if self.deaf:
            return
        row = self.rows[name]
        if shares is not None:
            row = replace(row, shares=shares)
        if gpu_limit is not None:
            row = replace(row, gpu_limit=None if gpu_limit == NO_LIMIT else gpu_limit)
        if guarantees is not None:
            row = replace(row, guarantees={**row.guarantees, **guarantees})
        self.rows[name] = row

    def edit(self, name: str, **changes: object) -> None:
        """Change an account as somebody at the cluster does."""
        self.rows[name] = replace(self.rows[name], **changes)  # type: ignore[arg-type]


@pytest.fixture
def ledger() -> Ledger:
    """Two accounts below the top, of 30 and 50 shares; the one may use 8 GPUs."""
    rows = [
        SeenAccount("root", "", 1, None),
        SeenAccount("cv", "root", 30, 8, users=2, norm_shares=0.375, level=float("inf")),
        SeenAccount("nlp", "root", 50, None, users=1, norm_shares=0.625),
    ]
    return Ledger({row.name: row for row in rows})


@pytest.fixture
def adopted(pool: Pool) -> list[Tenant]:
    """The tenants that were made for the accounts' work."""
    make_tenant("atlas")
    return [make_tenant("atlas/cv"), make_tenant("atlas/nlp")]


def value(name: str, what: str = "shares") -> AccountValue:
    return AccountValue.objects.get(account__name=name, what=what)


def test_the_first_sight_takes_what_the_cluster_has(
    cluster: Cluster, ledger: Ledger, adopted: list[Tenant]
) -> None:
    keep(cluster, ledger, now=NOW)

    assert list(Tenant.objects.filter(parent__name="atlas").values_list("weight", flat=True)) == [
        30.0, 50.0,
    ]  # fmt: skip
    assert Quota.objects.get(tenant=adopted[0]).ceiling == 8
    assert not Quota.objects.filter(tenant=adopted[1]).exists()
    cv = Account.objects.get(name="cv")
    assert (cv.parent, cv.tenant, cv.users, cv.level) == ("root", adopted[0], 2, None)
    assert (value("cv").seen, value("cv", "gpus").seen, value("nlp", "gpus").seen) == (30, 8, None)
    assert {one.state for one in AccountValue.objects.all()} == {"taken"}
    assert not ledger.written


def test_a_tenant_made_for_an_account_follows_it(
    cluster: Cluster, ledger: Ledger, adopted: list[Tenant]
) -> None:
    keep(cluster, ledger, now=NOW)
    ledger.edit("cv", shares=7, gpu_limit=None)
    keep(cluster, ledger, now=LATER)
    keep(cluster, ledger, now=LATER)

    adopted[0].refresh_from_db()
    assert adopted[0].weight == 7
    assert Quota.objects.get(tenant=adopted[0]).ceiling is None
    assert value("cv").state == "taken"
    told = Entry.objects.filter(verb="weight changed", object_id=adopted[0].pk).first()
    assert told is not None
    assert (told.actor, told.reason) == (None, "as atlas has it")
    assert not ledger.written


def test_a_tenant_that_is_mapped_keeps_its_own_weight(
    cluster: Cluster, ledger: Ledger, vision: Tenant
) -> None:
    cluster.options = {"accounts": {"vision": "CV"}}
    keep(cluster, ledger, now=NOW)
    ledger.edit("cv", shares=7)
    keep(cluster, ledger, now=LATER)

    vision.refresh_from_db()
    assert vision.weight == 1
    assert Account.objects.get(name="cv").tenant == vision
    assert (value("cv").state, value("cv").seen) == ("taken", 7)
    assert not ledger.written


def test_an_account_of_two_tenants_or_of_an_archived_one_is_nobodys(
    cluster: Cluster, ledger: Ledger, vision: Tenant, nlp: Tenant, root: User
) -> None:
    cluster.options = {"accounts": {"vision": "cv", "nlp": "cv"}}
    assert tenants_of(cluster, ["cv"]) == {}

    cluster.options = {"accounts": {"vision": "cv"}}
    archive_tenant(vision, by=root, now=NOW, reason="left")
    assert tenants_of(cluster, ["cv", "nlp"]) == {"cv": None, "nlp": None}


def test_an_account_that_went_and_came_back_is_the_same(
    cluster: Cluster, ledger: Ledger, adopted: list[Tenant]
) -> None:
    keep(cluster, ledger, now=NOW)
    row = ledger.rows.pop("cv")
    keep(cluster, ledger, now=LATER)
    gone = Account.objects.get(name="cv")
    ledger.rows["cv"] = row
    keep(cluster, ledger, now=LATER)

    assert gone.gone_at == LATER
    back = Account.objects.get(name="cv")
    assert (back.pk, back.gone_at, back.values.count()) == (gone.pk, None, 3)


def test_a_limit_below_what_is_promised_here_is_not_taken_over(
    cluster: Cluster, ledger: Ledger, adopted: list[Tenant], pool: Pool
) -> None:
    set_quota(
        adopted[0], pool, guarantee=16, ceiling=None, weight=None, by=None, now=NOW, reason=""
    )
    keep(cluster, ledger, now=NOW)

    quota = Quota.objects.get(tenant=adopted[0])
    assert (quota.guarantee, quota.ceiling) == (16, None)
    assert (value("cv", "gpus").state, value("cv", "gpus").seen) == ("taken", 8)


def test_a_kind_without_accounts_is_left_alone(cluster: Cluster) -> None:
    assert not keep_accounts(cluster, now=NOW)
    assert not AccountsLook.objects.exists()


def test_what_fails_stands_there_in_words_and_one_reads_at_a_time(db: None) -> None:
    far = make_cluster("far")
    Cluster.objects.filter(pk=far.pk).update(kind="slurm", options={"bin": "/nowhere"})
    far.refresh_from_db()

    assert keep_accounts(far, now=NOW)
    look = AccountsLook.objects.get()
    assert look.trouble.startswith("/nowhere/scontrol cannot be started here")
    assert (look.tried_at, look.read_at, look.claimed_until) == (NOW, None, None)

    AccountsLook.objects.update(claimed_until=LATER)
    assert not keep_accounts(far, now=NOW)
    assert keep_accounts(far, now=LATER + timedelta(seconds=1))


def test_options_that_cannot_be_are_said(db: None) -> None:
    far = make_cluster("far")
    Cluster.objects.filter(pk=far.pk).update(kind="slurm", options={"way": "smoke"})
    far.refresh_from_db()

    assert not keep_accounts(far, now=NOW)
    assert AccountsLook.objects.get().trouble.startswith("options.way must be ")


def test_a_weight_that_is_changed_here_is_wanted_there(
    cluster: Cluster, ledger: Ledger, adopted: list[Tenant], root: User
) -> None:
    cluster.grade = Grade.OBSERVE
    cluster.save()
    keep(cluster, ledger, now=NOW)
    adopted[0].refresh_from_db()
    set_weight(adopted[0], 44.6, by=root, now=NOW, reason="grew")
    keep(cluster, ledger, now=LATER)
    ledger.edit("cv", shares=31)
    keep(cluster, ledger, now=LATER)

    told = value("cv")
    assert (told.state, told.seen, told.wanted, told.wanted_at) == ("waiting", 31, 45, LATER)
    adopted[0].refresh_from_db()
    assert adopted[0].weight == 44.6
    assert not ledger.written


class TestWriting:
    """On a cluster that is driven."""

    @pytest.fixture
    def known(self, cluster: Cluster, ledger: Ledger, adopted: list[Tenant]) -> list[Tenant]:
        """The tenants of accounts that were seen before."""
        keep(cluster, ledger, now=NOW)
        for tenant in adopted:
            tenant.refresh_from_db()
        return adopted

    def test_it_is_written_and_read_back(
        self, cluster: Cluster, ledger: Ledger, known: list[Tenant], pool: Pool, root: User
    ) -> None:
        set_weight(known[0], 45, by=root, now=NOW, reason="grew")
        set_quota(
            known[1], pool, guarantee=4, ceiling=16, weight=None, by=root, now=NOW, reason="paid"
        )
        keep(cluster, ledger, now=LATER)
        keep(cluster, ledger, now=LATER)

        assert ledger.written == [("cv", 45, None), ("nlp", None, 16)]
        assert ledger.noted == [("nlp", {"h100": 4})]
        for told in (value("cv"), value("nlp", "gpus"), value("nlp", "guarantee")):
            assert (told.state, told.written_at, told.met_at) == ("in_step", LATER, LATER)
        assert (value("cv", "gpus").state, value("nlp").state) == ("taken", "taken")

    def test_a_ceiling_that_is_taken_away_is_no_limit_there(
        self, cluster: Cluster, ledger: Ledger, known: list[Tenant], pool: Pool, root: User
    ) -> None:
        how = {"guarantee": 4, "weight": None, "by": root, "now": NOW, "reason": "no need"}
        set_quota(known[0], pool, ceiling=None, **how)
        keep(cluster, ledger, now=LATER)

        assert ledger.written == [("cv", None, NO_LIMIT)]
        assert (value("cv", "gpus").state, value("cv", "gpus").seen) == ("in_step", None)

    def promise(self, tenant: Tenant, pool: Pool, guarantee: int, by: User) -> None:
        """Change a guarantee, with a ceiling or without as it was."""
        quota = Quota.objects.filter(tenant=tenant, pool=pool).first()
        set_quota(
            tenant, pool, guarantee=guarantee, ceiling=None if quota is None else quota.ceiling,
            weight=None, by=by, now=NOW, reason="paid",
        )  # fmt: skip

    def test_a_guarantee_is_noted_and_nothing_else_is_written(
        self, cluster: Cluster, ledger: Ledger, known: list[Tenant], pool: Pool, root: User
    ) -> None:
        self.promise(known[1], pool, 16, root)
        for _ in range(2):
            keep(cluster, ledger, now=LATER)

        assert (ledger.written, ledger.noted) == ([], [("nlp", {"h100": 16})])
        told = value("nlp", "guarantee")
        assert (told.state, told.seen, told.met_at) == ("in_step", 16, LATER)

        self.promise(known[1], pool, 0, root)
        keep(cluster, ledger, now=LATER)
        assert ledger.noted[-1] == ("nlp", {"h100": 0})
        assert (value("nlp", "guarantee").state, value("nlp", "guarantee").seen) == (
            "in_step",
            None,
        )

    @pytest.mark.parametrize("there", [{}, {"h100": 9}])
    def test_a_note_that_somebody_changes_or_takes_away_is_drift(
        self,
        there: dict[str, int],
        cluster: Cluster,
        ledger: Ledger,
        known: list[Tenant],
        pool: Pool,
        root: User,
    ) -> None:
        self.promise(known[1], pool, 16, root)
        keep(cluster, ledger, now=LATER)
        ledger.edit("nlp", guarantees=there)
        keep(cluster, ledger, now=LATER)

        told = value("nlp", "guarantee")
        assert (told.state, told.seen, told.wanted) == ("drifted", there.get("h100"), 16)
        settle_account(cluster, "nlp", keep="theirs", by=root, now=LATER, reason="they know")
        keep(cluster, ledger, now=LATER)
        assert value("nlp", "guarantee").state == "taken"
        # What is promised stands here, whatever is noted there.
        assert Quota.objects.get(tenant=known[1]).guarantee == 16
        entry = Entry.objects.get(verb="account kept theirs")
        assert entry.changes == {"guarantee h100": [16, there.get("h100")]}

    def test_each_pool_has_a_guarantee_of_its_own(
        self, cluster: Cluster, ledger: Ledger, known: list[Tenant], pool: Pool, root: User
    ) -> None:
        other = make_pool(cluster, "A100")
        keep(cluster, ledger, now=NOW)
        self.promise(known[1], pool, 16, root)
        keep(cluster, ledger, now=LATER)
        ledger.edit("nlp", guarantees={"h100": 16, "a100": 3})
        keep(cluster, ledger, now=LATER)

        rows = AccountValue.objects.filter(account__name="nlp", what="guarantee")
        assert {one.pool_id: (one.state, one.seen) for one in rows} == {
            pool.pk: ("in_step", 16), other.pk: ("taken", 3),
        }  # fmt: skip

    def test_a_promise_that_stood_before_is_not_noted_by_itself(
        self, cluster: Cluster, ledger: Ledger, known: list[Tenant], pool: Pool, root: User
    ) -> None:
        self.promise(known[1], pool, 16, root)
        AccountValue.objects.filter(what="guarantee").delete()
        keep(cluster, ledger, now=LATER)

        assert not ledger.noted
        assert value("nlp", "guarantee").state == "taken"

    @pytest.mark.parametrize("grade", [Grade.OBSERVE, Grade.ADVISE])
    def test_in_other_grades_nothing_ever_is(
        self, grade: str, cluster: Cluster, ledger: Ledger, known: list[Tenant], root: User
    ) -> None:
        # Lowered by somebody while the pass goes on.
        Cluster.objects.update(grade=grade)
        set_weight(known[0], 45, by=root, now=NOW, reason="grew")
        keep(cluster, ledger, now=LATER)

        assert not ledger.written
        assert value("cv").state == "waiting"

    def test_a_refusal_stands_there_and_is_tried_again_behind_others(
        self, cluster: Cluster, ledger: Ledger, known: list[Tenant], root: User
    ) -> None:
        ledger.refuses["cv"] = "Slurm does not let rollcall do this."
        for tenant in known:
            set_weight(tenant, 45, by=root, now=NOW, reason="grew")
        keep(cluster, ledger, now=LATER)

        assert (value("cv").state, value("cv").refused) == (
            "refused", "Slurm does not let rollcall do this.",
        )  # fmt: skip
        assert (value("nlp").state, ledger.rows["nlp"].shares) == ("in_step", 45)
        del ledger.refuses["cv"]
        keep(cluster, ledger, now=LATER)
        assert (value("cv").state, value("cv").refused) == ("in_step", "")

    def test_a_write_without_an_effect_is_said(
        self, cluster: Cluster, ledger: Ledger, known: list[Tenant], root: User
    ) -> None:
        ledger.deaf = True
        set_weight(known[0], 45, by=root, now=NOW, reason="grew")
        keep(cluster, ledger, now=LATER)

        assert value("cv").state == "refused"
        assert value("cv").refused == "atlas took it, but does not have it."

    def test_somebodys_edit_there_is_drift_and_stays_until_it_is_settled(
        self, cluster: Cluster, ledger: Ledger, known: list[Tenant], root: User
    ) -> None:
        set_weight(known[0], 45, by=root, now=NOW, reason="grew")
        keep(cluster, ledger, now=LATER)
        ledger.edit("cv", shares=5)
        for minutes in (1, 2):
            keep(cluster, ledger, now=LATER + timedelta(minutes=minutes))

        told = value("cv")
        assert (told.state, told.seen, told.wanted) == ("drifted", 5, 45)
        assert told.drifted_at == LATER + timedelta(minutes=1)
        assert len(ledger.written) == 1

        settle_account(cluster, "cv", keep="ours", by=root, now=LATER, reason="agreed")
        assert value("cv").state == "waiting"
        keep(cluster, ledger, now=LATER)
        assert (value("cv").state, ledger.rows["cv"].shares) == ("in_step", 45)

    def test_theirs_may_be_taken(
        self, cluster: Cluster, ledger: Ledger, known: list[Tenant], root: User
    ) -> None:
        set_weight(known[0], 45, by=root, now=NOW, reason="grew")
        keep(cluster, ledger, now=LATER)
        ledger.edit("cv", shares=5)
        keep(cluster, ledger, now=LATER)
        settle_account(cluster, "cv", keep="theirs", by=root, now=LATER, reason="they know")
        keep(cluster, ledger, now=LATER)

        known[0].refresh_from_db()
        assert (value("cv").state, known[0].weight, ledger.rows["cv"].shares) == ("taken", 5, 5)
        entry = Entry.objects.filter(verb="account kept theirs").get()
        assert (entry.changes, entry.reason) == ({"shares": [45, 5]}, "they know")
        with pytest.raises(Conflict):
            settle_account(cluster, "cv", keep="ours", by=root, now=LATER, reason="again")

    def test_a_drift_that_somebody_undoes_is_over(
        self, cluster: Cluster, ledger: Ledger, known: list[Tenant], root: User
    ) -> None:
        set_weight(known[0], 45, by=root, now=NOW, reason="grew")
        for shares in (30, 5, 45):
            ledger.edit("cv", shares=shares)
            keep(cluster, ledger, now=LATER)

        assert (value("cv").state, value("cv").drifted_at) == ("in_step", None)

    def test_an_account_that_is_gone_is_not_written(
        self, cluster: Cluster, ledger: Ledger, known: list[Tenant], root: User
    ) -> None:
        del ledger.rows["cv"]
        set_weight(known[0], 45, by=root, now=NOW, reason="grew")
        keep(cluster, ledger, now=LATER)

        assert not ledger.written


class TestShares:
    """How a weight becomes a whole number of shares."""

    @pytest.mark.parametrize(
        ("weight", "shares"),
        [(2, 70), (1, 35), (0.001, 1), (0, 0), (1.01, 35), (1.03, 36), (1e12, 1_000_000_000)],
    )
    def test_they_are_to_the_siblings_shares_as_the_weights_are(
        self, weight: float, shares: int
    ) -> None:
        mine = AccountValue(seen=30, base=1.0)
        beside = [mine, AccountValue(seen=50, base=1.0), AccountValue(seen=20, base=1.0)]
        beside.append(AccountValue(seen=None, base=1.0))

        assert shares_for(mine, weight, beside) == shares

    @pytest.mark.parametrize(("seen", "base", "shares"), [(30, 1.0, 60), (None, 1.0, 2), (0, 0, 2)])
    def test_without_siblings_they_change_as_the_weight_does(
        self, seen: int | None, base: float, shares: int
    ) -> None:
        mine = AccountValue(seen=seen, base=base)

        assert shares_for(mine, 2.0, [mine]) == shares

    def test_two_that_change_together_keep_their_proportion(
        self, cluster: Cluster, ledger: Ledger, adopted: list[Tenant], root: User
    ) -> None:
        keep(cluster, ledger, now=NOW)
        for tenant, weight in zip(adopted, (60, 100), strict=True):
            tenant.refresh_from_db()
            set_weight(tenant, weight, by=root, now=NOW, reason="more of both")
        keep(cluster, ledger, now=LATER)

        assert (ledger.rows["cv"].shares, ledger.rows["nlp"].shares) == (60, 100)
