from django.urls import path

from calibration import drift_views, schedule_views, views

app_name = "calibration"
urlpatterns = [
    path("", views.calibration_list, name="list"),
    path("new", views.new, name="new"),
    path("preview", views.preview, name="preview"),
    path("import", views.import_, name="import"),
    path("schedules/", schedule_views.schedule_list, name="schedules"),
    path("schedules/new", schedule_views.new, name="schedule_new"),
    path("schedules/<uuid:pk>/", schedule_views.detail, name="schedule"),
    path("schedules/<uuid:pk>/edit", schedule_views.edit, name="schedule_edit"),
    path("schedules/<uuid:pk>/delete", schedule_views.delete, name="schedule_delete"),
    path("schedules/<uuid:pk>/run", schedule_views.run, name="schedule_run"),
    path("checks/<uuid:pk>/", drift_views.check_detail, name="check"),
    path("checks/<uuid:pk>/status", drift_views.check_status, name="check_status"),
    path("checks/<uuid:pk>/cancel", drift_views.check_cancel, name="check_cancel"),
    path("checks/<uuid:pk>/rerun", drift_views.check_rerun, name="check_rerun"),
    path("import/bundled", views.import_bundled, name="import_bundled"),
    path("<uuid:pk>/", views.detail, name="detail"),
    path("<uuid:pk>/drift", drift_views.drift, name="drift"),
    path("<uuid:pk>/drift.json", drift_views.figure, name="drift_figure"),
    path("<uuid:pk>/status", views.status, name="status"),
    path("<uuid:pk>/cancel", views.cancel, name="cancel"),
    path("<uuid:pk>/links", views.links, name="links"),
    path("<uuid:pk>/rerun", views.rerun, name="rerun"),
    path("<uuid:pk>/figures/<slug:name>.json", views.figure, name="figure"),
    path("<uuid:pk>/samples.csv", views.samples_csv, name="samples_csv"),
    path("<uuid:pk>/document.json", views.document_json, name="document_json"),
]
