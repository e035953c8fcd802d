"""The REST API: joins the apps' routers, says who is asking, and gives every answer its shape.

Who is asking:

* **A token** (``Authorization: Bearer rl_...``), issued on the tokens page. Scope ``read`` may GET; ``write`` may
  do all its owner may. A token that is wrong, expired or revoked is 401 even where a session would do.
* **A session**: the browser's sign-in or, in single-user mode, any program on this machine. It may read; what
  changes anything also needs Django's CSRF cookie and header, so that a web page elsewhere cannot start jobs
  through the browser of somebody who is signed in (in single-user mode: who merely has Ridgeline running).
  ``curl`` has no such cookie: give it a token.

Bodies are JSON (RFC 8259: no NaN, no Infinity) or multipart; a field that nobody knows is refused in both, and so is
a query parameter that the operation does not know or that is given twice. Text with NUL or lone surrogates and
integers beyond 64 bits are refused here, once, because no database column takes them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from django.http import Http404, HttpRequest, HttpResponse
from django.utils.datastructures import MultiValueDict
from django.views.decorators.http import require_safe
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, HttpError, ValidationError
from ninja.openapi.docs import Swagger
from ninja.openapi.schema import OpenAPISchema
from ninja.parser import Parser
from ninja.renderers import JSONRenderer
from ninja.security import HttpBearer, SessionAuth
from ninja.utils import check_csrf

from accounts import limits, tokens
from accounts.api import router as accounts_router
from accounts.models import ApiToken
from calibration import strict_json
from calibration.api import router as calibration_router
from calibration.notification_api import router as notification_router
from calibration.schedule_api import router as schedule_router
from config.errors import ApiError, problem_of, response_of
from planner.accuracy_api import router as accuracy_router
from planner.api import router as planner_router
from planner.compare_api import router as compare_router
from planner.fit_api import router as fit_router
from planner.generate_api import router as generate_router
from planner.plan_compare_api import router as plan_compare_router
from planner.recipe_api import router as recipe_router
from planner.review_api import router as review_router
from planner.shape_api import router as shape_router
from planner.traffic_import_api import router as traffic_import_router
from planner.traffic_job_api import router as traffic_job_router
from planner.verification_api import router as verification_router
from planner.what_if_api import router as what_if_router

log = logging.getLogger(__name__)
SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
MAX_INT = 2**63 - 1


class TokenAuth(HttpBearer):
    openapi_description = "An API token from the tokens page: `Authorization: Bearer rl_...`"

    def __call__(self, request: HttpRequest) -> ApiToken | None:
        header = request.headers.get("Authorization")
        if header is None:
            return None
        scheme, _, clear = header.partition(" ")
        token = self.authenticate(request, clear.strip()) if scheme.lower() == "bearer" else None
        if token is None:
            limits.spend(limits.API_FAILURE, limits.client_address(request))
            raise AuthenticationError(401, "This token is not valid")
        if token.scope == ApiToken.READ and request.method not in SAFE_METHODS:
            raise ApiError(403, "This token may only read.")
        request.user = token.user
        _refuse_unknown_query(request)
        return token

    def authenticate(self, request: HttpRequest, token: str) -> ApiToken | None:
        return tokens.authenticate(token)


class BrowserAuth(SessionAuth):
    openapi_description = "A signed-in browser. Anything but GET needs the X-CSRFToken header as well."

    def __call__(self, request: HttpRequest) -> Any:
        if not request.user.is_authenticated:
            return None
        if check_csrf(request) is not None:
            raise ApiError(
                403, "The CSRF cookie and X-CSRFToken header are missing or wrong; or send a token."
            )
        _refuse_unknown_query(request)
        return request.user


class StrictParser(Parser):
    """Reads JSON as RFC 8259 has it, and only what says it is JSON."""

    def parse_body(self, request: HttpRequest) -> Any:
        kind = request.content_type or ""
        if kind != "application/json":
            raise ApiError(415, f"Send application/json, not {kind[:100] or 'a body without content type'}.")
        try:
            data = strict_json.read(request.body)
        except strict_json.JsonError as error:
            raise ApiError(400, "The body is not valid JSON.") from error
        _refuse_unstorable(_leaves(data))
        return data

    def parse_querydict(
        self, data: MultiValueDict[str, Any], list_fields: list[str], request: HttpRequest
    ) -> Any:
        if data is request.FILES and request.content_type != "multipart/form-data":
            raise ApiError(415, "Send multipart/form-data.")
        if data is request.POST or data is request.FILES:
            _refuse_unknown((*request.POST, *request.FILES), _form_names(request))
        _refuse_unstorable((key, value) for key, values in data.lists() for value in values)
        return super().parse_querydict(data, list_fields, request)


def _refuse_unknown(sent: Iterable[str], known: Iterable[str]) -> None:
    """What the operation's schema does not name would change nothing, as in JSON: a filter that is misspelt is none."""
    unknown = [name for name in sent if name not in known]
    if unknown:
        _refuse_unstorable((name, name) for name in unknown)
        message = f"There is no such field; known are {', '.join(known) or 'none'}."
        raise ApiError(422, "The request is not valid.", [(name[:100], message) for name in unknown[:10]])


def _operation(request: HttpRequest) -> Mapping[str, Any]:
    """Of the OpenAPI schema, the one that the request is for."""
    route = request.resolver_match.route if request.resolver_match else ""
    path = api.get_openapi_schema()["paths"][re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", f"/{route}")]
    method = "get" if request.method == "HEAD" else (request.method or "get").lower()
    return cast("Mapping[str, Any]", path[method])


def _refuse_unknown_query(request: HttpRequest) -> None:
    """Asked by whoever lets the request in, because ninja looks at a query only where an operation takes one. One that
    is given twice has no meaning either, unless it is a list."""
    if not request.GET:  # most requests: they need no schema, which takes half a second to be made
        return
    known = {
        one["name"]: one["schema"]
        for one in _operation(request).get("parameters", [])
        if one["in"] == "query"
    }
    _refuse_unknown(request.GET, known)
    given = [name for name, values in request.GET.lists() if len(values) > 1]
    if twice := [name for name in given if known[name].get("type") != "array"]:
        raise ApiError(422, "The request is not valid.", [(name, "Give it once.") for name in twice])


def _form_names(request: HttpRequest) -> list[str]:
    body = _operation(request)["requestBody"]["content"]["multipart/form-data"]["schema"]
    return list(body["properties"])


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, value) of every string and number, keys of objects included."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield path, key
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}.{index}" if path else str(index))
    else:
        yield path, value


def _refuse_unstorable(leaves: Iterable[tuple[str, Any]]) -> None:
    for path, value in leaves:
        reason = ""
        if isinstance(value, str):
            if "\x00" in value:
                reason = "A NUL character is not allowed."
            elif any("\ud800" <= character <= "\udfff" for character in value):
                reason = "Not valid Unicode: a lone surrogate."
        elif isinstance(value, int) and abs(value) > MAX_INT:
            reason = "A whole number beyond 64 bits."
        if reason:
            shown = path.encode("utf-8", "replace").decode().replace("\x00", "�")
            raise ApiError(422, "The request is not valid.", [(shown, reason)])


class StrictRenderer(JSONRenderer):
    """NaN in an answer is our defect: it fails here rather than in the reader's parser."""

    json_dumps_params = {"allow_nan": False}


class RidgelineAPI(NinjaAPI):
    def get_openapi_schema(self, **options: Any) -> OpenAPISchema:
        """ninja's schema plus the headers that go with 401 and 429. Built once: anybody may ask for it."""
        if self._schema is None:
            self._schema = super().get_openapi_schema(**options)
            for operations in self._schema["paths"].values():
                for operation in operations.values():
                    _document_headers(operation["responses"])
                    form = operation.get("requestBody", {}).get("content", {}).get("multipart/form-data")
                    if form:
                        form["schema"]["additionalProperties"] = False
        return self._schema

    _schema: OpenAPISchema | None = None


def _document_headers(answers: dict[int, Any]) -> None:
    for status, name, kind in ((401, "WWW-Authenticate", "string"), (429, "Retry-After", "integer")):
        if status in answers:
            answers[status]["headers"] = {name: {"schema": {"type": kind}, "required": True}}


api = RidgelineAPI(
    title="Ridgeline",
    version="1",
    description=(__doc__ or "").partition("\n\n")[2],
    docs=Swagger(settings={"defaultModelsExpandDepth": 0}),  # operations first: the list of schemas is folded
    docs_url="/docs",
    openapi_url="/openapi.json",
    urls_namespace="api",
    auth=[TokenAuth(), BrowserAuth()],
    parser=StrictParser(),
    renderer=StrictRenderer(),
)
api.add_router("/v1", accounts_router, tags=["account"])
api.add_router("/v1", calibration_router, tags=["calibrations"])
api.add_router("/v1", schedule_router, tags=["schedules"])
api.add_router("/v1", notification_router, tags=["notifications"])
api.add_router("/v1", planner_router, tags=["plans"])
api.add_router("/v1", recipe_router, tags=["plans"])
api.add_router("/v1", review_router, tags=["plans"])
api.add_router("/v1", plan_compare_router, tags=["plans"])
api.add_router("/v1", what_if_router, tags=["plans"])
api.add_router("/v1", shape_router, tags=["traffic"])
api.add_router("/v1", generate_router, tags=["traffic"])
api.add_router("/v1", traffic_import_router, tags=["traffic"])
api.add_router("/v1", traffic_job_router, tags=["traffic"])
api.add_router("/v1", fit_router, tags=["traffic"])
api.add_router("/v1", verification_router, tags=["verifications"])
api.add_router("/v1", compare_router, tags=["traffic"])
api.add_router("/v1", accuracy_router, tags=["verifications"])


@api.exception_handler(Exception)
def answer_exception(request: HttpRequest, error: Exception) -> HttpResponse:
    problem = problem_of(error)
    if problem.status >= 500:
        log.exception("%s %s failed", request.method, request.path, exc_info=error)
    return response_of(problem)


# ninja installs handlers of its own for these; the most specific one wins.
for kind in (Http404, HttpError, ValidationError):
    api.exception_handler(kind)(answer_exception)


def urls() -> tuple[list[Any], str, str]:
    """The API's URL patterns. They answer 401 themselves; the login middleware would redirect to a page."""
    patterns, app_name, namespace = api.urls
    found: list[Any] = list(patterns)
    for pattern in found:
        if pattern.name in ("openapi-json", "openapi-view"):
            pattern.callback = require_safe(pattern.callback)
        pattern.callback.login_required = False
    return found, app_name, namespace
