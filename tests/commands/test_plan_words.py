"""Which plan a word means: `verify` and `mixed_load` take an id or an exact name, as other commands do of theirs."""

from __future__ import annotations

import uuid

import pytest

from config.commandline import BadInput
from planner.commands import plan_of
from planner.models import Plan

pytestmark = pytest.mark.django_db


def refused(word: str, owner) -> str:
    with pytest.raises(BadInput) as told:
        plan_of(word, owner)
    assert [error["field"] for error in told.value.errors] == ["plan"]
    return str(told.value)


def test_a_plan_is_meant_by_its_id_or_its_name(finished_plan, owner):
    assert plan_of(str(finished_plan.pk), owner) == finished_plan
    assert plan_of(finished_plan.name, owner) == finished_plan
    Plan.objects.filter(pk=finished_plan.pk).update(name="prod/chat: p95")
    assert plan_of("prod/chat: p95", owner) == finished_plan, "a slash makes no file of it"


def test_a_name_of_two_plans_is_refused_with_both(finished_plan, owner, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / finished_plan.name).touch()
    assert plan_of(finished_plan.name, owner) == finished_plan, "a plan is never a file"
    other = Plan.objects.get(pk=finished_plan.pk)
    other.pk = uuid.uuid4()
    other.save(force_insert=True)
    words = refused(finished_plan.name, owner)
    assert str(finished_plan.pk) in words and str(other.pk) in words


def test_what_is_no_plan_of_theirs_is_said(finished_plan, owner, django_user_model):
    assert refused("none", owner) == "'none' is not the id or exact name of a plan"
    stranger = django_user_model.objects.create_user("stranger")
    assert "no plan has the id" in refused(str(finished_plan.pk), stranger)
    assert "is not the id" in refused(finished_plan.name, stranger)
