"""Times of the engine on dummy targets of published shape: `specpilot-harness engine bench`."""
