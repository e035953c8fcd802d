"""Rows of what each request to a running server saw: beside its verification, because there may be many of them."""

from __future__ import annotations

from django.db import models


class ServerAnswers(models.Model):
    """`rows`: planner.verification.answer_rows.packed."""

    verification = models.OneToOneField("planner.Verification", models.CASCADE, related_name="answers")
    rows = models.BinaryField()

    def __str__(self) -> str:
        return f"requests of {self.verification_id}"
