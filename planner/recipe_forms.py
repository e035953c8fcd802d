"""What may be said about a recipe: the model's name as the engine is told it, and how nodes are labelled."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.validators import RegexValidator

from calibration.form_parts import LineField
from planner.knob_columns import hardware_names
from planner.models import Plan
from planner.recipes.placement import NODE_LABEL, by_name

MODEL = RegexValidator(
    r"^[A-Za-z0-9][\w./:@+-]*$",
    "A name or path of letters, digits and . / : @ _ + -, starting with a letter or digit.",
)
LABELS = ("node_label", "second_node_label")


def _label_field(label: str) -> LineField:
    return LineField(
        max_length=300, required=False, label=label,
        validators=[RegexValidator(rf"^{NODE_LABEL.pattern}$", "key=value, as nodes are labelled in Kubernetes.")],
        help_text="Of the nodes to run on, such as nvidia.com/gpu.product=NVIDIA-H200.",
    )  # fmt: skip


class RecipeForm(forms.Form):
    """Everything else is in the plan."""

    model = LineField(
        max_length=200, required=False, validators=[MODEL], label="Model to load",
        help_text="A name on a hub (org/model) or a path. Default: the calibration's name, which may be neither.",
    )  # fmt: skip
    node_label = _label_field("Node label")
    second_node_label = _label_field("Node label of the second hardware")

    def __init__(self, *args: Any, plan: Plan, **more: Any) -> None:
        super().__init__(*args, **more)
        self._two = plan.second_calibration_id is not None
        names = hardware_names(plan.result) if plan.result else []
        #: What nodes are labelled with unless it is said.
        self._defaults = [place.label for place in by_name(names)] if len(names) > 1 else ["", ""]
        if plan.second_calibration is not None:
            for name, row in zip(LABELS, (plan.calibration, plan.second_calibration), strict=True):
                self.fields[name].label = f"Node label of {row.device_label} ({row.name})"

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        said = [data.get(name) for name in LABELS]
        if said[1] and not self._two:
            self.add_error("second_node_label", "Goes with a plan on two kinds of hardware.")
        elif any(said):
            first, second = (own or default for own, default in zip(said, self._defaults, strict=True))
            if first == second:
                self.add_error(
                    LABELS[1] if said[1] else LABELS[0],
                    "The same label for both kinds of hardware tells them apart nowhere.",
                )
        return data

    @property
    def asked(self) -> list[str]:
        """The fields to show."""
        return ["model", *(LABELS if self._two else LABELS[:1])]

    def node_labels(self) -> list[str]:
        """By number of the kind of hardware; "" where none was stated."""
        return [self.cleaned_data.get(name) or "" for name in LABELS]
