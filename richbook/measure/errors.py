"""The two signals a measure may give: an error for bad input, a warning for degenerate input."""


class RichbookError(ValueError):
    """Input that cannot be measured. The message names the argument and what was expected."""


class DegenerateWarning(UserWarning):
    """Input that can be measured only in part: the affected number is nan, or means less."""
