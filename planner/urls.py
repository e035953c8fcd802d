from django.urls import path

from planner import plan_views, traffic_views

app_name = "planner"
urlpatterns = [
    path("traffic/", traffic_views.traffic_list, name="traffic_list"),
    path("traffic/new", traffic_views.upload, name="traffic_new"),
    path("traffic/synthesise", traffic_views.synthesise, name="traffic_synthesise"),
    path("traffic/<uuid:pk>/", traffic_views.detail, name="traffic_detail"),
    path("traffic/<uuid:pk>/figures/<slug:name>.json", traffic_views.figure, name="traffic_figure"),
    path("traffic/<uuid:pk>/requests.csv", traffic_views.requests_csv, name="requests_csv"),
    path("plans/", plan_views.plan_list, name="plan_list"),
    path("plans/new", plan_views.new, name="plan_new"),
    path("plans/preview", plan_views.preview, name="plan_preview"),
    path("plans/<uuid:pk>/", plan_views.detail, name="plan_detail"),
    path("plans/<uuid:pk>/status", plan_views.status, name="plan_status"),
    path("plans/<uuid:pk>/cancel", plan_views.cancel, name="plan_cancel"),
    path("plans/<uuid:pk>/rerun", plan_views.rerun, name="plan_rerun"),
    path("plans/<uuid:pk>/figures/<slug:name>.json", plan_views.figure, name="plan_figure"),
    path("plans/<uuid:pk>/candidates.csv", plan_views.candidates_csv, name="candidates_csv"),
    path("plans/<uuid:pk>/result.json", plan_views.result_json, name="result_json"),
]
