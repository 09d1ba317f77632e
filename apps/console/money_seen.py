"""Who is shown money: admins and leads; members where the installation says so."""

from __future__ import annotations

from django.conf import settings

from apps.console.people import Viewer


def sees_money(viewer: Viewer) -> bool:
    """Return whether a reader is shown what things cost."""
    return viewer.is_lead or bool(settings.MEMBERS_SEE_MONEY and viewer.sight.roles)
