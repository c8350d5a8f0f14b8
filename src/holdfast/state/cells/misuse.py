"""What a function does that its declaration does not allow."""

from __future__ import annotations


class Misuse(Exception):
    """The user's function asks for what its declaration does not have: a mistake of the function, whatever
    its rows hold. It reaches the user as a UserCodeError."""
