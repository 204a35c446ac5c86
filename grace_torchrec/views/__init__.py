"""Views: the only place that makes text or pictures out of values."""
