"""The forms of a cluster: how it is reached, option by option as its kind names them, and its grade."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime, time
from itertools import groupby
from typing import Any

from django import forms
from django.utils.html import format_html

from apps.backends.kinds import KINDS, option_fields
from apps.backends.models import Cluster, Grade
from apps.backends.secrets import kept
from apps.common import show
from apps.common.errors import DomainError
from apps.console.cluster_facts import GRADES
from apps.console.option_fields import field_of
from apps.console.views_actions import LONGEST, SHORTEST, ReasonForm

PREFIX = "options."
WHY = f"{SHORTEST} to {LONGEST} characters; it is kept with the change."


@dataclass(frozen=True, slots=True)
class Group:
    """Fields under one label."""

    label: str
    fields: tuple[forms.BoundField, ...]


class ClusterForm(forms.Form):
    """How a cluster is reached; with a ``cluster`` it is changed, and the reason asked for."""

    name = forms.SlugField(
        max_length=60,
        help_text="As it is called on every page: letters, digits and hyphens.",
        error_messages={"invalid": "A name has only letters, digits, hyphens and underscores."},
    )
    tick_seconds = forms.IntegerField(min_value=1, max_value=86_400, label="Looks every, seconds")

    def __init__(self, kind: str, *args: Any, cluster: Cluster | None = None, **kw: Any) -> None:
        super().__init__(*args, **{"label_suffix": "", **kw})
        self.kind, self.cluster = kind, cluster
        seconds = KINDS[kind].tick_seconds if cluster is None else cluster.tick_seconds
        self.initial.setdefault("tick_seconds", seconds)
        self.known = {} if cluster is None else cluster.options
        self.options = option_fields(kind)
        for option in self.options:
            name = f"{PREFIX}{option.name}"
            self.fields[name] = field_of(option, known=option.name in self.known)
            if option.name in self.known and not option.secret:
                self.initial.setdefault(name, self.known[option.name])
        if cluster is not None:
            del self.fields["name"]
            self.fields["reason"] = deepcopy(ReasonForm.base_fields["reason"])
            self.fields["reason"].help_text = WHY
            # Why is asked once it is to be done, not for a mere check.
            self.fields["reason"].required = "check" not in self.data

    def groups(self) -> list[Group]:
        """Return the fields as they are shown."""
        first = [self[name] for name in ("name", "tick_seconds") if name in self.fields]
        rest = groupby(self.options, key=lambda option: option.group)
        return [
            Group("", tuple(first)),
            *(
                Group(label, tuple(self[f"{PREFIX}{option.name}"] for option in options))
                for label, options in rest
            ),
        ]

    def options_given(self) -> dict[str, Any]:
        """Return the options as typed: what is left empty, or as it is anyway, is not among them."""
        given: dict[str, Any] = {}
        for option in self.options:
            value = self.cleaned_data.get(f"{PREFIX}{option.name}")
            left = option.secret and option.name in self.known
            if left or (value not in (None, "", {}) and str(value) != option.default):
                given[option.name] = value
        return kept(self.kind, given, self.known)

    def trial(self) -> Cluster:
        """Return the cluster as it would be, unsaved, to be asked what works."""
        name = self.cluster.name if self.cluster is not None else self.cleaned_data["name"]
        return Cluster(name=name, kind=self.kind, options=self.options_given())

    def refuse(self, error: DomainError) -> None:
        """Put a service's refusal where its value was typed."""
        field = error.field or ""
        if field not in self.fields and field.startswith(PREFIX):
            field = PREFIX + field.removeprefix(PREFIX).partition(".")[0]
        self.add_error(field if field in self.fields else None, error.message)


class GradeForm(ReasonForm):
    """How far a cluster is controlled, and why."""

    grade = forms.ChoiceField(
        choices=[
            (grade, format_html('{}<span class="second">{}</span>', grade.label, GRADES[grade]))
            for grade in Grade
        ],
        widget=forms.RadioSelect,
    )
    anyway = forms.BooleanField(required=False, label="Drive it though something is missing")

    field_order = ("grade", "reason", "anyway")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["reason"].help_text = WHY


class HistoryForm(ReasonForm):
    """From when on a cluster's history is imported, and why."""

    since = forms.DateField(
        widget=forms.DateInput(attrs={"type": "date"}),
        help_text="Runs that ended from the beginning of that day on.",
    )

    field_order = ("since", "reason")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"label_suffix": "", **kwargs})
        self.fields["reason"].help_text = WHY

    def begin(self) -> datetime:
        """Return the beginning of the day, in the zone of the pages."""
        return datetime.combine(self.cleaned_data["since"], time(), tzinfo=show.zone())


KIND_LABELS = {kind.name: kind.label for kind in KINDS.values()}
