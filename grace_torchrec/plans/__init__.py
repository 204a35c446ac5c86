"""Plans: per table what to store, where, and why; a value that is saved, read and compared."""
