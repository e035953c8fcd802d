from django.urls import path

from calibration import notification_views as views

app_name = "notifications"
urlpatterns = [
    path("", views.channel_list, name="list"),
    path("<uuid:pk>/", views.channel, name="channel"),
    path("<uuid:pk>/delete", views.delete, name="delete"),
    path("<uuid:pk>/rotate", views.rotate, name="rotate"),
    path("<uuid:pk>/test", views.test, name="test"),
]
