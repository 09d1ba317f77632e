"""Log in, log out, the profile, and the pages of what went wrong."""

from __future__ import annotations

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.mixins import LoginRequiredMixin
from django.contrib.auth.views import LoginView
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views import View

from apps.console.context import THEMES, theme_of
from apps.console.pages import Crumb, PageInfo

YEAR = 365 * 86_400


class LoginForm(AuthenticationForm):
    """The same sentence for a wrong name and a wrong password."""

    error_messages = {  # noqa: RUF012  as Django declares it
        "invalid_login": "This name and password do not belong together.",
        "inactive": "This name and password do not belong together.",
    }


class Login(LoginView):
    """Ask who someone is."""

    template_name = "console/login.html"
    authentication_form = LoginForm
    redirect_authenticated_user = True

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Add what base.html says around the form."""
        page = PageInfo("login", "Log in", "Log in")
        return super().get_context_data(**kwargs) | {"page": page, "demo": settings.DEMO}


class ProfileForm(forms.Form):
    """What a person chooses for themselves."""

    theme = forms.ChoiceField(
        choices=[("", "As the system says"), ("light", "Light"), ("dark", "Dark")],
        required=False,
        help_text="Kept in this browser.",
    )
    keys_enabled = forms.BooleanField(
        required=False,
        label="Keys",
        help_text="Single-key shortcuts, such as j and k for rows. Off inside fields in any case.",
    )


class Profile(LoginRequiredMixin, View):
    """Theme and keys."""

    def get(self, request: HttpRequest) -> HttpResponse:
        """Show what is chosen."""
        user: Any = request.user
        initial = {"theme": theme_of(request), "keys_enabled": user.keys_enabled}
        return self._page(request, ProfileForm(initial=initial))

    def post(self, request: HttpRequest) -> HttpResponse:
        """Keep what was chosen."""
        user: Any = request.user
        form = ProfileForm(request.POST)
        if not form.is_valid():
            return self._page(request, form, status=422)
        user.keys_enabled = form.cleaned_data["keys_enabled"]
        user.save(update_fields=["keys_enabled"])
        response = redirect("console:profile")
        theme = form.cleaned_data["theme"]
        if theme in THEMES:
            response.set_cookie(
                "theme",
                theme,
                max_age=YEAR,
                samesite="Lax",
                httponly=True,
                secure=request.is_secure(),
            )
        else:
            response.delete_cookie("theme", samesite="Lax")
        messages.success(request, "Saved.")
        return response

    def _page(self, request: HttpRequest, form: ProfileForm, status: int = 200) -> HttpResponse:
        page = PageInfo("profile", "Profile", "Profile", (Crumb("Profile"),))
        context = {"page": page, "form": form}
        return render(request, "console/profile.html", context, status=status)
