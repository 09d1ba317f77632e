"""The stories of the demo: a button for each, and what a click on it does."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.mixins import LoginRequiredMixin
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.views import View

from apps.backends.services import request_tick
from apps.common.errors import DomainError
from apps.console.people import Viewer, viewer_of
from apps.jobs.selectors import jobs_visible_to
from apps.scheduling.stories import CLUSTER, NINE_RANKS, STORIES, play


@dataclass(frozen=True, slots=True)
class Button:
    """A story that can be played from a page."""

    text: str
    url: str


def may_play(viewer: Viewer) -> bool:
    """Return whether somebody may play the stories: in the demo only, who leads a team."""
    return settings.DEMO and viewer.is_lead


def eviction_buttons(viewer: Viewer) -> list[Button]:
    """Return a button for each story of somebody who makes way."""
    if not may_play(viewer):
        return []
    return [
        Button(f"Play {story.title}", reverse("console:play-eviction", args=[name]))
        for name, story in STORIES.items()
        if name != NINE_RANKS
    ]


class PlayStory(LoginRequiredMixin, View):
    """Play a story, and show the job to watch."""

    def post(self, request: HttpRequest, story: str = NINE_RANKS) -> HttpResponse:
        """Submit its jobs and show the one to watch, where the reader may see it."""
        if not may_play(viewer_of(request)) or story not in STORIES:
            raise Http404
        nine = story == NINE_RANKS
        listed = "console:waterfall" if nine else "console:evictions"
        now = timezone.now()
        try:
            job = play(story, now=now, by=request.user)  # type: ignore[arg-type]  # logged in
        except DomainError as error:
            messages.warning(request, error.message)
            return redirect(listed)
        request_tick(job.cluster, now=now)
        messages.success(
            request, f"The story of {STORIES[story].title} begins on the cluster {CLUSTER}."
        )
        if not jobs_visible_to(request.user).filter(pk=job.pk).exists():
            return redirect(listed)
        return redirect("console:job-waterfall" if nine else "console:job", job.pk)
