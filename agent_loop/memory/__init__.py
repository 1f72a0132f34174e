"""What was learned: mechanism records with preconditions and measured effects."""
