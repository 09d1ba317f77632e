"""The addresses of the pages."""

from django.contrib.auth.views import LogoutView
from django.urls import URLPattern, path
from django.views.generic import RedirectView

from apps.console import views_account

app_name = "console"
urlpatterns: list[URLPattern] = [
    path("login/", views_account.Login.as_view(), name="login"),
    path("logout/", LogoutView.as_view(), name="logout"),
    path("profile/", views_account.Profile.as_view(), name="profile"),
    path("", RedirectView.as_view(pattern_name="console:profile"), name="overview"),
]
