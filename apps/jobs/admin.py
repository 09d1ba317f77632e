"""Jobs in the operators' admin: all of it read, none of it written; services move jobs."""

from __future__ import annotations

from django.contrib import admin

from apps.common.readonly import ReadOnlyAdmin, ReadOnlyInline
from apps.jobs.models import Arrival, Attempt, Eviction, Job, Member, Move, Reservation


class MoveInline(ReadOnlyInline[Move]):
    """A job's story."""

    model = Move
    fields = ("at", "what", "before", "after", "attempt_number", "by", "tick_id", "detail")


class AttemptInline(ReadOnlyInline[Attempt]):
    """A job's attempts."""

    model = Attempt
    fields = ("number", "uid", "launched_at", "started_at", "ended_at", "outcome", "detail")
    show_change_link = True


class ReservationInline(ReadOnlyInline[Reservation]):
    """What was held for a job."""

    model = Reservation
    fields = ("since", "ended_at", "outcome", "timeout_seconds")


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin[Job]):
    """Jobs; hold, release and cancel them in the console."""

    list_display = ("id", "name", "tenant", "pool", "size", "gpus_per_member", "state", "held_at")
    list_filter = (
        "cluster",
        "state",
        "pool",
        "priority_class",
        ("held_at", admin.EmptyFieldListFilter),
        ("cancel_requested_at", admin.EmptyFieldListFilter),
    )
    search_fields = ("=id", "name", "tenant__path")
    list_select_related = ("tenant", "pool__cluster")
    ordering = ("-id",)
    exclude = ("idempotency_key", "request_digest")
    inlines = (AttemptInline, ReservationInline, MoveInline)


@admin.register(Eviction)
class EvictionAdmin(ReadOnlyAdmin[Eviction]):
    """Evictions; the console shows each with what may be told of it to whom."""

    list_display = ("id", "at", "job", "beneficiary", "rule", "mode", "outcome", "gpus", "thrashes")
    list_filter = ("cluster", "rule", "mode", "outcome", "thrashes")
    search_fields = ("=id", "=job__id", "=beneficiary__id")
    list_select_related = ("job", "beneficiary")
    ordering = ("-id",)


class MemberInline(ReadOnlyInline[Member]):
    """Where an attempt's members lie."""

    model = Member
    fields = ("rank", "node")


@admin.register(Attempt)
class AttemptAdmin(ReadOnlyAdmin[Attempt]):
    """Attempts by their uid, as the cluster knows them."""

    list_display = ("uid", "job", "number", "launched_at", "started_at", "ended_at", "outcome")
    list_filter = ("outcome", ("ended_at", admin.EmptyFieldListFilter), "job__cluster")
    search_fields = ("=uid", "=job__id", "cluster_ref")
    list_select_related = ("job",)
    ordering = ("-id",)
    inlines = (MemberInline,)


@admin.register(Member)
class MemberAdmin(ReadOnlyAdmin[Member]):
    """Members by node."""

    list_display = ("attempt", "rank", "node")
    search_fields = ("node__name",)
    list_select_related = ("attempt__job", "node")
    ordering = ("-id",)


@admin.register(Reservation)
class ReservationAdmin(ReadOnlyAdmin[Reservation]):
    """Reservations; what they held when stands in the ledger."""

    list_display = ("job", "since", "ended_at", "outcome", "timeout_seconds")
    list_filter = ("outcome", ("ended_at", admin.EmptyFieldListFilter))
    list_select_related = ("job",)


@admin.register(Move)
class MoveAdmin(ReadOnlyAdmin[Move]):
    """Every change of every job."""

    list_display = ("at", "job", "what", "before", "after", "attempt_number", "by", "tick_id")
    list_filter = ("what",)
    search_fields = ("=job__id", "=tick_id")
    list_select_related = ("job", "by")
    ordering = ("-id",)


@admin.register(Arrival)
class ArrivalAdmin(ReadOnlyAdmin[Arrival]):
    """Submissions that a trace or a made workload brings."""

    list_display = ("at", "cluster", "tenant", "job")
    list_filter = ("cluster", ("job", admin.EmptyFieldListFilter))
    list_select_related = ("cluster", "tenant", "job")
