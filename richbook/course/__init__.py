"""Exercises and their checks, and the making of the book."""

from richbook.course import exercises
from richbook.course.checking import Verdict, check

__all__ = ["Verdict", "check", "exercises"]
