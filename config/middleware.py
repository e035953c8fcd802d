"""Two small middlewares: the content security policy, and the one user of single-user mode."""

from __future__ import annotations

from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseForbidden

from accounts.single_user import local_user

GetResponse = Callable[[HttpRequest], HttpResponse]

# The hash is that of the empty string: plotly's cartesian bundle adds an empty <style> element and, without
# the hash, draws charts whose hover labels silently never show.
POLICY = (
    "default-src 'none'; script-src 'self'; "
    "style-src 'self' 'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='; "
    "img-src 'self' data: blob:; connect-src 'self'; font-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'"
)
LOOPBACK = {"127.0.0.1", "::1", "", "testserver"}


def content_security_policy(get_response: GetResponse) -> GetResponse:
    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        response.headers.setdefault("Content-Security-Policy", POLICY)
        return response

    return middleware


def single_user(get_response: GetResponse) -> GetResponse:
    """In single-user mode every request from loopback is the local user's; any other address is refused.

    The Host header is checked by ALLOWED_HOSTS (loopback names only), which stops DNS rebinding.
    """

    def middleware(request: HttpRequest) -> HttpResponse:
        if settings.SINGLE_USER:
            if request.META.get("REMOTE_ADDR", "") not in LOOPBACK:
                return HttpResponseForbidden("Single-user mode answers this machine only.")
            request.user = local_user()
        return get_response(request)

    return middleware
