"""The addresses of the endpoints."""

from django.urls import URLPattern

app_name = "api"
urlpatterns: list[URLPattern] = []
