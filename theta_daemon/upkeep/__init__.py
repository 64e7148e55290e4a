"""Objects on the way and at home: push, fetch, prune, check. No terminal is known here."""
