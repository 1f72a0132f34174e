"""How a trial is run: local processes, or a cluster. No decision is made here."""
