from django.urls import path

from accounts import views

app_name = "accounts"
urlpatterns = [
    path("sign-in", views.sign_in, name="sign_in"),
    path("sign-out", views.sign_out, name="sign_out"),
    path("password", views.change_password, name="password"),
    path("tokens/", views.token_list, name="tokens"),
    path("tokens/<int:pk>/revoke", views.token_revoke, name="token_revoke"),
    path("projects/", views.project_list, name="projects"),
    path("use-project", views.use_project, name="use_project"),
    path("projects/<slug:slug>/", views.project, name="project"),
    path("projects/<slug:slug>/members", views.member_add, name="member_add"),
    path("projects/<slug:slug>/members/<int:pk>/role", views.member_role, name="member_role"),
    path("projects/<slug:slug>/members/<int:pk>/remove", views.member_remove, name="member_remove"),
]
