"""Measurements that a reader runs: `python -m studies.diagnose`, `python -m studies.speed`, `python evaluate.py --table3`."""
