"""The public benchmarks: tasks.py says what each is and judges replies (`score` needs no model), harness.py asks a policy."""

from benchmarks.tasks import BENCHMARKS, Row, score

__all__ = ["BENCHMARKS", "Row", "score"]
