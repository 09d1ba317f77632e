"""The addresses of everything."""

from typing import Any

from django.contrib import admin
from django.templatetags.static import static
from django.urls import include, path
from django.views.generic import RedirectView

from apps.config.health import healthz

admin.site.site_header = "Rollcall, for operators"
admin.site.site_title = "Rollcall"
admin.site.index_title = "Everything that is kept"


class Icon(RedirectView):
    """Browsers ask for it wherever a page names none."""

    def get_redirect_url(self, *args: Any, **kwargs: Any) -> str:
        """Return where the icon of our own pages is served."""
        return static("img/icon.svg")


urlpatterns = [
    path("favicon.ico", Icon.as_view()),
    path("healthz", healthz, name="healthz"),
    path("admin/", admin.site.urls),
    path("api/", include("apps.api.urls")),
    path("", include("apps.console.urls")),
]

handler400 = "apps.console.errors.not_understood"
handler403 = "apps.console.errors.forbidden"
handler404 = "apps.console.errors.not_found"
handler500 = "apps.console.errors.broken"
