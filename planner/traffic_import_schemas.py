"""What the API takes and answers about bringing a file: the upload, a look at it, the job of a large one."""

from __future__ import annotations

import uuid
from typing import Any

from ninja import Field, Schema

from config.schemas import JobOut, Payload, Slug, of
from planner.forms import UploadTrafficForm
from planner.schemas import WarningOut


class UploadTrafficIn(Payload):
    # Multipart values are text: the form reads the numbers.
    model_config = {"strict": False}

    project: Slug | None = None
    name: str | None = of(UploadTrafficForm, "name")
    mapping: str | None = of(
        UploadTrafficForm,
        "mapping",
        examples=['{"prompt": "tokens in", "output": "tokens out", "time": "when", "time_unit": "ms"}'],
    )
    rate_per_s: float | None = of(UploadTrafficForm, "rate_per_s")
    interarrival_cv: float | None = of(UploadTrafficForm, "interarrival_cv")
    requests: int | None = of(UploadTrafficForm, "requests")
    max_model_len: int | None = of(UploadTrafficForm, "max_model_len")
    attempted_requests: int | None = of(UploadTrafficForm, "attempted_requests")
    time_unit: str | None = of(UploadTrafficForm, "time_unit")
    time_origin: str | None = of(UploadTrafficForm, "time_origin")
    utc_offset: str | None = of(UploadTrafficForm, "utc_offset")
    delimiter: str | None = of(UploadTrafficForm, "delimiter")
    header: str | None = of(UploadTrafficForm, "header")
    encoding: str | None = of(UploadTrafficForm, "encoding")
    decimal: str | None = of(UploadTrafficForm, "decimal")
    thousands: str | None = of(UploadTrafficForm, "thousands")
    length_unit: str | None = of(UploadTrafficForm, "length_unit")
    tokens_per_unit: float | None = of(UploadTrafficForm, "tokens_per_unit")
    zero_outputs: str | None = of(UploadTrafficForm, "zero_outputs")
    turn_first_token_s: float | None = of(UploadTrafficForm, "turn_first_token_s")
    turn_token_s: float | None = of(UploadTrafficForm, "turn_token_s")
    session_prompts: str | None = of(UploadTrafficForm, "session_prompts")
    spread_grid: bool | None = of(UploadTrafficForm, "spread_grid")
    keep_file: bool | None = of(UploadTrafficForm, "keep_file")
    seed: int = of(UploadTrafficForm, "seed")


class FileProblemOut(Schema):
    field: str
    message: str
    code: str
    line: int | None
    column: str | None


class InspectOut(Schema):
    """A look at a file: nothing is stored. Of a long file only the first part is read."""

    format: str | None = Field(description="null where it cannot be read so; `problems` says why.")
    format_name: str
    dialect: dict[str, Any] = Field(description="Encoding, packing, delimiter, decimal mark as found.")
    columns: list[str] = Field(description="What `mapping` may name.")
    used: dict[str, str] = Field(description="Role -> column.")
    rows: list[list[str]] = Field(description="The first rows, shortened.")
    consequences: dict[str, Any] | None = Field(
        description="Requests, duration_s, rate_per_s, peak_minute, lengths, first_requests; whole_file is false "
        "where only the first part was read."
    )
    findings: list[WarningOut]
    problems: list[FileProblemOut]
    evidence: dict[str, Any] | None = Field(
        description="Of a benchmark's result: the tool, and per run its figures and its checks, the two identities "
        "among them."
    )


class ImportOut(JobOut):
    """A large file being read by a worker."""

    file_name: str
    size_bytes: int
    traffic: uuid.UUID | None = Field(description="Once it is done.")
    problems: list[FileProblemOut] = Field(
        description="What is wrong with the file, where that is why it failed."
    )
