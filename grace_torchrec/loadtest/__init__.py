"""Load test: an engine under load that another process makes, beside stock and with parts left out."""
