"""What all pages share: how a refused form, a download and an error are answered. Errors have one look and the
reason in words; tracebacks are for staff only. The API has its own (config/errors.py)."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from typing import Any

from django.core.exceptions import RequestDataTooBig, TooManyFieldsSent, TooManyFilesSent
from django.forms import Form
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from accounts.limits import RateLimited

GetResponse = Callable[[HttpRequest], HttpResponse]
TOO_LARGE = (RequestDataTooBig, TooManyFieldsSent, TooManyFilesSent)
STOP_POLLING = 286  # htmx: take this and poll no more


def invalid(request: HttpRequest, template: str, form: Form, **more: Any) -> HttpResponse:
    """The form again, with its values and the errors beside the fields."""
    too_large = any(
        error.code == "too_large" for errors in form.errors.as_data().values() for error in errors
    )
    return render(request, template, {"form": form, **more}, status=413 if too_large else 422)


def filter_query(request: HttpRequest) -> str:
    """The filters of this address without its page number, for the links to other pages of a list."""
    kept = request.GET.copy()
    kept.pop("page", None)
    return kept.urlencode()


def download(content: str | bytes, name: str, content_type: str) -> HttpResponse:
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return HttpResponse(content, content_type=content_type, headers=headers)


def error_page(request: HttpRequest, status: int, message: str = "", trace: str = "") -> HttpResponse:
    return render(request, f"{status}.html", {"message": message, "traceback": trace}, status=status)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    return error_page(request, 413 if isinstance(exception, TOO_LARGE) else 400)


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponse:
    return error_page(request, 403, str(exception))


def page_not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    return error_page(request, 404)


def server_error(request: HttpRequest) -> HttpResponse:
    staff = getattr(getattr(request, "user", None), "is_staff", False)
    return error_page(request, 500, trace=traceback.format_exc() if staff else "")


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    message = "This form had expired, or did not come from this site. Go back, reload the page and try again."
    return error_page(request, 403, message)


def rate_limits_as_pages(get_response: GetResponse) -> GetResponse:
    """Middleware: an action that found its rate bucket empty becomes a 429 page that says when to try again."""

    def middleware(request: HttpRequest) -> HttpResponse:
        return get_response(request)

    def process_exception(request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if not isinstance(exception, RateLimited):
            return None
        response = error_page(request, 429, str(exception))
        response.headers["Retry-After"] = str(max(1, math.ceil(exception.retry_after_s)))
        return response

    middleware.process_exception = process_exception  # type: ignore[attr-defined]
    return middleware
