"""The import of what a cluster remembers: admins begin it, and see how far it is."""

from __future__ import annotations

from typing import Any, ClassVar

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.accounts.models import User
from apps.api.endpoints import (
    Endpoint,
    Paging,
    admins_only,
    caller,
    known_cluster,
    page_schema,
    paged,
)
from apps.api.serializers import Instant, Strict, Text
from apps.backends.models import Cluster
from apps.scheduling.history import start_history_import
from apps.scheduling.models import HistoryImport
from apps.scheduling.selectors import imports_of, percent_done


class NewImport(Strict):
    """What to import."""

    since = Instant(help_text="Runs that ended from then on.")
    until = Instant(required=False, allow_null=True, help_text="[the cluster's first look]")
    reason = Text(max_length=300, required=False, default="", allow_blank=True)


class ImportShown(serializers.Serializer[Any]):
    """An import, and how far it is."""

    id = serializers.IntegerField()
    since = serializers.DateTimeField()
    until = serializers.DateTimeField()
    state = serializers.CharField(help_text="running, done or failed.")
    percent = serializers.SerializerMethodField()
    done_until = serializers.DateTimeField(help_text="What ended before is in the ledger.")
    runs = serializers.IntegerField(help_text="Runs written.")
    known = serializers.IntegerField(help_text="Runs the ledger had already.")
    left_out = serializers.DictField(
        child=serializers.IntegerField(), help_text="Runs left out, by why."
    )
    problem = serializers.CharField(help_text="Why it does not go on; empty: it does.")
    started_at = serializers.DateTimeField()
    started_by = serializers.CharField(source="started_by.username", default=None, allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)

    def get_percent(self, job: HistoryImport) -> int:
        return percent_done(job)


def _cluster(user: User, name: str) -> Cluster:
    cluster = known_cluster(name)
    admins_only(user, f"import the history of {cluster}")
    return cluster


class HistoryImports(Endpoint):
    """Imports of a cluster's history; admins only."""

    queries: ClassVar = {"list": Paging}

    @extend_schema(
        operation_id="list_history_imports",
        summary="List the imports of a cluster's history, the newest first",
        parameters=[Paging],
        responses=page_schema("ImportPage", ImportShown),
    )
    def list(self, request: Request, name: str) -> Response:
        rows = imports_of(_cluster(caller(request), name))
        return paged(request, rows, ImportShown, self.asked, descending=True)

    @extend_schema(
        operation_id="import_history",
        summary="Begin to import a cluster's history; it goes on by itself",
        request=NewImport,
        responses={201: ImportShown},
    )
    def create(self, request: Request, name: str) -> Response:
        user = caller(request)
        cluster = _cluster(user, name)
        asked = self.read(NewImport, request)
        job = start_history_import(
            cluster, since=asked["since"], until=asked.get("until"), by=user,
            now=timezone.now(), reason=asked["reason"],
        )  # fmt: skip
        return Response(ImportShown(job).data, status=201)
