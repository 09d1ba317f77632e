"""The addresses of the pages."""

from django.contrib.auth.views import LogoutView
from django.urls import URLPattern, path

from apps.console import views_account
from apps.console.views_accounts import AccountsPage, SettleAccount
from apps.console.views_actions import Confirm
from apps.console.views_cluster_changes import AddCluster, ChangeGrade, EditCluster, ImportHistory
from apps.console.views_clusters import ClusterPage, ClustersPage
from apps.console.views_eviction import EvictionPage
from apps.console.views_evictions import EvictionsPage
from apps.console.views_gang import JobWaterfallPage
from apps.console.views_idle import IdlePage
from apps.console.views_job import JobPage
from apps.console.views_jump import Jump
from apps.console.views_overview import OverviewPage
from apps.console.views_queue import QueuePage
from apps.console.views_quota import EditQuota
from apps.console.views_stories import PlayStory
from apps.console.views_submit import Submit
from apps.console.views_waterfall import WaterfallPage

app_name = "console"
urlpatterns: list[URLPattern] = [
    path("login/", views_account.Login.as_view(), name="login"),
    path("logout/", LogoutView.as_view(), name="logout"),
    path("profile/", views_account.Profile.as_view(), name="profile"),
    path("profile/tokens/", views_account.GiveToken.as_view(), name="give-token"),
    path(
        "profile/clusters/<str:name>/token/",
        views_account.EnterClusterToken.as_view(),
        name="cluster-token",
    ),
    path(
        "profile/tokens/<int:pk>/take-back/",
        views_account.TakeTokenBack.as_view(),
        name="take-token-back",
    ),
    path("jump/", Jump.as_view(), name="jump"),
    path("jump.json", Jump.as_view(form="json"), name="jump-json"),
    path("queue/", QueuePage.as_view(), name="queue"),
    path("queue.csv", QueuePage.as_view(form="csv"), name="queue-csv"),
    path("queue.json", QueuePage.as_view(form="json"), name="queue-json"),
    path("jobs/new/", Submit.as_view(), name="submit"),
    path("jobs/<int:pk>/", JobPage.as_view(), name="job"),
    path("jobs/<int:pk>.csv", JobPage.as_view(form="csv"), name="job-csv"),
    path("jobs/<int:pk>.json", JobPage.as_view(form="json"), name="job-json"),
    path("jobs/<int:pk>/cancel/", Confirm.as_view(verb="cancel"), name="job-cancel"),
    path("jobs/<int:pk>/hold/", Confirm.as_view(verb="hold"), name="job-hold"),
    path("jobs/<int:pk>/release/", Confirm.as_view(verb="release"), name="job-release"),
    path("jobs/<int:pk>/waterfall/", JobWaterfallPage.as_view(), name="job-waterfall"),
    path(
        "jobs/<int:pk>/waterfall.csv",
        JobWaterfallPage.as_view(form="csv"),
        name="job-waterfall-csv",
    ),
    path(
        "jobs/<int:pk>/waterfall.json",
        JobWaterfallPage.as_view(form="json"),
        name="job-waterfall-json",
    ),
    path("", OverviewPage.as_view(), name="overview"),
    path("overview.csv", OverviewPage.as_view(form="csv"), name="overview-csv"),
    path("overview.json", OverviewPage.as_view(form="json"), name="overview-json"),
    path(
        "overview/hours.csv",
        OverviewPage.as_view(form="csv", part="hours"),
        name="overview-hours-csv",
    ),
    path(
        "overview/hours.json",
        OverviewPage.as_view(form="json", part="hours"),
        name="overview-hours-json",
    ),
    path("waterfall/", WaterfallPage.as_view(), name="waterfall"),
    path("waterfall.csv", WaterfallPage.as_view(form="csv"), name="waterfall-csv"),
    path("waterfall.json", WaterfallPage.as_view(form="json"), name="waterfall-json"),
    path("waterfall/story/", PlayStory.as_view(), name="play-story"),
    path("evictions/", EvictionsPage.as_view(), name="evictions"),
    path("evictions/story/<slug:story>/", PlayStory.as_view(), name="play-eviction"),
    path("evictions.csv", EvictionsPage.as_view(form="csv"), name="evictions-csv"),
    path("evictions.json", EvictionsPage.as_view(form="json"), name="evictions-json"),
    path("evictions/<int:pk>/", EvictionPage.as_view(), name="eviction"),
    path("evictions/<int:pk>.csv", EvictionPage.as_view(form="csv"), name="eviction-csv"),
    path("evictions/<int:pk>.json", EvictionPage.as_view(form="json"), name="eviction-json"),
    path("clusters/", ClustersPage.as_view(), name="clusters"),
    path("clusters.csv", ClustersPage.as_view(form="csv"), name="clusters-csv"),
    path("clusters.json", ClustersPage.as_view(form="json"), name="clusters-json"),
    path("clusters/new/", AddCluster.as_view(), name="cluster-new"),
    path("clusters/<slug:name>/", ClusterPage.as_view(), name="cluster"),
    path("clusters/<slug:name>.csv", ClusterPage.as_view(form="csv"), name="cluster-csv"),
    path("clusters/<slug:name>.json", ClusterPage.as_view(form="json"), name="cluster-json"),
    path("clusters/<slug:name>/edit/", EditCluster.as_view(), name="cluster-edit"),
    path("clusters/<slug:name>/grade/", ChangeGrade.as_view(), name="cluster-grade"),
    path("clusters/<slug:name>/history/", ImportHistory.as_view(), name="cluster-history"),
    path("clusters/<slug:name>/accounts/", AccountsPage.as_view(), name="cluster-accounts"),
    path(
        "clusters/<slug:name>/accounts.csv",
        AccountsPage.as_view(form="csv"),
        name="cluster-accounts-csv",
    ),
    path(
        "clusters/<slug:name>/accounts.json",
        AccountsPage.as_view(form="json"),
        name="cluster-accounts-json",
    ),
    path(
        "clusters/<slug:name>/accounts/<path:account>/",
        SettleAccount.as_view(),
        name="account-settle",
    ),
    path(
        "quotas/<path:tenant>/<slug:cluster>/<str:pool>/edit/",
        EditQuota.as_view(),
        name="quota-edit",
    ),
    path("idle/", IdlePage.as_view(), name="idle"),
    path("idle.csv", IdlePage.as_view(form="csv"), name="idle-csv"),
    path("idle.json", IdlePage.as_view(form="json"), name="idle-json"),
    path("idle/parts.csv", IdlePage.as_view(form="csv", part="parts"), name="idle-parts-csv"),
    path("idle/parts.json", IdlePage.as_view(form="json", part="parts"), name="idle-parts-json"),
]
