"""What git asked for: clean, smudge, and the plan that makes one batch of a whole checkout."""
