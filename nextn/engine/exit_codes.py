"""How rank processes end, for who starts them."""

from __future__ import annotations

# The engine has ended and nobody is to come again; it cannot be, for a reason that was said; something went
# wrong here; another rank is gone, so this one is to be started again.
LET_GO, REFUSED, FAILED, LOST = 0, 3, 1, 4
