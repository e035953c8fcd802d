"""The form of a plan: what pages, API and command ask, validated in one place (calibration/forms.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from django import forms
from django.http import QueryDict

from calibration.form_parts import LineField, seed_field
from calibration.models import Calibration
from calibration.services import facts_of
from planner.models import TrafficSet
from planner.plan_checks import hardware_errors, traffic_errors, unused_errors
from planner.plan_fields import (
    CalibrationField,
    IntegersField,
    ObjectivesField,
    TrafficField,
    WordsField,
    number,
)
from planner.schedule_forms import SCHEDULE, ScheduleFields
from planner.search import (
    DEFAULT_HEADROOM,
    DEFAULT_MAX_REPLICAS,
    ENGINES,
    GOODPUT,
    METRICS,
    TITLES,
    ConditionError,
    Conditions,
    Engine,
    Link,
    Objective,
    ObjectiveError,
    SearchSpace,
    SpaceError,
    check_objectives,
    default_space_of,
)
from planner.search.conditions import DEFAULT_LINK_UNCERTAINTY
from planner.search.engines import VERSIONS
from planner.services import PlanRequest
from planner.simulation.cluster.deployment import PREFIX_AWARE, ROUND_ROBIN, ROUTERS

MEANINGS = {
    "ttft": "Time to the first token, from arrival.",
    "itl": "Each gap between two tokens.",
    "tpot": "A request's mean gap, without the first token.",
    "e2e": "Arrival to the last token.",
}
NO_LIMIT = "Give a limit for at least one of them."
NO_LINK = "The calibration has no measured transfer: enter a speed."
OTHER_RANKS = (
    "The two calibrations have different numbers of ranks, and transfers between such replicas were not measured: "
    "enter a speed."
)
DEPLOYMENT = ("link", "link_gb_per_s", "link_latency_s", "link_uncertainty", "message_s", "transfer_chunks_tokens",
              "local_prefill_tokens")  # fmt: skip
LOAD = ("rate_multiplier", "growth", "window_start_s", "window_end_s")
COST = ("price_per_gpu_hour", "gpus_per_replica", "max_gpus")
SECOND = ("second_calibration", "second_price_per_gpu_hour", "second_gpus_per_replica", "second_max_gpus")
ASSUMED = (
    "front_end_s",
    "front_end_s_per_token",
    "network_s",
    "host_gap_s",
    "prefix_hits",
    "hit_share",
    "assumed_max_tokens",
)
KNOBS = ("budgets_tokens", "chunk_caps_tokens", "max_num_seqs", "routers", "scheduling", "seed")
ENGINE_CHOICES = [(key, f"{TITLES[key]} {VERSIONS[key]}") for key in ENGINES]


def _limit_field(metric: str) -> forms.FloatField:
    return forms.FloatField(
        required=False, label=f"{metric.upper()} limit [ms]", min_value=0.001, max_value=86_400_000,
        widget=forms.NumberInput(attrs={"placeholder": "no limit"}),
    )  # fmt: skip


def _routers(prefix_hits: str | None, max_replicas: int) -> tuple[str, ...]:
    """Those that can matter: where prompts are found again, where they are sent decides what is found."""
    return (ROUND_ROBIN, PREFIX_AWARE) if prefix_hits == "trace" and max_replicas > 1 else (ROUND_ROBIN,)


def wider(one: SearchSpace, other: SearchSpace) -> SearchSpace:
    """What either kind of hardware was measured for; what only one was, is not covered on the other."""
    budgets = {*one.budgets_tokens, *other.budgets_tokens}
    seqs = {*one.max_num_seqs, *other.max_num_seqs}
    return replace(one, budgets_tokens=tuple(sorted(budgets)), max_num_seqs=tuple(sorted(seqs)))


class PlanForm(ScheduleFields):
    """The question: which calibration, which traffic, which objectives, and where to look.

    Objectives come as ``objectives`` (the API's way) or as a percentile and a limit per metric (the page's).
    """

    name = LineField(max_length=120, required=False)
    calibration = CalibrationField(Calibration.objects.none(), empty_label="Choose a calibration")
    traffic = TrafficField(TrafficSet.objects.none(), empty_label="Choose a traffic")
    objectives = ObjectivesField(
        required=False, label="More objectives, one a line",
        help_text="[CLASS=]metric:percentile:seconds, such as chat=itl:p99:0.05; or goodput:p99:ttft=1+tpot=0.05 for "
        "a share of the requests that must meet every limit. One without a class is for all classes that have none "
        "of their own.",
        widget=forms.Textarea(attrs={"rows": 3, "spellcheck": "false"}),
    )  # fmt: skip
    max_replicas = forms.IntegerField(
        min_value=1, max_value=256, initial=DEFAULT_MAX_REPLICAS, required=False, label="Most replicas",
        help_text="The most you would deploy.",
    )  # fmt: skip
    budgets_tokens = IntegersField(
        required=False,
        label="max_num_batched_tokens",
        help_text="Token budgets per step. Default: from the calibration.",
    )
    chunk_caps_tokens = IntegersField(
        required=False, label="long_prefill_token_threshold", help_text="Chunk caps per request; 0: none."
    )
    max_num_seqs = IntegersField(
        required=False, label="max_num_seqs", help_text="Sequences that run at once."
    )
    routers = WordsField(
        required=False, label="Routers",
        help_text=f"{', '.join(ROUTERS)}. Default: {ROUND_ROBIN}; with the traffic's hashes also {PREFIX_AWARE}.",
    )  # fmt: skip
    scheduling = forms.ChoiceField(
        choices=[("async", "asynchronous (vLLM's default)"), ("sync", "synchronous")], required=False
    )
    seed = seed_field()
    engine = forms.ChoiceField(choices=ENGINE_CHOICES, required=False, initial="vllm", label="Engine")
    headroom = number(
        "Headroom", 0, 10, "Share of the load on top: 0.2 must hold at 1.2 times the rate.", DEFAULT_HEADROOM
    )
    rate_multiplier = number("Rate multiplier", 0.001, 1000, "The traffic's arrivals, this much faster.", 1.0)
    growth = number("Growth", -0.9, 100, "Share of the load that comes on top; 0.5: half as much again.", 0.0)
    window_start_s = number("Window from [s]", 0, 1e9, "Only requests that arrive in it.")
    window_end_s = number("Window to [s]", 0, 1e9)
    link = forms.ChoiceField(
        choices=[("none", "none: replicas alike only"), ("measured", "as measured with the calibration"),
                 ("entered", "as entered below")],
        required=False, initial="none", label="Link between pools",
        help_text="With one, prefill and decode on pools of their own are tried too.",
    )  # fmt: skip
    link_gb_per_s = number(
        "Link speed [GB/s]", 0.001, 100_000, "Decimal gigabytes per second of one network card."
    )
    link_latency_s = number("Link latency [s]", 0, 60, "Before the first byte of a KV cache.", 0.0)
    link_uncertainty = number(
        "Link uncertainty", 0, 0.9, "How far off its speed may be, as a share.", DEFAULT_LINK_UNCERTAINTY
    )
    message_s = number("Message [s]", 0, 60, "A request's way between the pools, without its KV cache.", 0.0)
    transfer_chunks_tokens = IntegersField(
        required=False,
        label="Transfer chunks [tokens]",
        help_text="What a push sends on at a time; 1: every step's.",
    )
    local_prefill_tokens = IntegersField(
        required=False, label="Local prefill [tokens]",
        help_text="Prompts up to this are prefilled by the decode pool; 0: none. Default: none, and half of them.",
    )  # fmt: skip
    price_per_gpu_hour = number(
        "Price per GPU-hour", 0, 1e6, "In your currency; empty: cost is counted in GPUs."
    )
    gpus_per_replica = forms.IntegerField(
        required=False, min_value=1, max_value=1024, label="GPUs per replica",
        help_text="Default: as many as the calibration's ranks (tensor parallel).",
    )  # fmt: skip
    max_gpus = forms.IntegerField(
        required=False, min_value=1, max_value=1_000_000, label="Most GPUs",
        help_text="Default: as many as the replicas need.",
    )  # fmt: skip
    second_calibration = CalibrationField(
        Calibration.objects.none(), required=False, empty_label="None: one kind of hardware",
        label="Second calibration",
        help_text="Of the same model on other hardware. Replicas alike are tried on either; given a link, each pool.",
    )  # fmt: skip
    second_price_per_gpu_hour = number(
        "Its price per GPU-hour",
        0,
        1e6,
        "With the first one's; without both, a GPU of either kind counts the same.",
    )
    second_gpus_per_replica = forms.IntegerField(
        required=False, min_value=1, max_value=1024, label="Its GPUs per replica",
        help_text="Default: as many as its calibration's ranks.",
    )  # fmt: skip
    second_max_gpus = forms.IntegerField(
        required=False, min_value=1, max_value=1_000_000, label="Most GPUs of it"
    )
    front_end_s = number("Front end [s]", 0, 3600, "Before a request reaches the engine.", 0.0)
    front_end_s_per_token = number("Front end per token [s]", 0, 1, "Tokenising, per prompt token.", 0.0)
    network_s = number("Network [s]", 0, 3600, "From and to the client.", 0.0)
    host_gap_s = number("Host gap [s]", 0, 1, "What the host adds to every step.", 0.0)
    prefix_hits = forms.ChoiceField(
        choices=[("none", "nothing is found"), ("trace", "as the traffic's hashes say"),
                 ("share", "an assumed share")],
        required=False, initial="none", label="Prefix cache", help_text="Prompts that begin alike (vLLM).",
    )  # fmt: skip
    hit_share = number("Assumed hits", 0, 1, "Share of all prompt tokens that are found in the prefix cache.")
    assumed_max_tokens = forms.IntegerField(
        required=False, min_value=1, max_value=10_000_000, label="Assumed max_tokens",
        help_text="Output limit of every client where the traffic has none; SGLang and TensorRT-LLM admit by it.",
    )  # fmt: skip

    PERCENTILES = [(str(p), f"p{p}") for p in ("50", "90", "95", "99", "99.9")]
    SHARES = [(str(p), f"{p} % of the requests") for p in ("90", "95", "99", "99.9")]

    def __init__(self, *args: Any, user: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        visible = Calibration.objects.visible_to(user).defer("log", "traceback")
        for name in ("calibration", "second_calibration"):
            chosen = cast("CalibrationField", self.fields[name])
            chosen.queryset, chosen.visible = visible.usable(), visible
        self.fields["traffic"].queryset = TrafficSet.objects.visible_to(user)  # type: ignore[attr-defined]
        for metric in METRICS:
            self.fields[f"{metric}_percentile"] = forms.ChoiceField(
                choices=self.PERCENTILES, required=False, label=f"{metric.upper()} percentile",
                initial="99" if metric == "itl" else "95",
            )  # fmt: skip
            self.fields[f"{metric}_limit_ms"] = _limit_field(metric)
            self.fields[f"{GOODPUT}_{metric}_ms"] = _limit_field(metric)
        self.fields[f"{GOODPUT}_percentile"] = forms.ChoiceField(
            choices=self.SHARES, required=False, label="For at least", initial="99",
            help_text="A request meets a limit on ITL with its largest gap, on TPOT with its mean gap.",
        )  # fmt: skip
        if isinstance(self.data, QueryDict) and len(self.data.getlist("objectives")) > 1:
            data: dict[str, Any] = self.data.dict()
            data["objectives"] = self.data.getlist("objectives")
            self.data = data

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        objectives = self._objectives(data)
        data["space"] = space = self._space(data)
        conditions = None if self.errors else self._conditions(data)
        if self.errors or space is None or conditions is None:
            return data
        calibration, traffic = data["calibration"], data["traffic"]
        if calibration.project_id != traffic.project_id:
            self.add_error("traffic", "The traffic belongs to another project than the calibration.")
            return data
        for field, message in (*hardware_errors(self._asked(data), conditions),
                               *unused_errors(self._asked(data), conditions, space),
                               *traffic_errors(traffic, conditions, objectives)):  # fmt: skip
            self.add_error(field, message)
        if self.errors:
            return data
        data["request"] = PlanRequest(
            name=data.get("name") or f"{traffic.name} on {calibration.name}"[:120],
            calibration=calibration, traffic=traffic, objectives=objectives, space=space,
            max_replicas=space.max_replicas, seed=data.get("seed") or 0, conditions=conditions,
            schedule=self.asked_schedule(data),
            second=data.get("second_calibration"), default_named=not data.get("name"),
        )  # fmt: skip
        return data

    def _objectives(self, data: dict[str, Any]) -> tuple[Objective, ...]:
        """Those of the list, then those of the rows; what is wrong stands beside its field."""
        objectives = list(data.get("objectives") or ())
        for metric in METRICS:
            limit_ms = data.get(f"{metric}_limit_ms")
            if limit_ms is not None:
                percentile = float(data.get(f"{metric}_percentile") or 0)
                try:
                    objectives.append(Objective(metric, percentile, limit_ms / 1000))
                except ObjectiveError as error:
                    part = "percentile" if error.field == "percentile" else "limit_ms"
                    self.add_error(f"{metric}_{part}", error.message)
        limits_s = {m: ms / 1000 for m in METRICS if (ms := data.get(f"{GOODPUT}_{m}_ms")) is not None}
        if limits_s and not self.errors:
            objectives.append(Objective.goodput(float(data.get(f"{GOODPUT}_percentile") or 99), limits_s))
        if self.errors:
            return tuple(objectives)
        try:
            return check_objectives(objectives)
        except ObjectiveError as error:
            by_rows = any(f"{metric}_limit_ms" in self.data for metric in METRICS)
            self.add_error("objectives", NO_LIMIT if by_rows and not objectives else error.message)
        return ()

    def _space(self, data: dict[str, Any]) -> SearchSpace | None:
        """Where to look: what was asked for, else the calibration's default; None where that cannot be said."""
        if data.get("calibration") is None:
            return None
        default = default_space_of(
            data["calibration"].result["model"],
            data.get("max_replicas") or DEFAULT_MAX_REPLICAS,
            cast(Engine, data.get("engine") or "vllm"),
        )
        if second := data.get("second_calibration"):
            default = wider(default, default_space_of(second.result["model"], default.max_replicas))
        try:
            return SearchSpace(
                budgets_tokens=data.get("budgets_tokens") or default.budgets_tokens,
                chunk_caps_tokens=data.get("chunk_caps_tokens") or default.chunk_caps_tokens,
                max_num_seqs=data.get("max_num_seqs") or default.max_num_seqs,
                max_replicas=default.max_replicas,
                async_scheduling=data.get("scheduling") != "sync",
                block_tokens=default.block_tokens,
                transfer_chunks_tokens=data.get("transfer_chunks_tokens") or default.transfer_chunks_tokens,
                local_prefill_tokens=data.get("local_prefill_tokens") or default.local_prefill_tokens,
                routers=data.get("routers") or _routers(data.get("prefix_hits"), default.max_replicas),
            )
        except SpaceError as error:
            self.add_error(error.field if error.field in self.fields else None, error.message)
        return None

    def _conditions(self, data: dict[str, Any]) -> Conditions | None:
        """Engine, load, link, prices and assumptions; what was left empty has the field's default."""
        names = ("headroom", "rate_multiplier", "growth", "message_s", "price_per_gpu_hour", "gpus_per_replica",
                 "max_gpus", "second_price_per_gpu_hour", "second_gpus_per_replica", "second_max_gpus",
                 "front_end_s", "front_end_s_per_token", "network_s", "host_gap_s", "hit_share",
                 "assumed_max_tokens")  # fmt: skip
        values = {name: self._or_default(data, name) for name in names}
        values["gpus_per_replica"] = values["gpus_per_replica"] or data["calibration"].tensor_parallel
        if second := data.get("second_calibration"):
            values["second_gpus_per_replica"] = values["second_gpus_per_replica"] or second.tensor_parallel
        values = {name: value for name, value in values.items() if value is not None}
        start, end = data.get("window_start_s"), data.get("window_end_s")
        try:
            return Conditions(
                engine=cast(Engine, data.get("engine") or "vllm"), link=self._link(data),
                window_s=None if start is None and end is None else (start or 0.0, 1e9 if end is None else end),
                prefix=data.get("prefix_hits") or ("share" if data.get("hit_share") else "none"), **values,
            )  # fmt: skip
        except ConditionError as error:
            field = {"window": "window_end_s", "prefix": "prefix_hits"}.get(error.field, error.field)
            self.add_error(field if field in self.fields else None, error.message)
        return None

    def _or_default(self, data: dict[str, Any], name: str) -> Any:
        value = data.get(name)
        return self.fields[name].initial if value is None else value

    def _link(self, data: dict[str, Any]) -> Link | None:
        """What carries KV caches; a speed that was entered says that it is meant."""
        speed, kind = data.get("link_gb_per_s"), data.get("link") or "none"
        if speed is not None and kind != "measured":
            return Link.entered(
                speed, data.get("link_latency_s") or 0.0, self._or_default(data, "link_uncertainty")
            )
        if kind == "entered":
            raise ConditionError("link_gb_per_s", "Give its speed.")
        if kind == "measured":
            tables = facts_of(data["calibration"]).transfers
            if not tables:
                raise ConditionError("link", NO_LINK)
            second = data.get("second_calibration")
            if second and not tables[0].entered and second.tensor_parallel != tables[0].ranks:
                raise ConditionError("link", OTHER_RANKS)
            return Link(tables[0])
        return None

    def _asked(self, data: dict[str, Any]) -> dict[str, Any]:
        """What was filled in with something else than the field's default."""
        return {
            name: data[name]
            for name, field in self.fields.items()
            if data.get(name) not in (None, "", ()) and data[name] != field.initial
        }

    def joint_rows(self) -> list[forms.BoundField]:
        """The limits that a share of the requests must meet all at once."""
        return [self[f"{GOODPUT}_{metric}_ms"] for metric in METRICS]

    def joint_open(self) -> bool:
        """Whether something stands in those, or is wrong with it."""
        names = [f"{GOODPUT}_{metric}_ms" for metric in METRICS]
        return any(self[name].value() not in (None, "") or name in self.errors for name in names)

    def objective_rows(self) -> list[tuple[str, str, forms.BoundField, forms.BoundField]]:
        """What the page shows: per metric its name and meaning, the percentile and the limit."""
        return [(m.upper(), MEANINGS[m], self[f"{m}_percentile"], self[f"{m}_limit_ms"]) for m in METRICS]

    def folded(self) -> list[tuple[str, list[forms.BoundField], bool]]:
        """What the page keeps folded: title, fields, and whether it is open: one has an error, or holds something."""
        parts = (("Separate prefill and decode pools", DEPLOYMENT), ("Load and window", LOAD), ("Cost", COST),
                 ("A second kind of hardware", SECOND), ("Time of day", SCHEDULE),
                 ("Assumptions", ASSUMED), ("Knobs, scheduling, seed", KNOBS))  # fmt: skip
        return [
            (
                title,
                [self[name] for name in names],
                any(name in self.errors or self._holds(name) for name in names),
            )
            for title, names in parts
        ]

    def _holds(self, name: str) -> bool:
        """Whether something else than the default stands in a field."""
        value, default = self[name].value(), self.fields[name].initial
        return value not in (None, "") and str(value) != str("" if default is None else default)

    def request(self) -> PlanRequest:
        request: PlanRequest = self.cleaned_data["request"]
        return request
