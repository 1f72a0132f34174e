"""The table of step costs, measured on the machine at hand."""
