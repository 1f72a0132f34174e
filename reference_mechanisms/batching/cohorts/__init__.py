"""Two cohorts: one drafts while the other is verified."""
