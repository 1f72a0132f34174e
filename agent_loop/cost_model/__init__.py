"""Where the time of a step goes, what physics leaves of it, and what better drafts could give."""
