"""Numbers, times and names as the pages write them: never NaN, None or a bare null."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django import template
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from apps.common import show

register = template.Library()


def dash(reason: str = "not applicable") -> SafeString:
    """Return the mark of a value that is not there, with the reason for eyes and readers."""
    return format_html(
        '<span class="null" title="{0}"><span aria-hidden="true">–</span>'
        '<span class="visually-hidden">{0}</span></span>',
        reason or "not applicable",
    )


@register.simple_tag
def null(reason: str = "not applicable") -> SafeString:
    """Write ``–`` with its reason: ``{% null "not started yet" %}``."""
    return dash(reason)


UNIT = re.compile(r"(?<=\d) (?=(?:s|min|h|d|GPUs?|GPUh|GPU-s|slices?)\b)")


@register.filter(is_safe=True)
def unbroken(value: str) -> str:
    """Keep a number and its unit on one line."""
    return UNIT.sub("\N{NO-BREAK SPACE}", value)


@register.filter
def whole(value: Any, reason: str = "unknown") -> str:
    """Write GPUs, rows and other counts: ``1,234``."""
    return dash(reason) if show.is_nothing(value) else show.whole(value)


@register.filter
def money(value: Any, reason: str = "no price") -> str:
    """Write an amount of the installation's currency, two decimals."""
    return dash(reason) if show.is_nothing(value) else show.money(value)


@register.filter
def gpuh(value: Any, reason: str = "unknown") -> str:
    """Write GPU-hours with their unit."""
    return dash(reason) if show.is_nothing(value) else show.gpu_hours(value)


@register.filter
def duration(value: Any, reason: str = "not applicable") -> str:
    """Write seconds or a timedelta in two units, as a column wants it: ``22 h 00 min``."""
    return dash(reason) if show.is_nothing(value) else show.duration(value, full=True)


@register.filter
def brief(value: Any, reason: str = "not applicable") -> str:
    """Write seconds or a timedelta as a sentence wants it: ``22 h``."""
    return dash(reason) if show.is_nothing(value) else show.duration(value)


@register.filter
def percent(value: Any, reason: str = "of nothing") -> str:
    """Write a fraction of one in percent, one decimal: ``15.8 %``."""
    return dash(reason) if show.is_nothing(value) else show.percent(value)


@register.filter
def ratio(value: Any, reason: str = "no share") -> str:
    """Write a ratio: ``1.30×``."""
    return dash(reason) if show.is_nothing(value) else show.ratio(value)


@register.filter
def number(value: Any, reason: str = "not applicable") -> str:
    """Write a number that is no money, rounded to a whole, with a real minus sign."""
    return dash(reason) if show.is_nothing(value) else show.whole(value)


@register.filter
def plural(count: Any, words: str) -> str:
    """Write a count with its noun: ``{{ n|plural:"job,jobs" }}``."""
    one, _, many = words.partition(",")
    return show.counted(int(count), one, many or None)


@register.simple_tag
def name(value: Any) -> SafeString:
    """Write a name someone chose: isolated, cut at 48 characters, whole in the title."""
    full = show.spoken(value)
    cut = show.cut(full)
    if cut == full:
        return format_html("<bdi>{}</bdi>", full)
    return format_html('<bdi title="{}">{}</bdi>', full, cut)


@register.filter
def cut(value: Any) -> str:
    """Write a name cut at 48 characters, for titles and other plain text."""
    return show.cut(show.spoken(value))


@register.simple_tag(takes_context=True)
def when(context: template.Context, at: datetime | None, style: str = "", reason: str = "") -> str:
    """Write an instant in the report zone; ``style`` is "", "seconds", "date" or "stamp".

    Days are told from the page's ``now`` (the cluster's time), else from wall time.
    """
    if at is None:
        return dash(reason or "not yet")
    now = context.get("now") or timezone.now()
    return format_html(
        '<time datetime="{0}" title="{0}">{1}</time>',
        show.iso(at),
        show.instant(at, now=now, style=style),
    )


@register.filter
def has_bad(alerts: Iterable[Any]) -> bool:
    """Return whether one of these alerts is bad."""
    return any(alert.level == "bad" for alert in alerts)
