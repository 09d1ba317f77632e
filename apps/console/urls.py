"""The addresses of the pages."""

from django.contrib.auth.views import LogoutView
from django.urls import URLPattern, path
from django.views.generic import RedirectView

from apps.console import views_account
from apps.console.views_actions import Confirm
from apps.console.views_job import JobPage
from apps.console.views_jump import Jump
from apps.console.views_queue import QueuePage
from apps.console.views_submit import Submit

app_name = "console"
urlpatterns: list[URLPattern] = [
    path("login/", views_account.Login.as_view(), name="login"),
    path("logout/", LogoutView.as_view(), name="logout"),
    path("profile/", views_account.Profile.as_view(), name="profile"),
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
    path("", RedirectView.as_view(pattern_name="console:queue"), name="overview"),
]
