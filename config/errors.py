"""The API's one error shape, ``{"detail", "errors": [{"field", "message"}]}``, and everything that ends in it.

Three ways lead here: an operation raises ``ApiError`` (or a Django or ninja exception that ``problem_of``
knows), ninja refuses a payload, or something outside the operations refuses the request (an unknown URL, a
method, a host, a body that is too large). The first two are exception handlers of the API (config/api.py); the
last is the middleware at the end of this file. No answer of the API ever carries a traceback.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any

from django.conf import settings
from django.core.exceptions import BadRequest, PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.forms import BaseForm
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.http.multipartparser import MultiPartParserError
from django.http.request import UnreadablePostError
from ninja import Field, Schema
from ninja.errors import HttpError, ValidationError

from accounts.limits import RateLimited
from config import pages

API_PREFIX = "/api/"


class FieldProblem(Schema):
    field: str = Field(description="Dotted path into what was sent; empty when no single field is to blame.")
    message: str


class Problem(Schema):
    detail: str = Field(description="One sentence.")
    errors: list[FieldProblem]


class ApiError(Exception):
    """An answer other than success. ``errors`` are (field, message) pairs."""

    def __init__(
        self,
        status: int,
        detail: str,
        errors: Iterable[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, dict(headers or {})
        self.errors = list(errors)


def conflict(detail: str) -> ApiError:
    return ApiError(409, detail)


def not_found() -> ApiError:
    """Also for what exists but is somebody else's: nobody learns which ids exist."""
    return ApiError(404, "Not found.")


def form_error(form: BaseForm, names: Mapping[str, str] | None = None) -> ApiError:
    """What a form found wrong, as 422 (413 when a file is too large). ``names`` maps a form's field to the
    API's where they differ."""
    errors, status = [], 422
    for field, found in form.errors.as_data().items():
        for error in found:
            status = 413 if error.code == "too_large" else status
            shown = "" if field == "__all__" else (names or {}).get(field, field)
            errors += [(shown, str(message)) for message in error.messages]
    return ApiError(status, "The request is not valid.", errors)


def answers(success: Mapping[int, Any], *more: int) -> dict[int, Any]:
    """The documented answers of an operation: its own, and the problems every operation may end in."""
    return {**success, **dict.fromkeys(sorted({400, 401, 403, 422, 429, 500, *more}), Problem)}


def problem_of(error: Exception) -> ApiError:
    """The answer to an exception. Whatever is not expected is a 500 that says nothing about our insides."""
    match error:
        case ApiError():
            return error
        case RateLimited():
            wait_s = max(1, math.ceil(error.retry_after_s))
            return ApiError(429, str(error), headers={"Retry-After": str(wait_s)})
        case ValidationError():
            return ApiError(422, "The request is not valid.", map(_field_and_message, error.errors))
        case HttpError() if isinstance(error.__cause__, ApiError):  # raised by our parser, wrapped by ninja
            return error.__cause__
        case HttpError():
            return ApiError(error.status_code, error.message.rstrip(".") + ".")
        case Http404():
            return not_found()
        case PermissionDenied():
            return ApiError(403, str(error) or "You may not do this.")
        case RequestDataTooBig():
            return ApiError(413, "The request body is too large.")
        case SuspiciousOperation() | BadRequest() | MultiPartParserError() | UnreadablePostError():
            return ApiError(400, "The request could not be read.")
    return ApiError(500, "Something went wrong on our side. It has been logged.")


def _field_and_message(error: Mapping[str, Any]) -> tuple[str, str]:
    """Pydantic's location starts with where the value came from and, for a JSON body, our parameter's name."""
    source, *path = error["loc"]
    if source == "body" and path:
        path = path[1:]
    return ".".join(map(str, path)), str(error["msg"])


def response_of(problem: ApiError) -> HttpResponse:
    body = {
        "detail": problem.detail,
        "errors": [{"field": field, "message": message} for field, message in problem.errors],
    }
    headers = dict(problem.headers)
    if problem.status == HTTPStatus.UNAUTHORIZED:
        headers.setdefault("WWW-Authenticate", 'Bearer realm="ridgeline"')
    return HttpResponse(
        json.dumps(body),
        status=problem.status,
        content_type="application/json; charset=utf-8",
        headers=headers,
    )


_OUTSIDE = {
    400: "The request could not be read.",
    403: "You may not do this.",
    404: "Not found.",
    405: "This method is not allowed here.",
    413: "The request body is too large.",
    500: "Something went wrong on our side. It has been logged.",
}


def one_error_shape(
    get_response: Callable[[HttpRequest], HttpResponseBase],
) -> Callable[..., HttpResponseBase]:
    """Middleware, the outermost: refuses bodies above the upload limit before they are read, and gives errors
    under /api/ that came from outside the operations (the resolver, other middlewares) the one shape."""
    slack_bytes = 1024 * 1024  # of a multipart body around its file

    def middleware(request: HttpRequest) -> HttpResponseBase:
        is_api = request.path_info.startswith(API_PREFIX)
        if _declared_length(request) > settings.MAX_UPLOAD_BYTES + slack_bytes:
            too_large = ApiError(413, _OUTSIDE[413])
            return response_of(too_large) if is_api else pages.error_page(request, 413)
        response = get_response(request)
        content_type = response.headers.get("Content-Type", "")
        if not is_api or response.status_code < 400 or content_type.startswith("application/json"):
            return response
        status = response.status_code
        headers = {
            name: response.headers[name] for name in ("Allow", "Retry-After") if name in response.headers
        }
        return response_of(
            ApiError(status, _OUTSIDE.get(status) or HTTPStatus(status).phrase + ".", headers=headers)
        )

    return middleware


def _declared_length(request: HttpRequest) -> int:
    length = request.META.get("CONTENT_LENGTH") or "0"
    return int(length) if length.isdecimal() else 0
