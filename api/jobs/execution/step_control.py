"""Exceptions that end or repeat a step, other than errors. None is an Exception, so that code which handles
errors lets them pass.

Does not know what the steps do.
"""

from __future__ import annotations


class RunReplaced(BaseException):
    """The run is not the job's current one: it was cancelled, deleted or started again. Its results are
    dropped."""


class MakeWay(BaseException):
    """A suspect needs the engine alone; the step begins again after it."""
