"""Preloaded by tests.forks: each validation of documents draws anew, and tests read but a few of its rows."""

from reread.training.data.batch import lanes

lanes.ROWS_AT_ONCE = 64
