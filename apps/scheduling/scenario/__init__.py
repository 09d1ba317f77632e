"""Scenario files: a small cluster, a moment, and what must happen."""

from apps.scheduling.scenario.answer import Answer
from apps.scheduling.scenario.expect import failures
from apps.scheduling.scenario.parse import Scenario, ScenarioError, read
from apps.scheduling.scenario.run import Outcome, play

__all__ = ["Answer", "Outcome", "Scenario", "ScenarioError", "failures", "play", "read"]
