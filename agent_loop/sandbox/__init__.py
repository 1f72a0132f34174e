"""A closed room for code that is not ours: bubblewrap, else Landlock in namespaces, else a refusal."""
