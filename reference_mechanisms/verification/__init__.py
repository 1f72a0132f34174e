"""Which draft tokens the target keeps."""
