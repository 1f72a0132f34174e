"""JSON Schemas of the file formats; `specpilot-harness schema KIND` prints the same."""
