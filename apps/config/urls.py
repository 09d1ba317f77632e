"""The addresses of everything."""

from django.contrib import admin
from django.urls import include, path

from apps.config.health import healthz

urlpatterns = [
    path("healthz", healthz, name="healthz"),
    path("admin/", admin.site.urls),
    path("api/", include("apps.api.urls")),
    path("", include("apps.console.urls")),
]

handler403 = "apps.console.errors.forbidden"
handler404 = "apps.console.errors.not_found"
handler500 = "apps.console.errors.broken"
