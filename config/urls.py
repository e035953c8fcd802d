"""URLs: each app has its own; the API stands under /api/."""

from django.contrib import admin
from django.urls import include, path

from accounts.views import admin_sign_in
from config import api
from config.health import health
from planner.views import home

urlpatterns = [
    path("", home, name="home"),
    path("healthz", health, name="health"),
    path("calibrations/", include("calibration.urls")),
    path("notifications/", include("calibration.notification_urls")),
    path("", include("planner.urls")),
    path("accounts/", include("accounts.urls")),
    path("api/", api.urls()),
    path("admin/login/", admin_sign_in),
    path("admin/", admin.site.urls),
]

handler400 = "config.pages.bad_request"
handler403 = "config.pages.permission_denied"
handler404 = "config.pages.page_not_found"
handler500 = "config.pages.server_error"
