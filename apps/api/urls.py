"""The addresses of the endpoints; each with or without a slash at its end."""

from __future__ import annotations

from django.urls import include, path, re_path
from rest_framework.routers import SimpleRouter

from apps.api.cluster_tokens import ClusterTokens
from apps.api.clusters import Clusters
from apps.api.docs import Docs, Document
from apps.api.endpoints import Nowhere
from apps.api.evictions import Evictions
from apps.api.history import HistoryImports
from apps.api.jobs import Jobs
from apps.api.me import Me, Tokens
from apps.api.queues import Queues
from apps.api.tenants import Quotas, Weights
from apps.api.usage import UsageReport

app_name = "api"

router = SimpleRouter()
router.trailing_slash = "/?"
router.register("jobs", Jobs, basename="job")
router.register("evictions", Evictions, basename="eviction")
router.register("clusters", Clusters, basename="cluster")
router.register("queues", Queues, basename="queue")
router.register("tokens", Tokens, basename="token")

v1 = [
    *router.urls,
    re_path(
        r"^clusters/(?P<name>[^/]+)/history/?$",
        HistoryImports.as_view({"get": "list", "post": "create"}),
        name="history",
    ),
    re_path(
        r"^me/cluster-tokens/?$", ClusterTokens.as_view({"get": "list"}), name="cluster-tokens"
    ),
    re_path(
        r"^me/cluster-tokens/(?P<name>[^/]+)/?$",
        ClusterTokens.as_view({"put": "enter", "delete": "forget"}),
        name="cluster-token",
    ),
    re_path(r"^me/?$", Me.as_view({"get": "show"}), name="me"),
    re_path(
        r"^tenants/(?P<tenant>.+)/quotas/(?P<cluster>[^/]+)/(?P<pool>[^/]+)/?$",
        Quotas.as_view({"get": "show", "put": "change"}),
        name="quota",
    ),
    re_path(
        r"^tenants/(?P<tenant>.+)/weight/?$", Weights.as_view({"put": "change"}), name="weight"
    ),
    re_path(r"^usage/?$", UsageReport.as_view({"get": "show"}), name="usage"),
]

urlpatterns = [
    path("v1/", include(v1)),
    path("schema/", Document.as_view(), name="schema"),
    path("docs/", Docs.as_view(), name="docs"),
    re_path(r"^[\s\S]*$", Nowhere.as_view(), name="nowhere"),
]
