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
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views import View

from apps.accounts.selectors import tokens_of
from apps.accounts.services import issue_token, revoke_token
from apps.backends.models import Cluster
from apps.backends.user_tokens import LONGEST, enter_token, entered_by, forget_token
from apps.common import show
from apps.common.errors import Invalid
from apps.console.context import THEMES, theme_of
from apps.console.pages import Crumb, PageInfo

YEAR = 365 * 86_400
TOKENS_SHOWN = 50


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


class TokenForm(forms.Form):
    """What a new token is for."""

    prefix = "token"
    name = forms.CharField(
        max_length=80,
        error_messages={"required": "Say what it is for."},
        help_text="What it is for, such as nightly-submit.",
    )


class ClusterTokenForm(forms.Form):
    """A token of one's own for a cluster; what was entered is never drawn again."""

    prefix = "cluster"
    token = forms.CharField(
        max_length=LONGEST,
        widget=forms.PasswordInput(attrs={"autocomplete": "off"}),
        error_messages={"required": "Enter the token."},
        help_text="As scontrol token prints it; kept sealed, never shown again.",
    )

    def __init__(self, cluster: Cluster, data: Any = None) -> None:
        super().__init__(data, auto_id=f"id_{cluster.pk}_%s")
        self.fields["token"].label = f"Token for {cluster}"


class Profile(LoginRequiredMixin, View):
    """Theme, keys and tokens."""

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
        return _profile(request, form, TokenForm(), status=status)


def _profile(
    request: HttpRequest,
    form: ProfileForm,
    token_form: TokenForm,
    *,
    secret: str = "",
    refused: ClusterTokenForm | None = None,
    refused_by: int = 0,
    status: int,
) -> HttpResponse:
    """Draw the profile; ``secret`` is that of a token just given out.

    ``refused``: what was entered for the cluster ``refused_by`` and will not do.
    """
    user: Any = request.user
    asking = [
        (
            one,
            refused if refused and one.cluster.pk == refused_by else ClusterTokenForm(one.cluster),
        )
        for one in entered_by(user)
    ]
    context = {
        "page": PageInfo("profile", "Profile", "Profile", (Crumb("Profile"),)),
        "form": form,
        "token_form": token_form,
        "secret": secret,
        "asking": asking,
        "refused": refused,
        "tokens": tokens_of(user)[:TOKENS_SHOWN],
        "now": timezone.now(),
    }
    return render(request, "console/profile.html", context, status=status)


class GiveToken(LoginRequiredMixin, View):
    """Give out a token; its secret is on the page that answers, and nowhere else."""

    def post(self, request: HttpRequest) -> HttpResponse:
        """Give it out."""
        user: Any = request.user
        form = TokenForm(request.POST)
        known = {"theme": theme_of(request), "keys_enabled": user.keys_enabled}
        profile = ProfileForm(initial=known)
        if not form.is_valid():
            return _profile(request, profile, form, status=422)
        _, secret = issue_token(user, name=form.cleaned_data["name"], now=timezone.now())
        return _profile(request, profile, TokenForm(), secret=secret, status=201)


class TakeTokenBack(LoginRequiredMixin, View):
    """Take one of one's own tokens back for good."""

    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Take it back; another's is the same 404 as none."""
        user: Any = request.user
        token = get_object_or_404(tokens_of(user), pk=pk)
        revoke_token(token, now=timezone.now())
        messages.success(request, f"{show.cut(token.name)} no longer works.")
        return redirect("console:profile")


class EnterClusterToken(LoginRequiredMixin, View):
    """Enter one's own token for a cluster, or have it forgotten."""

    def post(self, request: HttpRequest, name: str) -> HttpResponse:
        """Keep it sealed, or say at its field why it will not do."""
        user: Any = request.user
        cluster = get_object_or_404(Cluster, name=name, archived_at__isnull=True)
        if "forget" in request.POST:
            forget_token(cluster, user, now=timezone.now())
            messages.success(request, f"Your token for {cluster} is forgotten.")
            return redirect("console:profile")
        form = ClusterTokenForm(cluster, request.POST)
        if form.is_valid():
            try:
                enter_token(cluster, user, form.cleaned_data["token"], now=timezone.now())
            except Invalid as refusal:
                form.add_error("token", refusal.message)
            else:
                messages.success(request, f"Your jobs on {cluster} run as you now.")
                return redirect("console:profile")
        known = {"theme": theme_of(request), "keys_enabled": user.keys_enabled}
        return _profile(
            request, ProfileForm(initial=known), TokenForm(), refused=form, refused_by=cluster.pk,
            status=422,
        )  # fmt: skip
