"""Signing in and out, tokens, projects and members, as pages."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts import tokens
from accounts.models import ApiToken, Membership, Project, RateBucket

SIGN_IN = "/accounts/sign-in"
PASSWORD = "correct horse battery"


@pytest.fixture
def ada(several_users, settings):
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    return get_user_model().objects.create_user("ada", password=PASSWORD)


@pytest.fixture
def limited(settings):
    settings.RATE_LIMITS_ENABLED = True


def sign_in(client, name="ada", password=PASSWORD, **more):
    return client.post(SIGN_IN, {"username": name, "password": password, **more})


def test_signing_in_leads_home_and_gives_a_project_to_who_has_none(client, ada):
    answer = sign_in(client)
    assert (answer.status_code, answer.url) == (302, reverse("home"))
    project = Project.objects.visible_to(ada).get()
    assert project.memberships.get().role == Membership.OWNER
    client.post("/accounts/sign-out")
    sign_in(client)
    assert Project.objects.visible_to(ada).count() == 1


def test_signing_in_leads_where_the_user_wanted_to_go_but_not_to_another_site(client, ada):
    assert client.get("/accounts/tokens/").url == f"{SIGN_IN}?next=/accounts/tokens/"
    assert sign_in(client, next="/accounts/tokens/").url == "/accounts/tokens/"
    for target in ("https://evil.example/", "//evil.example/", "javascript:alert(1)", "\\\\evil.example"):
        assert sign_in(Client(), next=target).url == reverse("home")


def test_a_wrong_name_reads_like_a_wrong_password(client, ada):
    ada_is_off = get_user_model().objects.create_user("off", password=PASSWORD, is_active=False)
    pages = []
    for name, password in (("ada", "wrong"), ("nobody", "wrong"), (ada_is_off.username, PASSWORD)):
        answer = sign_in(client, name, password)
        assert answer.status_code == 422
        pages.append(re.sub(r'value="[^"]*"', "", answer.content.decode()))
    assert pages[0] == pages[1] == pages[2]
    assert "do not match" in pages[0]


def test_a_wrong_name_takes_as_many_password_hashes_as_a_wrong_password(client, ada, monkeypatch):
    from django.contrib.auth.hashers import MD5PasswordHasher

    hashed = []
    encode = MD5PasswordHasher.encode
    monkeypatch.setattr(MD5PasswordHasher, "encode", lambda *a, **k: hashed.append(1) or encode(*a, **k))
    sign_in(client, "ada", "wrong")
    known = len(hashed)
    sign_in(client, "nobody", "wrong")
    assert len(hashed) - known == known == 1


def test_the_password_is_not_in_the_page_that_refuses_it(client, ada):
    assert "not my password" not in sign_in(client, password="not my password").content.decode()


def test_sign_in_is_limited_by_address(client, ada, limited):
    for attempt in range(10):
        assert sign_in(client, f"name-{attempt}", "x").status_code == 422
    answer = sign_in(client)
    assert answer.status_code == 429
    assert 1 <= int(answer.headers["Retry-After"]) <= 60
    assert sign_in(Client(REMOTE_ADDR="203.0.113.9")).status_code == 302


def test_sign_in_is_limited_by_name_whatever_the_address(ada, limited):
    answers = [sign_in(Client(REMOTE_ADDR=f"203.0.113.{i}"), password="x").status_code for i in range(21)]
    assert answers == [422] * 20 + [429]
    assert sign_in(Client(REMOTE_ADDR="203.0.113.99"), " ADA ").status_code == 429
    assert "ada" not in str(list(RateBucket.objects.values_list("key", flat=True)))


def test_the_admin_has_no_door_of_its_own(client, ada):
    assert client.get("/admin/login/?next=/admin/").url == f"{SIGN_IN}?next=%2Fadmin%2F"
    assert client.post("/admin/login/", {"username": "ada", "password": PASSWORD}).status_code == 302
    assert "_auth_user_id" not in client.session


def test_sign_out_needs_a_post(owner_client):
    assert owner_client.get("/accounts/sign-out").status_code == 405
    assert owner_client.get("/accounts/tokens/").status_code == 200
    assert owner_client.post("/accounts/sign-out").status_code == 302
    assert owner_client.get("/accounts/tokens/").status_code == 302


def test_every_form_of_the_account_pages_is_refused_without_its_csrf_token(owner):
    client = Client(enforce_csrf_checks=True)
    client.force_login(owner)
    for url in (SIGN_IN, "/accounts/sign-out", "/accounts/tokens/", "/accounts/projects/"):
        assert client.post(url, {"name": "x"}).status_code == 403, url
    page = client.get("/accounts/tokens/").content.decode()
    secret = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page)[1]
    form = {"name": "ci", "scope": "read", "lifetime": "7", "csrfmiddlewaretoken": secret}
    assert client.post("/accounts/tokens/", form).status_code == 200


def test_a_changed_password_is_the_one_that_counts_and_ends_other_sessions(client, ada):
    elsewhere = Client()
    for browser in (client, elsewhere):
        sign_in(browser)
    form = {"old_password": "wrong", "new_password1": "tortoise tango 9", "new_password2": "tortoise tango 9"}
    refused = client.post("/accounts/password", form)
    assert refused.status_code == 422
    assert "tortoise" not in refused.content.decode()
    assert client.post("/accounts/password", form | {"old_password": PASSWORD}).status_code == 302
    assert client.get("/accounts/tokens/").status_code == 200
    assert elsewhere.get("/accounts/tokens/").status_code == 302
    assert sign_in(Client()).status_code == 422
    assert sign_in(Client(), password="tortoise tango 9").status_code == 302


def test_ids_beyond_any_column_and_names_with_nul_are_404(owner_client):
    assert owner_client.post(f"/accounts/tokens/{10**30}/revoke").status_code == 404
    assert owner_client.post(f"/accounts/projects/ridge/members/{10**30}/remove").status_code == 404
    assert owner_client.post("/accounts/use-project", {"project": "a\x00b"}).status_code == 404


# Tokens ------------------------------------------------------------------------------------------------------


def issue(client, **form):
    return client.post("/accounts/tokens/", {"name": "ci", "scope": "read", "lifetime": "7", **form})


def test_a_new_token_is_shown_once_and_works(owner_client, owner):
    page = issue(owner_client)
    clear = re.search(r"rl_[0-9a-f]{8}_[\w-]{43}", page.content.decode())[0]
    assert tokens.authenticate(clear).user == owner
    assert "no-store" in page.headers["Cache-Control"]
    assert clear not in owner_client.get("/accounts/tokens/").content.decode()
    assert clear not in str(dict(owner_client.session))


def test_tokens_expire_as_asked(owner_client):
    issue(owner_client, lifetime="7")
    issue(owner_client, lifetime="never")
    never, week = ApiToken.objects.order_by("-created_at")
    assert never.expires_at is None
    assert timedelta(days=6) < week.expires_at - timezone.now() <= timedelta(days=7)


@pytest.mark.parametrize(
    "form", [{"name": ""}, {"name": "n" * 81}, {"scope": "admin"}, {"lifetime": "9999"}, {"lifetime": ""}]
)
def test_bad_token_forms_issue_nothing_and_keep_what_was_typed(owner_client, form):
    page = issue(owner_client, **form)
    assert page.status_code == 422
    assert not ApiToken.objects.exists()
    assert "aria-invalid" in page.content.decode()


def test_token_issue_is_limited(owner_client, limited):
    answers = [issue(owner_client).status_code for _ in range(21)]
    assert answers == [200] * 20 + [429]


def test_a_token_is_revoked_by_its_user_only(owner_client, member_client, owner):
    row, clear = tokens.issue(owner, "ci", ApiToken.READ, None)
    url = f"/accounts/tokens/{row.pk}/revoke"
    assert member_client.post(url).status_code == 404
    assert tokens.authenticate(clear) is not None
    assert owner_client.post(url).status_code == 302
    assert tokens.authenticate(clear) is None


def test_names_with_markup_are_shown_as_text(owner_client):
    issue(owner_client, name="<script>alert(1)</script>")
    owner_client.post("/accounts/projects/", {"name": "<img src=x onerror=alert(1)>"})
    for url in ("/accounts/tokens/", "/accounts/projects/"):
        page = owner_client.get(url).content.decode()
        assert "<script>alert" not in page
        assert "<img src=x" not in page
        assert "&lt;" in page


# Projects ----------------------------------------------------------------------------------------------------


def test_a_project_is_its_maker_s_and_names_may_repeat(owner_client, owner):
    for _ in range(2):
        owner_client.post("/accounts/projects/", {"name": "Lab"})
    made = Project.objects.filter(name="Lab")
    assert len(set(made.values_list("slug", flat=True))) == 2
    assert all(p.memberships.get().user == owner for p in made)


def test_an_owner_adds_changes_and_removes_members(owner_client, project, outsider):
    owner_client.post("/accounts/projects/ridge/members", {"username": "outsider", "role": "viewer"})
    membership = project.memberships.get(user=outsider)
    assert membership.role == Membership.VIEWER
    owner_client.post(f"/accounts/projects/ridge/members/{membership.pk}/role", {"role": "member"})
    membership.refresh_from_db()
    assert membership.role == Membership.MEMBER
    owner_client.post(f"/accounts/projects/ridge/members/{membership.pk}/remove")
    assert not project.memberships.filter(user=outsider).exists()


@pytest.mark.parametrize(
    "form", [{"username": "nobody", "role": "member"}, {"username": "outsider", "role": "king"}, {}]
)
def test_bad_member_forms_add_nobody(owner_client, project, outsider, form):
    answer = owner_client.post("/accounts/projects/ridge/members", form)
    assert answer.status_code == 422
    assert project.memberships.count() == 1


def test_members_and_viewers_manage_nobody_but_may_leave(
    owner, member_client, viewer_client, member, viewer, project
):
    of = {m.user.username: m.pk for m in project.memberships.select_related("user")}
    for client, name in ((member_client, "member"), (viewer_client, "viewer")):
        base = "/accounts/projects/ridge/members"
        assert client.post(base, {"username": "outsider", "role": "member"}).status_code == 403
        assert client.post(f"{base}/{of[name]}/role", {"role": "owner"}).status_code == 403
        assert client.post(f"{base}/{of['owner']}/remove").status_code == 403
        assert client.post(f"{base}/{of[name]}/remove").url == "/accounts/projects/"
    assert list(project.memberships.values_list("user__username", flat=True)) == ["owner"]


def test_the_last_owner_stays(owner_client, owner, member, project):
    mine = project.memberships.get(user=owner)
    base = f"/accounts/projects/ridge/members/{mine.pk}"
    for url, form in ((f"{base}/remove", {}), (f"{base}/role", {"role": "viewer"})):
        page = owner_client.post(url, form, follow=True)
        assert "needs an owner" in page.content.decode()
    page = owner_client.post("/accounts/projects/ridge/members", {"username": "owner", "role": "viewer"})
    assert page.status_code == 422
    mine.refresh_from_db()
    assert mine.role == Membership.OWNER
    project.memberships.filter(user=member).update(role=Membership.OWNER)
    assert owner_client.post(f"{base}/remove").status_code == 302
    assert not project.memberships.filter(user=owner).exists()


def test_a_membership_of_another_project_is_out_of_reach(owner_client, outsider):
    theirs = Membership.objects.get(user=outsider)
    for action in ("role", "remove"):
        url = f"/accounts/projects/ridge/members/{theirs.pk}/{action}"
        assert owner_client.post(url, {"role": "viewer"}).status_code == 404


def test_the_chosen_project_is_kept_and_must_be_visible(owner_client, outsider):
    assert owner_client.post("/accounts/use-project", {"project": "ridge"}).status_code == 302
    assert owner_client.session["project"] == "ridge"
    assert owner_client.post("/accounts/use-project", {"project": "elsewhere"}).status_code == 404
    assert owner_client.session["project"] == "ridge"


def test_in_single_user_mode_nobody_signs_in(client, db):
    assert client.get(SIGN_IN).url == reverse("home")
    assert client.get("/accounts/tokens/").status_code == 200
    assert client.get("/accounts/tokens/", REMOTE_ADDR="203.0.113.9").status_code == 403
