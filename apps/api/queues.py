"""Queues: where the jobs of a tenant wait on a cluster, and how many do."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, ClassVar

from django.db.models import Count
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.accounts.models import User
from apps.api.endpoints import Endpoint, caller, only_subtree, page_schema, paged
from apps.api.errors import NotFound, shown
from apps.api.serializers import Paging
from apps.jobs.models import Job
from apps.jobs.states import HOLDING, WAITING
from apps.queues.models import Queue
from apps.queues.selectors import queues_visible_to


class QueueFilter(Paging):
    """What narrows a list of queues."""

    tenant = serializers.CharField(required=False, max_length=400, help_text="And all below it.")
    cluster = serializers.CharField(required=False, max_length=60)


class QueueList(serializers.ListSerializer[Any]):
    """Counts the jobs of all queues of a page at once."""

    def to_representation(self, data: Any) -> list[Any]:
        queues = list(data)
        self._context = {**self.context, "numbers": numbers_of(queues)}
        return super().to_representation(queues)


class QueueShown(serializers.Serializer[Any]):
    """A queue, and how many jobs wait in it or hold GPUs."""

    id = serializers.IntegerField()
    tenant = serializers.CharField(source="tenant.path")
    cluster = serializers.CharField(source="cluster.name")
    factor = serializers.FloatField(help_text="The queue term of priority, 0 to 1.")
    max_pending = serializers.IntegerField(allow_null=True, help_text="null: no limit.")
    closed_at = serializers.DateTimeField(allow_null=True, help_text="Set: no new jobs.")
    paused = serializers.SerializerMethodField(help_text="Whether its tenant is paused.")
    waiting = serializers.SerializerMethodField()
    holding = serializers.SerializerMethodField(help_text="Jobs admitted or running.")

    class Meta:
        list_serializer_class = QueueList

    def get_paused(self, queue: Queue) -> bool:
        return queue.tenant.paused_at is not None

    def get_waiting(self, queue: Queue) -> int:
        return self._number(queue, "waiting")

    def get_holding(self, queue: Queue) -> int:
        return self._number(queue, "holding")

    def _number(self, queue: Queue, what: str) -> int:
        numbers: dict[tuple[int, int, str], int] = self.context["numbers"]
        return numbers.get((queue.tenant_id, queue.cluster_id, what), 0)


def numbers_of(queues: list[Queue]) -> dict[tuple[int, int, str], int]:
    """Return how many jobs of (tenant, cluster) wait or hold GPUs; one query."""
    found: dict[tuple[int, int, str], int] = defaultdict(int)
    rows = Job.objects.filter(
        tenant_id__in={queue.tenant_id for queue in queues},
        state__in=sorted(WAITING | HOLDING),
    ).order_by()
    for tenant, cluster, state, count in rows.values_list(
        "tenant_id", "cluster_id", "state"
    ).annotate(Count("pk")):
        found[tenant, cluster, "waiting" if state in WAITING else "holding"] += count
    return dict(found)


def _found(user: User, pk: str) -> Queue:
    queue = queues_visible_to(user).filter(pk=pk).first()
    if queue is None:
        raise NotFound(f"There is no queue {shown(pk)}.")
    return queue


class Queues(Endpoint):
    """Queues of the tenants the caller sees."""

    lookup_value_regex = "[0-9]{1,18}"
    queries: ClassVar = {"list": QueueFilter}

    @extend_schema(
        operation_id="list_queues",
        summary="List queues",
        parameters=[QueueFilter],
        responses=page_schema("QueuePage", QueueShown),
    )
    def list(self, request: Request) -> Response:
        user = caller(request)
        rows = only_subtree(queues_visible_to(user), user, self.asked)
        if "cluster" in self.asked:
            rows = rows.filter(cluster__name=self.asked["cluster"])
        return paged(request, rows, QueueShown, self.asked)

    @extend_schema(operation_id="show_queue", summary="Show a queue", responses=QueueShown)
    def retrieve(self, request: Request, pk: str) -> Response:
        queue = _found(caller(request), pk)
        return Response(QueueShown(queue, context={"numbers": numbers_of([queue])}).data)
