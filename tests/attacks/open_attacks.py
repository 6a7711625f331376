"""What is known to fall short: by attack, and by what it wants (as run.STEPS), the worst figure that
is accepted.

An attack that is named here is reported as open, with its figure, and fails if it gets worse.
Remove its line when it holds. The lines are for the attacks as they are described: variants with
other counts or more event loops fail.
"""

OPEN = {}
