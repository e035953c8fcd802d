from django.urls import path

from calibration import views

app_name = "calibration"
urlpatterns = [
    path("", views.calibration_list, name="list"),
    path("new", views.new, name="new"),
    path("preview", views.preview, name="preview"),
    path("import", views.import_, name="import"),
    path("<uuid:pk>/", views.detail, name="detail"),
    path("<uuid:pk>/status", views.status, name="status"),
    path("<uuid:pk>/cancel", views.cancel, name="cancel"),
    path("<uuid:pk>/rerun", views.rerun, name="rerun"),
    path("<uuid:pk>/figures/<slug:name>.json", views.figure, name="figure"),
    path("<uuid:pk>/samples.csv", views.samples_csv, name="samples_csv"),
    path("<uuid:pk>/document.json", views.document_json, name="document_json"),
]
