"""The fields of forms for what a kind of cluster asks for, option by option."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms

from apps.backends.port import OptionField


class MapField(forms.CharField):
    """Pairs of names, a line each: ``vision/segmentation = cv``."""

    widget = forms.Textarea(attrs={"rows": 3})

    def prepare_value(self, value: Any) -> Any:
        """Return pairs as lines."""
        if isinstance(value, Mapping):
            return "\n".join(f"{left} = {right}" for left, right in value.items())
        return value

    def clean(self, value: Any) -> dict[str, str]:
        """Return the pairs."""
        pairs: dict[str, str] = {}
        for number, line in enumerate((super().clean(value) or "").splitlines(), 1):
            if not line.strip():
                continue
            left, sign, right = (part.strip() for part in line.partition("="))
            if not (left and sign and right):
                raise forms.ValidationError(f"Line {number} must be such as team = account.")
            if left in pairs:
                raise forms.ValidationError(f"Line {number} names {left} a second time.")
            pairs[left] = right
        return pairs


class LinesField(forms.CharField):
    """Text of several lines, as a shell reads it: browsers send a carriage return with each."""

    widget = forms.Textarea(attrs={"rows": 12, "spellcheck": "false", "class": "code"})

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(strip=False, **kwargs)

    def clean(self, value: Any) -> str:
        """Return the text with its line ends alone."""
        return str(super().clean(value)).replace("\r\n", "\n")


def field_of(option: OptionField, *, known: bool = False) -> forms.Field:
    """Return the form's field of an option; ``known``: a secret is set already."""
    common: dict[str, Any] = {"label": option.label, "required": False, "help_text": option.help}
    if option.kind == "choice":
        return forms.ChoiceField(choices=option.choices, initial=option.default, **common)
    if option.kind == "map":
        return MapField(**common)
    if option.kind == "lines":
        return LinesField(**common)
    shown = {"placeholder": option.default} if option.default else {}
    if option.secret:
        kept = " It is set; left empty it stays." if known else ""
        common["help_text"] = f"{option.help}{kept}"
        return forms.CharField(widget=forms.PasswordInput(attrs={"autocomplete": "off"}), **common)
    if option.kind == "number":
        return forms.IntegerField(widget=forms.NumberInput(attrs=shown), **common)
    return forms.CharField(widget=forms.TextInput(attrs=shown), max_length=4_096, **common)
