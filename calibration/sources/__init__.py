"""Samples that come from elsewhere: step tables as CSV, and how well a fit of a few of their rows predicts the rest."""
