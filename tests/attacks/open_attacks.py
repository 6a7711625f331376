"""What is known to fall short: by attack, and by what it wants, the worst figure that is accepted.

An attack that is named here is reported as open, with its figure, and fails if it gets worse.
Remove its line when it holds. The lines are for the attacks as they are described: variants with
other counts or more event loops fail.
"""
from run import STEPS

OPEN = {
    # The first touch of a page of 2 MB for new buckets: the kernel may move others to make room.
    "long_keys": {STEPS: 16},
}
