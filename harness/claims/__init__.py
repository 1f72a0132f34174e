"""Claims: who says that what is how much faster, on what; and whether a report bears it out."""
