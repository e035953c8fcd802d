"""How a plan is verified: how much of it is replayed on its device, or which server is sent its requests."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django import forms

from calibration import outgoing
from calibration.experiment import Envelope
from calibration.form_parts import LineField, seed_field
from calibration.sources import outbound
from planner.endpoint_work import SILENCE_S
from planner.models import Plan, Verification
from planner.pool_models import chosen_calibrations
from planner.verification.mixed_load import Case, default_case
from planner.verification.mixed_load import why_not as why_not_case
from planner.verification.prompts import LEAST_VOCABULARY
from planner.verification.window import LEAST_REQUESTS
from planner.verifications import DEFAULT_REQUESTS, Asked

MOST_REQUESTS = 20_000
MOST_REPLAYS = 5
MAX_TOKENS = 1 << 20


def _load_field() -> forms.FloatField:
    return forms.FloatField(
        required=False, min_value=0.05, max_value=1.5, label="Load",
        help_text="Share of what a replica holds, such as 0.8. Empty: requests arrive as they did in the plan.",
    )  # fmt: skip


class VerifyForm(forms.Form):
    requests = forms.IntegerField(
        required=False, min_value=LEAST_REQUESTS, max_value=MOST_REQUESTS, initial=DEFAULT_REQUESTS,
        label="Requests", help_text="Of one replica, from its busiest stretch.",
    )  # fmt: skip
    replays = forms.IntegerField(
        required=False, min_value=1, max_value=MOST_REPLAYS, initial=1, label="Replays",
        help_text="Of the same requests: three show how repeatable the device is.",
    )  # fmt: skip
    load = _load_field()
    seed = seed_field()

    def asked(self) -> Asked:
        data = self.cleaned_data
        options = {} if data.get("load") is None else {"load": data["load"]}
        return Asked(
            data.get("requests") or DEFAULT_REQUESTS, data.get("replays") or 1, data.get("seed") or 0,
            options=options,
        )  # fmt: skip


class EndpointForm(forms.Form):
    """A running OpenAI-compatible server, started with the plan's flags."""

    base_url = forms.CharField(
        max_length=outbound.MAX_URL, label="Address", help_text="Up to /v1, such as https://llm.example.com/v1.",
        widget=forms.TextInput(attrs={"inputmode": "url", "spellcheck": "false", "autocomplete": "off"}),
    )  # fmt: skip
    model = LineField(max_length=200, help_text="As the server calls it.")
    api_key = forms.CharField(
        required=False, max_length=2_000, label="API key",
        help_text="Kept for this one run, out of the database, and deleted when it begins.",
        widget=forms.PasswordInput(attrs={"autocomplete": "off"}),
    )  # fmt: skip
    vocabulary = forms.IntegerField(
        required=False, min_value=LEAST_VOCABULARY, max_value=1 << 24, label="Vocabulary",
        help_text="Of the server's tokenizer [tokens]: prompts are token ids below it. Empty: the planned model's.",
    )  # fmt: skip
    replicas = forms.IntegerField(
        required=False, min_value=1, max_value=1_024, initial=1, label="Replicas behind it",
        help_text="It is sent what so many of the plan's replicas get. Two pools: always all requests.",
    )  # fmt: skip
    requests = forms.IntegerField(
        required=False, min_value=LEAST_REQUESTS, max_value=MOST_REQUESTS, initial=DEFAULT_REQUESTS,
        label="Requests", help_text="From the busiest stretch.",
    )  # fmt: skip
    load = _load_field()
    silence_s = forms.FloatField(
        required=False, min_value=1.0, max_value=3_600.0, initial=SILENCE_S, label="Longest silence [s]",
        help_text="An answer that says nothing for so long has failed.",
    )  # fmt: skip
    seed = seed_field()

    def __init__(self, *args: Any, plan: Plan, **more: Any) -> None:
        super().__init__(*args, **more)
        self._plan = plan

    def clean_base_url(self) -> str:
        """Where it is, is looked up here and again when it is asked."""
        url = str(self.cleaned_data["base_url"])
        if "?" in url or "#" in url:
            raise forms.ValidationError("An address without ? and #.")
        try:
            outbound.check(url, outgoing.guard())
        except outbound.OutboundRefused as problem:
            hint = " (the setting OUTBOUND_NETWORKS names them)" if "not public" in str(problem) else ""
            raise forms.ValidationError(f"{problem}{hint}.") from problem
        except outbound.OutboundError as problem:
            raise forms.ValidationError(f"{problem}.") from problem
        return url

    def clean_api_key(self) -> str:
        key = str(self.cleaned_data["api_key"])
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise forms.ValidationError("A key of printable ASCII characters without blanks.")
        return key

    def clean_vocabulary(self) -> int:
        given: int | None = self.cleaned_data["vocabulary"]
        if given is not None:
            return given
        size = int((self._plan.result or {})["inputs"]["architecture"]["vocab_size"])
        if size < LEAST_VOCABULARY:
            raise forms.ValidationError(f"Give the tokenizer's: the planned model has {size} tokens only.")
        return size

    def asked(self) -> Asked:
        data = self.cleaned_data
        options = {name: data[name] for name in ("base_url", "model", "vocabulary")}
        options |= {"replicas": data.get("replicas") or 1, "silence_s": data.get("silence_s") or SILENCE_S}
        options |= {} if data.get("load") is None else {"load": data["load"]}
        return Asked(
            data.get("requests") or DEFAULT_REQUESTS, 1, data.get("seed") or 0, Verification.ENDPOINT, options,
            data["api_key"],
        )  # fmt: skip


class MixedLoadForm(forms.Form):
    """Long prompts beside short answers that are being written; limits are what was measured."""

    prompt_tokens = forms.IntegerField(
        required=False, min_value=1, max_value=MAX_TOKENS, label="Long prompt [tokens]",
        help_text="Empty: the longest that fits a step beside the streams.",
    )  # fmt: skip
    output_tokens = forms.IntegerField(
        required=False, min_value=2, max_value=MAX_TOKENS, label="Each answer [tokens]",
        help_text="A prompt comes every 32 of them.",
    )  # fmt: skip
    streams = forms.IntegerField(
        required=False, min_value=1, max_value=1 << 14, label="Streams",
        help_text="Answers that are written meanwhile. Empty: half of what was measured.",
    )  # fmt: skip
    replays = forms.IntegerField(
        required=False, min_value=1, max_value=MOST_REPLAYS, initial=1, label="Times each"
    )
    grid = forms.BooleanField(
        required=False, label="And the grid",
        help_text="Prompts of 128 to 16,384 tokens, answers of 32 to 1,024, 1 to 256 streams: as far as measured.",
    )  # fmt: skip
    seed = seed_field()

    def __init__(self, *args: Any, plan: Plan, **more: Any) -> None:
        super().__init__(*args, **more)
        self._plan = plan

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        calibration = chosen_calibrations(self._plan)[1]
        envelope = Envelope.from_dict(calibration.envelope or {})
        usual = default_case(envelope)
        streams = data.get("streams") or usual.streams
        prompt = data.get("prompt_tokens") or min(
            usual.prompt_tokens, max(1, envelope.max_step_tokens - streams)
        )
        case = Case(prompt, data.get("output_tokens") or usual.output_tokens, streams)
        if not self.errors and (reason := why_not_case(case, envelope, int(calibration.kv_tokens or 0))):
            field = "streams" if "sequences" in reason else "prompt_tokens"
            if field == "prompt_tokens" and case.prompt_tokens < case.output_tokens:
                field = "output_tokens"
            self.add_error(field, f"That would be {reason}.")
        data["case"] = case
        return data

    def asked(self) -> Asked:
        data = self.cleaned_data
        options = asdict(data["case"]) | {"grid": data["grid"]}
        return Asked(
            data["case"].streams,
            data.get("replays") or 1,
            data.get("seed") or 0,
            Verification.MIXED_LOAD,
            options,
        )


StartForm = VerifyForm | EndpointForm | MixedLoadForm
