"""Audits of a running server: what it is asked, what it answers, and what that proves."""
